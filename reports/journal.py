"""`results.jsonl`: one JSON line per record, on disk before the run goes on, and read back strictly.

Whatever ends the run, every finished check is in the file: a line is written in one piece, and it counts once
its newline is there. A last line without a newline is torn: the writer was killed. Each line ends with
`before`, the sha256 of the line before it, so that a changed, added or removed line is noticed; the sha256 of
the last line is in verdict.json. Reading is strict: it accepts only lines that `encode` could have written.

Checks that share one run have one measurement: the first of them holds it, and in the others it is
`{"same_as": its id}`. A measurement of many ranks is `{"zlib": base64 of its compressed JSON}`, a tenth of
its size. Reading gives the measurement itself for both.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator, from_json

from reports.record import (
    SCHEMA_VERSION,
    AgainRecord,
    CheckRecord,
    EndRecord,
    JobRecord,
    NodeRecord,
    Record,
    RunRecord,
)
from reports.text import scrub

PARTS = "parts"  # the folder of the workers' journals, until the run has taken them over
UNKNOWN_STATUS = -1  # the pytest_status of a run that was killed before it had one
_NO_NUMBERS = (b"NaN", b"Infinity")  # which pydantic takes where any value may be
_SAME_AS, _ZLIB = "same_as", "zlib"
_LEAST_SHARED, _LEAST_PACKED = 1000, 4000  # bytes of a measurement
_MOST_UNPACKED = 1 << 31
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
        self._measured: dict[str, str] = {}  # sha256 of a measurement -> the check that holds it
        self._lock = threading.Lock()
        self._closed = False

    def write(self, record: Record) -> None:
        """Append one record. On return it is on disk, so that not even a power cut can lose it."""
        data = encode(record)
        measured = _json(data.get("measurement"))
        digest = _digest(measured) if len(measured) >= _LEAST_SHARED else ""
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.path}: a {type(record).__name__} after the journal was closed")
            if digest in self._measured:
                data["measurement"] = {_SAME_AS: self._measured[digest]}
            elif len(measured) >= _LEAST_PACKED:
                data["measurement"] = {_ZLIB: base64.b64encode(zlib.compress(measured)).decode("ascii")}
            line = linked(_json(data), self._last)
            try:
                _write_all(self._file, line)
                os.fsync(self._file)
            except OSError:
                # A full disk must not leave half a line in front of later, complete ones.
                os.ftruncate(self._file, self._size)
                raise
            self._size += len(line)
            self._last = _digest(line)
            if digest and isinstance(record, CheckRecord):
                self._measured.setdefault(digest, record.id)

    def close(self) -> None:
        """Sync the file to disk and close it. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.fsync(self._file)
                os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _json(data: object) -> bytes:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")


def linked(body: bytes, last: str) -> bytes:
    """The line of a record, with the sha256 of the line before it."""
    return body[:-1] + f',"before":"{last}"}}\n'.encode("ascii")


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


@dataclass
class Scan:
    """The content of a journal: the records of its good lines, and the faults of the others.

    `numbers` are those of the records' lines, `starts` the bytes at which they begin. `last` is the sha256 of
    the last line, "" where that line is not a record, so that the next line cannot be compared with it. Later
    repeats of a check are in its record; `again` are the starts of their own lines, by check.
    """

    records: list[Record]
    faults: list[str]
    last: str = _digest(b"")
    numbers: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    again: dict[str, list[int]] = field(default_factory=dict)

    def keep(self, record: Record, number: int, start: int) -> None:
        """Add the record of a good line."""
        if isinstance(record, AgainRecord):
            if not add_repeats(self.records, record):
                self.faults.append(f"line {number}: it repeats {record.check!r:.80}, which has not reported")
            self.again.setdefault(record.check, []).append(start)
            return
        self.records.append(record)
        self.numbers.append(number)
        self.starts.append(start)


