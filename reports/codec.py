"""Records as JSON objects. Reading is strict: it accepts only lines that `encode` could have written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Annotated, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from reports.record import SCHEMA_VERSION, Record
from reports.text import scrub

_RECORD: TypeAdapter[Record] = TypeAdapter(
    Annotated[Record, Field(discriminator="type")], config=ConfigDict(strict=True, extra="forbid")
)


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
