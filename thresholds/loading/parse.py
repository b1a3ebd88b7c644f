"""A hardware file as checked sections: the valid parts, and a fault for everything that is not valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError

from thresholds.loading.extends import Document, Family, near
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
    """One row that is valid by itself: a [[limit]] or [[gap]], and where it stands."""

    document: Document
    distance: int  # how many `extends` lead from the file to the one that has the row
    keys: tuple[str, int]
    section: RowSection

    @property
    def where(self) -> str:
        """Its file and line."""
        return f"{self.document.path.name}:{self.document.lines.of(*self.keys)}"


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
        self.rows = _in_force([*self._rows()])

    @property
    def part(self) -> bool:
        """Whether the file is only there to be extended."""
        return self.tables.hardware is not None and self.tables.hardware.part

    def fault(self, text: str, *keys: str | int, at: Document | None = None) -> None:
        """Note what is wrong at a key (or table), in this file or in the one that has it."""
        self.faults.append((at or self.family.having(*keys)).fault(text, *keys))

    def declared(self, name: str, key: str) -> int:
        """The distance of the file that has this key of a table."""
        return self.family.documents.index(self.family.having(name, key))

    def _required(self) -> None:
        """Report missing sections, unless a parent could not be read, which may have them."""
        for name in ("hardware",) if self.part else REQUIRED:
            if self.family.whole and not self.family.has(name):
                self.fault(f"section [{name}] is missing; write it")

    def _rows(self) -> Iterator[Placed]:
        for document, distance, keys, raw in self.family.rows():
            section = self._valid(ROWS[keys[0]], raw, *keys, at=document)
            if section is not None:
                yield Placed(document, distance, keys, section)

    def _valid(
        self, model: type[_Model], raw: object, *path: str | int, at: Document | None = None
    ) -> _Model | None:
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            for found in error.errors(include_url=False, include_context=False):
                keys = (*path, *(key for key in found["loc"] if key != "[key]"))
                elsewhere = found["type"] == "missing" and keys[0] in TABLES and keys[0] != "hardware"
                if self.family.whole or not elsewhere:  # else the unreadable file may have it
                    self.fault(_sentence(model, found["type"], found["msg"], keys), *keys, at=at)
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
            held.append(replace(row, section=row.section.model_copy(update={"metric": kept})))
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