def scan(path: Path | str, measurements: bool = True) -> Scan:
    """The records of a journal (without raw samples if asked), and a fault for every bad line.

    A torn last line is no fault, because every killed run may leave one: it becomes an `EndRecord` whose
    `cut_short` says so.
    """
    journal = Scan([], [])
    held: dict[str, Mapping[str, object]] = {}  # the measurements, by their checks
    end = 0

    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            start, end = end, end + len(line)
            if not line.endswith(b"\n"):
                torn = f"the last line of the journal (line {number}) is torn"
                journal.keep(cut_off(f"{torn}: the run was killed while it wrote it"), number, start)
                continue
            before, journal.last = journal.last, ""
            said = _BEFORE.fullmatch(line[-_BEFORE_LENGTH:])
            try:
                record = _record(line[:-_BEFORE_LENGTH] + b"}" if said else line, measurements, held)
            except DecodeError as fault:
                journal.faults.append(f"line {number}: {fault}")
                continue
            journal.last = _digest(line)
            if before and (said is None or said[1].decode() != before):
                journal.faults.append(f"line {number}: it was not written after line {number - 1} as that is")
            journal.faults.extend(f"line {number}: {fault}" for fault in _out_of_place(record, journal))
            journal.keep(record, number, start)
    return journal


def _record(line: bytes, measurements: bool, held: dict[str, Mapping[str, object]]) -> Record:
    """A record; a check with its samples, which are `held` for later ones, or a note that it has some."""
    record = decode(line)
    if not isinstance(record, CheckRecord):
        return record
    if measurements:
        return _with_samples(record, held)
    return replace(record, measurement={"samples": "see results.jsonl"}) if record.measurement else record


class Samples:
    """Reads single checks of a journal without faults: together their samples may be gigabytes."""

    def __init__(self, path: Path, content: Scan) -> None:
        self._path, pairs = path, zip(content.records, content.starts, strict=True)
        self._starts = {record.id: start for record, start in pairs if isinstance(record, CheckRecord)}
        self._again = content.again

    def check(self, name: str) -> CheckRecord:
        """The check of that id with its samples, also where another check holds them."""
        with self._path.open("rb") as file:
            found = []
            for start in (self._starts[name], *self._again.get(name, ())):
                file.seek(start)
                found.append(decode(file.readline()[:-_BEFORE_LENGTH] + b"}"))
        for more in found[1:]:
            add_repeats(found, cast("AgainRecord", more))
        check = cast("CheckRecord", found[0])
        other = check.measurement.get(_SAME_AS)
        return _with_samples(check, {} if other is None else {str(other): self.check(str(other)).measurement})


def add_repeats(records: list[Record], again: AgainRecord) -> bool:
    """Add later repeats to the record of their check; False if there is none."""
    for place, record in enumerate(records):
        if isinstance(record, CheckRecord) and record.id == again.check:
            records[place] = replace(record, repeats=(*record.repeats, *again.repeats))
            return True
    return False


def parts(directory: Path, run_id: str) -> list[Path]:
    """The journals of a run's workers, sorted by name, without those that are damaged or of another run."""
    found = []
    for path in sorted((directory / PARTS).glob("*.jsonl")):
        content = scan(path, measurements=False)
        first = next(iter(content.records), None)
        if isinstance(first, RunRecord) and first.run_id == run_id and not content.faults:
            found.append(path)
    return found


def of_workers(path: Path, measurements: bool = True) -> Iterator[Record]:
    """The records that a worker's journal, which has no faults, adds to that of its run; one at a time."""
    held: dict[str, Mapping[str, object]] = {}
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                record = _record(line[:-_BEFORE_LENGTH] + b"}", measurements, held)
                if isinstance(record, NodeRecord | JobRecord | CheckRecord | AgainRecord):
                    yield record


def _out_of_place(record: Record, journal: Scan) -> Iterator[str]:
    first = not journal.records and not journal.faults
    if first and not isinstance(record, RunRecord):
        yield "a journal begins with a run record, which names its schema"
    if not first and isinstance(record, RunRecord):
        yield "a second run record: two runs wrote into one journal"


