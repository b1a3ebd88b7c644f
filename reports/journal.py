"""`results.jsonl`: one JSON line per record, on disk before the run goes on, and read back strictly.

Whatever ends the run, every finished check is in the file: a line is written in one piece, and it counts once
its newline is there. A last line without a newline is torn: the writer was killed. Each line ends with
`before`, the sha256 of the line before it, so that no line is changed, added or taken out unnoticed; that of
the last line is in verdict.json. Reading is strict: it accepts only lines that `encode` could have written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Annotated, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from reports.record import SCHEMA_VERSION, CheckRecord, EndRecord, Record, RunRecord
from reports.text import scrub

PARTS = "parts"  # the folder of what workers write until the run has taken it over
UNKNOWN_STATUS = -1  # the pytest_status of a run that was killed before it had one
_RECORD: TypeAdapter[Record] = TypeAdapter(
    Annotated[Record, Field(discriminator="type")], config=ConfigDict(strict=True, extra="forbid")
)
_BEFORE = re.compile(rb',"before":"([0-9a-f]{64})"\}\n')
_BEFORE_LENGTH = len(b',"before":""}\n') + 64


class Journal:
    """Starts a new journal at `path` and appends records to it. Several threads may use it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o644)
        self._size = 0
        self._last = _digest(b"")
        self._lock = threading.Lock()
        self._closed = False

    def write(self, record: Record) -> None:
        """Append one record. On return it is on disk, so that not even a power cut can lose it."""
        body = json.dumps(encode(record), allow_nan=False, separators=(",", ":")).encode("ascii")
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.path}: a {type(record).__name__} after the journal was closed")
            line = linked(body, self._last)
            try:
                _write_all(self._file, line)
                os.fsync(self._file)
            except OSError:
                # A full disk must not leave half a line in front of later, complete ones.
                os.ftruncate(self._file, self._size)
                raise
            self._size += len(line)
            self._last = _digest(line)

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


def linked(body: bytes, last: str) -> bytes:
    """The line of a record, with the sha256 of the line before it."""
    return body[:-1] + f',"before":"{last}"}}\n'.encode("ascii")


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


@dataclass
class Scan:
    """All that a journal yields: the records of its good lines, and the faults of the others.

    `numbers` are those of the good lines. `last` is the sha256 of the last line, "" where that is no record
    and so says nothing of the next.
    """

    records: list[Record]
    faults: list[str]
    last: str = _digest(b"")
    numbers: list[int] = field(default_factory=list)


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
                journal.numbers.append(number)
                continue
            before, journal.last = journal.last, ""
            said = _BEFORE.fullmatch(line[-_BEFORE_LENGTH:])
            try:
                record = decode(line[:-_BEFORE_LENGTH] + b"}" if said else line)
            except DecodeError as fault:
                journal.faults.append(f"line {number}: {fault}")
                continue
            journal.last = _digest(line)
            if before and (said is None or said[1].decode() != before):
                journal.faults.append(f"line {number}: it was not written after line {number - 1} as that is")
            journal.faults.extend(f"line {number}: {fault}" for fault in _out_of_place(record, journal))
            journal.records.append(record if measurements else _without_samples(record))
            journal.numbers.append(number)
    return journal


def each(path: Path, measurements: bool = True) -> Iterator[Record]:
    """The records of a journal without faults, one at a time: with their samples they may be gigabytes."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                record = decode(line[:-_BEFORE_LENGTH] + b"}")
                yield record if measurements else _without_samples(record)


def parts(directory: Path, run_id: str) -> list[Path]:
    """The journals of a run's workers, in their turns; none that is damaged or of another run."""
    found = []
    for path in sorted((directory / PARTS).glob("*.jsonl")):
        content = scan(path, measurements=False)
        first = next(iter(content.records), None)
        if isinstance(first, RunRecord) and first.run_id == run_id and not content.faults:
            found.append(path)
    return found


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


class DecodeError(ValueError):
    """A line that is no record of this schema; the text says what is wrong where."""


def encode(record: Record) -> dict[str, object]:
    """The record as a JSON object, its `type` first, without secrets and control bytes."""
    return {"type": record.type, **cast("dict[str, object]", scrub(record))}


def decode(line: bytes | str) -> Record:
    """The record that a line holds; DecodeError for anything that `encode` cannot have written."""
    try:
        data = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as fault:
        raise DecodeError(f"not valid JSON ({fault})") from None
    if isinstance(data, dict) and data.get("type") == "run" and data.get("schema") != SCHEMA_VERSION:
        raise DecodeError(
            f"written by schema {data.get('schema')!r:.60}, this program reads {SCHEMA_VERSION}"
        )
    try:
        record = _RECORD.validate_json(line)
    except ValidationError as refused:
        raise DecodeError(_first_fault(refused)) from None
    # Every field is always written, so a missing one means another writer or a damaged line.
    if absent := list(_absent(record, data, record.type)):
        raise DecodeError(f"missing: {', '.join(absent)}")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _first_fault(refused: ValidationError) -> str:
    fault = refused.errors(include_url=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
    return f"{where.lstrip('.') or 'record'}: {fault['msg']}, not {fault['input']!r:.60}"


def _absent(value: object, data: object, where: str) -> Iterator[str]:
    """Yield the fields that have their default because the line lacks them."""
    if dataclasses.is_dataclass(value) and isinstance(data, dict):
        for name in (item.name for item in dataclasses.fields(value)):
            if name in data:
                yield from _absent(getattr(value, name), data[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}"
    elif isinstance(value, tuple) and isinstance(data, list):
        for index, (item, entry) in enumerate(zip(value, data, strict=True)):
            yield from _absent(item, entry, f"{where}[{index}]")
