"""Control groups of lab nodes, in either version of the kernel's interface."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


class Group:
    """The groups of one node: with version 1 one per controller, with version 2 one for all."""

    def __init__(self, root: Path, directory: Path, node: str) -> None:
        lab = hashlib.sha256(str(directory).encode()).hexdigest()[:12]
        self._root, self._name = root, f"lab-{lab}-{node}"
        self._second = (root / "cgroup.controllers").exists()

    def add(self, pids: Iterable[int]) -> None:
        """Create the groups if they do not exist, and put these processes into them."""
        for place in self._places():
            if self._second and not place.exists():
                (self._root / "cgroup.subtree_control").write_text("+cpu +memory")
            place.mkdir(exist_ok=True)
        for pid in pids:
            for place in self._places():
                with contextlib.suppress(ProcessLookupError):
                    (place / "cgroup.procs").write_text(f"{pid}\n")

    def limit_cpu(self, quota_us: int, period_us: int) -> None:
        """Let the group run for `quota_us` in each period; -1: no limit."""
        if self._second:
            quota = "max" if quota_us < 0 else str(quota_us)
            self._write("cpu", "cpu.max", f"{quota} {period_us}")
            return
        self._write("cpu", "cpu.cfs_period_us", str(period_us))
        self._write("cpu", "cpu.cfs_quota_us", str(quota_us))

    def limit_memory(self, size_bytes: int) -> None:
        """Let the group have this much memory; -1: no limit."""
        if self._second:
            self._write("memory", "memory.max", "max" if size_bytes < 0 else str(size_bytes))
        else:
            self._write("memory", "memory.limit_in_bytes", str(size_bytes))

    def memory_used(self) -> int:
        """How many bytes its processes have allocated since they joined it."""
        name = "memory.current" if self._second else "memory.usage_in_bytes"
        return int((self._place("memory") / name).read_text())

    def remove(self) -> None:
        """Remove the groups; one that still has processes stays."""
        for place in self._places():
            with contextlib.suppress(OSError):
                place.rmdir()

    def _place(self, controller: str) -> Path:
        return self._root / self._name if self._second else self._root / controller / self._name

    def _places(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self._place(controller) for controller in ("cpu", "memory")))

    def _write(self, controller: str, name: str, text: str) -> None:
        (self._place(controller) / name).write_text(f"{text}\n")