def cut_off(why: str) -> EndRecord:
    """The end of a run that was cut short, and did not write it itself."""
    return EndRecord(ended="", seconds=0.0, pytest_status=UNKNOWN_STATUS, cut_short=why)


def _with_samples(check: CheckRecord, held: dict[str, Mapping[str, object]]) -> CheckRecord:
    """The check with its samples, also where they are compressed or an earlier one holds them."""
    other, packed = check.measurement.get(_SAME_AS), check.measurement.get(_ZLIB)
    if other is not None:
        if not isinstance(other, str) or other not in held:
            raise DecodeError(f"no line before it holds the measurement of {other!r:.60}")
        check = replace(check, measurement=held[other])
    elif packed is not None:
        check = replace(check, measurement=_unpacked(packed))
    held.setdefault(check.id, check.measurement)
    return check


def _unpacked(packed: object) -> Mapping[str, object]:
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(str(packed), validate=True), _MOST_UNPACKED)
        found = from_json(data, allow_inf_nan=False)
    except (ValueError, zlib.error) as fault:
        raise DecodeError(f"its measurement cannot be unpacked ({fault})") from None
    if not isinstance(found, dict):
        raise DecodeError("its measurement is no object")
    return found


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


class DecodeError(ValueError):
    """A line that is not a record of this schema; the text says what is wrong and where."""


def encode(record: Record) -> dict[str, object]:
    """The record as a JSON object, its `type` first, without secrets and control bytes."""
    return {"type": record.type, **cast("dict[str, object]", scrub(record))}


def _whole(schema: Any) -> Any:  # noqa: ANN401 - a tree of dicts and lists
    """The same schema without defaults: fields are always written, so one that is missing is a fault."""
    if isinstance(schema, list):
        return [_whole(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "default":
        return _whole(schema["schema"])
    return {name: _whole(part) for name, part in schema.items()}


_RECORD = SchemaValidator(
    _whole(
        TypeAdapter(
            Annotated[Record, Field(discriminator="type")], config=ConfigDict(strict=True, extra="forbid")
        ).core_schema
    )
)


def decode(line: bytes) -> Record:
    """The record that a line holds; DecodeError for anything that `encode` cannot have written."""
    try:
        if any(word in line for word in _NO_NUMBERS):
            from_json(line, allow_inf_nan=False)
        record = _RECORD.validate_json(line)
    except ValueError as refused:
        raise DecodeError(_why(line, refused)) from None
    if isinstance(record, RunRecord) and record.schema != SCHEMA_VERSION:
        raise DecodeError(_other_schema(record.schema))
    return cast("Record", record)


def _why(line: bytes, refused: ValueError) -> str:
    """What is wrong with a line that is no record."""
    try:
        data = from_json(line, allow_inf_nan=False)
    except ValueError as fault:
        return f"not valid JSON ({fault})"
    if isinstance(data, dict) and data.get("type") == "run" and data.get("schema") != SCHEMA_VERSION:
        return _other_schema(data.get("schema"))
    faults = cast("ValidationError", refused).errors(include_url=False)
    absent = [_place(fault) for fault in faults if fault["type"] == "missing"]
    if len(absent) == len(faults):
        return f"missing: {', '.join(absent)}"
    first = next(one for one in faults if one["type"] != "missing")
    return f"{_place(first)}: {first['msg']}, not {first['input']!r:.60}"


def _other_schema(found: object) -> str:
    return f"written by schema {found!r:.60}, this program reads {SCHEMA_VERSION}"


def foreign(path: Path) -> str:
    """Why a journal is none of this program, whose lines name their type; "" where it is, or is damaged."""
    try:
        with path.open("rb") as file:
            head = from_json(file.readline())
    except (OSError, ValueError):
        return ""
    if not isinstance(head, dict) or "type" not in head:
        return "written by another program"
    schema = head.get("schema", SCHEMA_VERSION)
    return "" if schema == SCHEMA_VERSION else _other_schema(schema)


def _place(fault: ErrorDetails) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
    return where.lstrip(".") or "record"
