"""Processes as /proc shows them, by namespace; signals go through pidfds, so never to a reused pid."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process of a node: its pid in the node, its pid outside, its name, and its arguments."""

    pid: int
    name: str
    argv: tuple[str, ...]
    outer_pid: int

    @property
    def command(self) -> str:
        """Its name and the words of argv; a fork has those of its parent."""
        return " ".join((self.name, *self.argv))


def namespace(pid: int, kind: str) -> int:
    """The identity of a process's namespace (`net`, `pid`, ...); OSError when the process has ended."""
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino


def members(kind: str, identity: int) -> Iterator[int]:
    """The outer pids of all processes in a namespace."""
    for pid in _numbers():
        try:
            found = namespace(pid, kind)
        except OSError:
            continue  # ended meanwhile
        if found == identity:
            yield pid


def describe(outer_pid: int) -> Process | None:
    """Read one process; None when it has ended (a zombie has)."""
    try:
        raw = Path(f"/proc/{outer_pid}/cmdline").read_bytes()
        status = status_of(outer_pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    if status["State"].startswith(("Z", "X")):
        return None
    words = tuple(word.decode(errors="replace") for word in raw.rstrip(b"\0").split(b"\0"))
    return Process(int(status["NSpid"].split()[-1]), status["Name"], words, outer_pid)


def status_of(outer_pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status."""
    lines = Path(f"/proc/{outer_pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def catches(outer_pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal; process 1 of a namespace ignores all others."""
    try:
        return bool(int(status_of(outer_pid)["SigCgt"], 16) >> (number - 1) & 1)
    except (FileNotFoundError, ProcessLookupError):
        return False


def deliver(process: Process, number: signal.Signals, timeout_s: float = 5.0) -> bool:
    """Signal a process if it is still the one that was described; waits for SIGKILL and SIGSTOP to act."""
    try:
        handle = os.pidfd_open(process.outer_pid)
    except ProcessLookupError:
        return False
    try:
        if describe(process.outer_pid) != process:
            return False
        signal.pidfd_send_signal(handle, number)
        if number in (signal.SIGKILL, signal.SIGSTOP):
            _await_effect(process.outer_pid, handle, timeout_s)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _await_effect(outer_pid: int, handle: int, timeout_s: float) -> None:
    """Wait until a process has ended or every thread of it is stopped; no descriptor announces the latter."""
    deadline = time.monotonic() + timeout_s
    while not select.select([handle], [], [], 0.001)[0] and not _stopped(outer_pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {outer_pid} took no notice of a signal within {timeout_s:g} s")


def _stopped(outer_pid: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{outer_pid}/task")
        return all(status_of(int(thread))["State"].startswith("T") for thread in threads)
    except (FileNotFoundError, ProcessLookupError):
        return False


def end_group(leader: int, timeout_s: float = 5.0) -> None:
    """Kill a process group that was started here, its leader not yet waited for, and wait for its end."""
    with contextlib.ExitStack() as stack:
        handles = [_open(pid, stack) for pid in _numbers() if _group(pid) == leader]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        for handle in handles:
            if handle is not None:
                select.select([handle], [], [], timeout_s)


def _numbers() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _open(pid: int, stack: contextlib.ExitStack) -> int | None:
    """A handle that the stack closes; None when the process has been reaped meanwhile."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    stack.callback(os.close, handle)
    return handle


def end_members(kind: str, identity: int, spare: int, timeout_s: float = 5.0) -> None:
    """Kill everything in a namespace but `spare`, and wait for its end."""
    with contextlib.ExitStack() as stack:
        handles = [_killed(pid, kind, identity, stack) for pid in members(kind, identity) if pid != spare]
        for handle in handles:
            if handle is not None:
                select.select([handle], [], [], timeout_s)


def _killed(pid: int, kind: str, identity: int, stack: contextlib.ExitStack) -> int | None:
    """Kill a process if its pid still belongs to a member; the handle shows when it has ended."""
    handle = _open(pid, stack)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if handle is not None and namespace(pid, kind) == identity:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return handle
    return None
