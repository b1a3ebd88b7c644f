"""The report directory of a run: held by one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from pathlib import Path
from typing import IO


class HeldError(Exception):
    """Another run holds the directory."""


class Hold:
    """A report directory that is ours until `release`, or until this process is gone.

    Raises HeldError where it is another's, and OSError where it cannot be held at all.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file = self._take()

    def _take(self) -> IO[str]:
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self._open(self.directory / ".lock")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as refused:
            with file:
                if not isinstance(refused, BlockingIOError):
                    raise
                file.seek(0)
                holder = file.read().strip()
            raise HeldError(
                f"--report-dir {self.directory} is held by another run ({holder}); "
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

    def release(self) -> None:
        """Let the next run in."""
        self._file.close()
