"""Write a hardware file: tables as they were found, and a row for every figure."""

from __future__ import annotations

import datetime
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from thresholds.calibrate.rows import WANTED_ITERATIONS, Made
from thresholds.selectors import READERS
from thresholds.units import format_size

LONGEST_TEXT = 1900
_WIDTH = 116


def text_of(tables: Mapping[str, Mapping[str, object]], made: Iterable[Made], day: datetime.date) -> str:
    """The tables and rows as TOML."""
    parts = ["\n".join(_table(name, keys)) for name, keys in tables.items() if keys]
    parts += ["\n".join(_row(row, day)) for row in made]
    return "\n\n".join(parts) + "\n"


def comment(paragraphs: Sequence[str]) -> str:
    """Paragraphs as a comment."""
    lines = [line for text in paragraphs for line in textwrap.wrap(_clean(text), _WIDTH) or [""]]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _table(name: str, keys: Mapping[str, object]) -> Iterator[str]:
    yield f"[{name}]"
    for key, value in keys.items():
        yield f"{key} = {literal(value)}"


def _row(row: Made, day: datetime.date) -> Iterator[str]:
    yield "[[gap]]" if row.value is None else "[[limit]]"
    yield f"metric = {literal(row.metric)}"
    for name in READERS:
        value = row.case.get(name)
        if value not in (None, "", 0):
            size = name == "size" and isinstance(value, int)
            yield f"{name} = {literal(format_size(int(value)) if size else value)}"
    if row.value is None:
        yield f"reason = {literal(row.source[:LONGEST_TEXT])}"
        return
    yield f"{row.kind} = {literal(row.value)}"
    yield f"source = {literal(row.source[:LONGEST_TEXT])}"
    yield f"date = {day.isoformat()}"
    if row.min_samples != WANTED_ITERATIONS:
        yield f"min_samples = {row.min_samples}"


def literal(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {literal(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    return json.dumps(_clean(str(value)), ensure_ascii=False)  # JSON and TOML write printable strings alike


def _clean(text: str) -> str:
    """The text without characters that a line of TOML or UTF-8 cannot hold: names come from anywhere."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
