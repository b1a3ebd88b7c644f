"""A TOML text as checked sections: what can be used of it, and a fault for everything that cannot."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TypeVar

import tomllib
from pydantic import BaseModel, ValidationError

from thresholds.faults import Fault
from thresholds.lines import Lines
from thresholds.schema import LOOSE, REQUIRED, ROWS, SECTIONS, TABLES, Loose, Raw, RowSection, Section

LARGEST_BYTES = 1 << 20
_Model = TypeVar("_Model", bound=BaseModel)
_PLAIN = {
    "missing": "is missing; write it",
    "date_type": "must be a date without quotes and without a time: 2026-05-01",
    "finite_number": "must be a finite number",
}


class Sections:
    """The sections of one file that passed on their own, and the faults of those that did not."""

    def __init__(self, file: str, data: bytes) -> None:
        self.file = file
        self.faults: list[Fault] = []
        self.tables: dict[str, Section] = {}
        self.rows: list[tuple[str, int, RowSection]] = []  # kind, index, row
        self.loose = Loose()
        self.lines = Lines("")
        self._read(data)

    def fault(self, text: str, *path: str | int) -> None:
        """Note what is wrong at a key (or table) of the file."""
        self.faults.append(Fault(self.file, self.lines.of(*path), text))

    def _read(self, data: bytes) -> None:
        text = self._text(data)
        raw = None if text is None else self._toml(text)
        if raw is None or text is None:
            return
        self.lines = Lines(text)
        self._check_names(raw)
        for name in TABLES:
            self._table(name, raw)
        self._loose(raw)
        for kind in ROWS:
            self._rows(kind, raw.get(kind, []))

    def _text(self, data: bytes) -> str | None:
        if len(data) > LARGEST_BYTES:
            self.fault(f"the file has {len(data)} bytes; a hardware file has at most {LARGEST_BYTES}")
            return None
        try:
            return data.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            self.faults.append(Fault(self.file, line, "this is not UTF-8 text; save the file as UTF-8"))
            return None

    def _toml(self, text: str) -> Raw | None:
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = re.search(r" \(at line ([0-9]+), column ([0-9]+)\)$", str(error))
            line = int(found[1]) if found else text.count("\n") + 1
            self.faults.append(Fault(self.file, line, f"not TOML: {error}"))
        except (RecursionError, ValueError) as error:
            self.fault(f"not TOML that can be read: {error}")
        return None

    def _check_names(self, raw: Raw) -> None:
        for name in raw:
            if name not in SECTIONS:
                self.fault(f"unknown section [{name}]{_near(name, SECTIONS)}", name)
        for name in REQUIRED:
            if name not in raw:
                self.fault(f"section [{name}] is missing; write it")

    def _table(self, name: str, raw: Raw) -> None:
        if name in raw and (table := self._valid(TABLES[name], raw[name], name)) is not None:
            self.tables[name] = table

    def _loose(self, raw: Raw) -> None:
        parts = [self._valid(Loose, {name: raw[name]}) for name in LOOSE if name in raw]
        given = {name: getattr(part, name) for part in parts if part for name in part.model_fields_set}
        self.loose = Loose.model_construct(**given)

    def _rows(self, kind: str, rows: object) -> None:
        if not isinstance(rows, list):
            self.fault(f"{kind} must be rows; write [[{kind}]] with two brackets", kind)
            return
        for index, raw in enumerate(rows):
            row = self._valid(ROWS[kind], raw, kind, index)
            if row is not None:
                self.rows.append((kind, index, row))

    def _valid(self, model: type[_Model], raw: object, *path: str | int) -> _Model | None:
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            for found in error.errors(include_url=False, include_context=False):
                keys = (*path, *(key for key in found["loc"] if key != "[key]"))
                self.fault(_sentence(model, found["type"], found["msg"], keys), *keys)
            return None


def _sentence(model: type[BaseModel], kind: str, message: str, keys: tuple[str | int, ...]) -> str:
    where = _dotted(keys)
    if kind == "extra_forbidden":
        return f"unknown key {where}{_near(str(keys[-1]), model.model_fields)}"
    if kind in ("model_type", "dict_type"):
        return f"{where} must be a table"
    text = _PLAIN.get(kind, message.removeprefix("Value error, "))
    return f"{where}{' ' if kind in _PLAIN else ': '}{text}"


def _dotted(keys: tuple[str | int, ...]) -> str:
    return ".".join(str(key) for key in keys if isinstance(key, str)) or "the file"


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else f"; known are: {', '.join(known)}"
