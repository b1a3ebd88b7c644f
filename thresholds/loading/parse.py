"""A hardware file as checked sections: the valid parts, and a fault for everything that is not valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError

from thresholds.loading.extends import Family, near
from thresholds.loading.faults import Fault
from thresholds.loading.schema import REQUIRED, ROWS, TABLES, RowSection, Tables
from thresholds.selectors import Selector

_Model = TypeVar("_Model", bound=BaseModel)
_PLAIN = {
    "missing": "is missing; write it",
    "date_type": "must be a date without quotes and without a time: 2026-05-01",
    "finite_number": "must be a finite number",
}


@dataclass(frozen=True)
class Placed:
    """One row that is valid by itself: a [[limit]] or [[gap]], and its index over all files."""

    kind: str
    index: int
    section: RowSection
    distance: int  # how many `extends` lead from the file to the one that has the row


class Sections:
    """The valid sections of one file and of what it extends, and the faults of the others."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.family = Family(data, path)
        self.faults: list[Fault] = list(self.family.faults)
        self.tables = Tables()
        self.rows: list[Placed] = []
        if self.family.documents[0].raw is None:
            return
        found = {name: self.family.table(name) for name in TABLES if self.family.has(name)}
        good = [self._valid(Tables, {name: table}) for name, table in found.items()]
        given = {name: getattr(one, name) for one in good if one for name in one.model_fields_set}
        self.tables = Tables.model_construct(**given)
        self._required()
        self.rows = _in_force([row for kind in ROWS for row in self._rows(kind)])

    @property
    def part(self) -> bool:
        """Whether the file is only there to be extended."""
        return self.tables.hardware is not None and self.tables.hardware.part

    def fault(self, text: str, *path: str | int) -> None:
        """Note what is wrong at a key (or table), in the file that has it."""
        document, keys = self.family.place(*path)
        self.faults.append(document.fault(text, *keys))

    def where(self, kind: str, index: int) -> str:
        """The file and line of a row."""
        document, keys = self.family.place(kind, index)
        return f"{document.path.name}:{document.lines.of(*keys)}"

    def declared(self, name: str, key: str) -> int:
        """The distance of the file that has this key of a table."""
        return self.family.distance(self.family.place(name, key)[0])

    def _required(self) -> None:
        """Report missing sections, unless a parent could not be read, which may have them."""
        for name in ("hardware",) if self.part else REQUIRED:
            if self.family.whole and not self.family.has(name):
                self.fault(f"section [{name}] is missing; write it")

    def _rows(self, kind: str) -> Iterator[Placed]:
        for index, raw in enumerate(self.family.rows(kind)):
            row = self._valid(ROWS[kind], raw, kind, index)
            if row is not None:
                yield Placed(kind, index, row, self.family.distance(self.family.place(kind, index)[0]))

    def _valid(self, model: type[_Model], raw: object, *path: str | int) -> _Model | None:
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            for found in error.errors(include_url=False, include_context=False):
                keys = (*path, *(key for key in found["loc"] if key != "[key]"))
                elsewhere = found["type"] == "missing" and keys[0] in TABLES and keys[0] != "hardware"
                if self.family.whole or not elsewhere:  # else the unreadable file may have it
                    self.fault(_sentence(model, found["type"], found["msg"], keys), *keys)
            return None


def _in_force(rows: list[Placed]) -> list[Placed]:
    """The rows that count: those of a nearer file replace farther ones with equal metric and selectors."""
    nearest: dict[tuple[object, ...], int] = {}
    for row in rows:
        for key in _keys(row):
            nearest[key] = min(row.distance, nearest.get(key, row.distance))
    held = []
    for row in rows:
        kept = [
            name
            for name, key in zip(row.section.metric, _keys(row), strict=True)
            if nearest[key] == row.distance
        ]
        if kept:
            section = row.section.model_copy(update={"metric": kept})
            held.append(Placed(row.kind, row.index, section, row.distance))
    return held


def _keys(row: Placed) -> list[tuple[object, ...]]:
    """The metric and selectors of a row, for each of its metrics."""

    def about(selector: Selector) -> tuple[object, ...]:
        return selector.values, selector.low, selector.high

    selectors = tuple(sorted((name, about(one)) for name, one in row.section.selectors().items()))
    return [(metric, selectors) for metric in row.section.metric]


def _sentence(model: type[BaseModel], kind: str, message: str, keys: tuple[str | int, ...]) -> str:
    where = ".".join(key for key in keys if isinstance(key, str)) or "the file"
    if kind == "extra_forbidden":
        return f"unknown key {where}{near(str(keys[-1]), _known(model, keys))}"
    if kind in ("model_type", "dict_type"):
        return f"{where} must be a table"
    text = _PLAIN.get(kind, message.removeprefix("Value error, "))
    return f"{where}{' ' if kind in _PLAIN else ': '}{text}"


def _known(model: type[BaseModel], keys: tuple[str | int, ...]) -> list[str]:
    """The known keys of the table (or nested table) that has the last key."""
    for key in keys[:-1]:
        field = model.model_fields.get(str(key))
        for inner in (field.annotation, *get_args(field.annotation)) if field else ():
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    return [field.alias or name for name, field in model.model_fields.items()]
