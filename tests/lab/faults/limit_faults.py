"""What a node may use: its share of the processor, its memory, and the limits of a login."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Literal

from tests.lab.handle import Handle
from tests.lab.parts.groups import GROUPS, Group

_PERIOD_US = 10_000  # long periods leave the median of short iterations as it was
_UNLIMITED = -1
Resource = Literal["memlock", "nofile", "nproc", "stack"]


class LimitFaults(Handle):
    """Limits of the kernel. Those of a group hold for what runs on the node now and what it starts."""

    def cpu_quota(self, node: str, share: float | None) -> None:
        """Give a node this share of one core, as if it were throttled; None lifts the limit."""
        quota = _UNLIMITED if share is None else round(share * _PERIOD_US)
        self._group(node).limit_cpu(quota, _PERIOD_US)

    def memory_limit(self, node: str, size_bytes: int | None) -> None:
        """Let the kernel kill processes when the node uses more memory than this; None lifts the limit."""
        self._group(node).limit_memory(_UNLIMITED if size_bytes is None else size_bytes)

    def memory_used(self, node: str) -> int:
        """How many bytes the node's group uses; 0 before its first limit."""
        return self._group(node).memory_used()

    def ulimit(self, node: str, what: Resource, value: int) -> None:
        """Lower a limit of sshd for every login made afterwards, until the node's next boot."""
        number: int = getattr(resource, f"RLIMIT_{what.upper()}")
        resource.prlimit(self._pid(node), number, (value, value))

    def _group(self, node: str) -> Group:
        """The node's group, with everything that runs on the node in it."""
        group = Group(GROUPS, self.directory, node)
        group.add(process.outer_pid for process in self.processes(node))
        return group


def remove_groups(directory: Path, nodes: tuple[str, ...]) -> None:
    """Remove the groups of a lab whose nodes are gone."""
    for node in nodes:
        Group(GROUPS, directory, node).remove()
