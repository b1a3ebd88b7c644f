"""Records to plain JSON objects and back; the way back believes nothing."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from reports.clean import scrub
from reports.record import (
    SCHEMA_VERSION,
    CheckRecord,
    EndRecord,
    JobRecord,
    NodeRecord,
    PlanRecord,
    Record,
    RunRecord,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TYPES: Mapping[str, type[Record]] = {
    "run": RunRecord,
    "plan": PlanRecord,
    "node": NodeRecord,
    "job": JobRecord,
    "check": CheckRecord,
    "end": EndRecord,
}
_NAMES = {cls: name for name, cls in TYPES.items()}
_NON_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})


class DecodeError(ValueError):
    """A JSON value that is no record of this schema; the text says what is wrong where."""


def encode(record: Record) -> dict[str, object]:
    """The record as a JSON object with its `type`, without secrets and control bytes."""
    fields = dataclasses.fields(record)
    return {"type": _NAMES[type(record)], **{item.name: scrub(getattr(record, item.name)) for item in fields}}


def decode(data: object) -> Record:
    """The record that a JSON object holds; DecodeError for anything that `encode` would not have written."""
    if not isinstance(data, dict):
        raise DecodeError("not a JSON object")
    fields = dict(data)
    name = fields.pop("type", None)
    if not isinstance(name, str) or name not in TYPES:
        raise DecodeError(f"unknown record type {name!r}, known are {', '.join(TYPES)}")
    if name == "run" and fields.get("schema") != SCHEMA_VERSION:
        raise DecodeError(f"written by schema {fields.get('schema')!r}, this program reads {SCHEMA_VERSION}")
    return typing.cast("Record", _dataclass(TYPES[name], fields, name))


def _dataclass(cls: type[DataclassInstance], data: object, where: str) -> object:
    if not isinstance(data, dict):
        raise DecodeError(f"{where}: expected an object, found {data!r:.60}")
    fields = {item.name: item for item in dataclasses.fields(cls)}
    if unknown := sorted(set(data) - set(fields)):
        raise DecodeError(f"{where}: unknown field {', '.join(unknown)}")
    # Every field is always written, so an absent one means another writer or a damaged line.
    if missing := sorted(set(fields) - set(data)):
        raise DecodeError(f"{where}: missing field {', '.join(missing)}")
    hints = _hints(cls)
    return cls(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in data.items()})


@functools.cache
def _hints(cls: type[DataclassInstance]) -> dict[str, object]:
    return typing.get_type_hints(cls)


def _value(hint: object, value: object, where: str) -> object:
    if hint is Any:
        return value
    if arguments := typing.get_args(hint):
        return _compound(typing.get_origin(hint), arguments, value, where)
    if not isinstance(hint, type):
        raise TypeError(f"{where}: a record may not have a field of type {hint!r}")
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, value, where)
    return _enum(hint, value, where) if issubclass(hint, Enum) else _SCALARS[hint](value, where)


def _compound(origin: object, arguments: tuple[object, ...], value: object, where: str) -> object:
    if origin is tuple:
        return tuple(_items(arguments[0], value, where))
    if origin in (types.UnionType, typing.Union):
        return _either(arguments, value, where)
    return _mapping(arguments[1], value, where)


def _either(hints: tuple[object, ...], value: object, where: str) -> object:
    """A union of scalars: the value of whichever fits."""
    faults = []
    if value is None and type(None) in hints:
        return None
    for hint in hints:
        try:
            return _value(hint, value, where)
        except DecodeError as fault:
            faults.append(str(fault))
    raise DecodeError(faults[0])


def _items(hint: object, value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise DecodeError(f"{where}: expected a list, found {value!r:.60}")
    return [_value(hint, item, f"{where}[{index}]") for index, item in enumerate(value)]


def _mapping(hint: object, value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise DecodeError(f"{where}: expected an object, found {value!r:.60}")
    return {key: _value(hint, item, f"{where}[{key!r}]") for key, item in value.items()}


def _enum(hint: type[Enum], value: object, where: str) -> Enum:
    try:
        return hint(value)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in hint)
        raise DecodeError(f"{where}: {value!r:.60} is none of {allowed}") from None


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise DecodeError(f"{where}: expected text, found {value!r:.60}")
    return value


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise DecodeError(f"{where}: expected true or false, found {value!r:.60}")
    return value


def _whole(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DecodeError(f"{where}: expected a whole number, found {value!r:.60}")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, str) and value in _NON_FINITE:
        return float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise DecodeError(f"{where}: expected a number, found {value!r:.60}")
    try:
        return float(value)
    except OverflowError as error:
        raise DecodeError(f"{where}: a whole number that no float can hold") from error


def _nothing(value: object, where: str) -> None:
    raise DecodeError(f"{where}: expected null, found {value!r:.60}")


_SCALARS: Mapping[type, Callable[[object, str], object]] = {
    str: _text,
    bool: _truth,
    int: _whole,
    float: _number,
    type(None): _nothing,
}
