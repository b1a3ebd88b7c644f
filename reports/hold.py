"""The report directory of a run: held by one run at a time, by default a new one to which a link points."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

_BEFORE_IT_RUNS = {"junit.xml", ".lock"}  # all that is in a directory in which no run began


class HeldError(Exception):
    """Another run holds the directory."""


class Hold:
    """A report directory that is ours until `release`, or until this process is gone.

    With `runs` the directory is a new one in there, and `place` becomes a link to it with `publish`. Raises
    HeldError where another run holds the place, and OSError where it cannot be held at all.
    """

    def __init__(self, place: Path, runs: Path | None = None) -> None:
        self.place, self.run_id = place, _new_id(datetime.now(timezone.utc))
        self.directory = place if runs is None else runs / self.run_id
        self._file = self._take(place if runs is None else runs)
        if runs is not None:
            try:
                _keep(place, runs)
                self.directory.mkdir()
            except (OSError, HeldError):
                self.release()
                raise

    def _take(self, home: Path) -> IO[str]:
        home.mkdir(parents=True, exist_ok=True)
        file = self._open(home / ".lock")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as refused:
            with file:
                if not isinstance(refused, BlockingIOError):
                    raise
                file.seek(0)
                holder = file.read().strip()
            raise HeldError(
                f"--report-dir {self.place} is held by another run ({holder}); "
                "wait for it, or name another directory"
            ) from None
        with contextlib.suppress(OSError):  # a full disk has no room for our name; the lock is what counts
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())
        return file

    def _open(self, path: Path) -> IO[str]:
        try:
            return path.open("a+")
        except OSError:
            if not path.exists():
                raise
            return path.open()  # another user's, who may hold it: a lock needs no right to write

    def publish(self) -> None:
        """Let the place, if it is a link, point to this directory, atomically."""
        if self.directory == self.place:
            return
        last = self.place.resolve() if self.place.is_symlink() else None
        spare = self.place.with_name(f".{self.place.name}.{self.run_id}")
        spare.symlink_to(os.path.relpath(self.directory, self.place.parent))
        os.replace(spare, self.place)
        if last is not None:
            drop_unused(last)

    def release(self) -> None:
        """Free the directory for the next run."""
        self._file.close()


def is_ours(place: Path, runs: Path) -> bool:
    """Whether the place is a link to a kept run, and not a link of the operator's."""
    return place.is_symlink() and place.resolve().parent == runs.resolve()


def _new_id(when: datetime) -> str:
    return f"{when:%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"


def _keep(place: Path, runs: Path) -> None:
    """Make room for the link: a directory in its place becomes one of the runs."""
    if is_ours(place, runs) or not os.path.lexists(place):
        return
    if place.is_symlink() or not place.is_dir():
        raise FileExistsError(f"{place} is the operator's own")
    Hold(place).release()  # no directory is moved while somebody writes into it
    place.rename(runs / _new_id(datetime.fromtimestamp(place.stat().st_mtime, timezone.utc)))


def drop_unused(directory: Path) -> None:
    """Remove a directory that holds nothing but the red report from before a run."""
    with contextlib.suppress(OSError):
        if {path.name for path in directory.iterdir()} <= _BEFORE_IT_RUNS:
            for path in directory.iterdir():
                path.unlink()
            directory.rmdir()
