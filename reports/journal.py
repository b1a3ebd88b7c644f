"""`results.jsonl`: one JSON line per record, handed to the kernel at once, and read back strictly.

Whatever ends the run, every finished check is in the file: a line is written in one piece, and it counts once
its newline is there. A last line without a newline is torn: the writer was killed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from reports.codec import DecodeError, decode, encode
from reports.record import CheckRecord, EndRecord, Record, RunRecord

UNKNOWN_STATUS = -1  # the pytest_status of a run that was killed before it had one


class Journal:
    """Starts a new journal at `path` and appends records to it. Several threads may use it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o644)
        self._size = 0
        self._lock = threading.Lock()
        self._closed = False

    def write(self, record: Record) -> None:
        """Append one record. On return the kernel has it, so a SIGKILL cannot lose it."""
        line = json.dumps(encode(record), allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.path}: a {type(record).__name__} after the journal was closed")
            try:
                _write_all(self._file, line)
            except OSError:
                # A full disk must not leave half a line in front of later, complete ones.
                os.ftruncate(self._file, self._size)
                raise
            self._size += len(line)
            if isinstance(record, EndRecord):
                os.fsync(self._file)

    def close(self) -> None:
        """Sync the file to disk and close it. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.fsync(self._file)
                os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Scan:
    """All that a journal yields: the records of its good lines, and the faults of the others."""

    records: list[Record]
    faults: list[str]


def scan(path: Path | str, measurements: bool = True) -> Scan:
    """The records of a journal, on request without the raw samples, and a fault for every bad line.

    A torn last line is no fault, because every killed run may leave one: it becomes an `EndRecord` whose
    `cut_short` says so.
    """
    journal = Scan([], [])
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                journal.records.append(_torn(number))
                continue
            try:
                record = decode(line)
            except DecodeError as fault:
                journal.faults.append(f"line {number}: {fault}")
                continue
            journal.faults.extend(f"line {number}: {fault}" for fault in _out_of_place(record, journal))
            journal.records.append(record if measurements else _without_samples(record))
    return journal


def _out_of_place(record: Record, journal: Scan) -> Iterator[str]:
    first = not journal.records and not journal.faults
    if first and not isinstance(record, RunRecord):
        yield "a journal begins with a run record, which names its schema"
    if not first and isinstance(record, RunRecord):
        yield "a second run record: two runs wrote into one journal"


def _torn(number: int) -> EndRecord:
    why = f"the last line of the journal (line {number}) is torn: the run was killed while it wrote it"
    return EndRecord(ended="", seconds=0.0, pytest_status=UNKNOWN_STATUS, cut_short=why)


def _without_samples(record: Record) -> Record:
    """The record without its samples, of which a large run has gigabytes; it still says that it had some."""
    if isinstance(record, CheckRecord) and record.measurement:
        return replace(record, measurement={"samples": "see results.jsonl"})
    return record


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
