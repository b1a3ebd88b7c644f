"""What differs between two hardware files, or between a hardware file and what a run measured."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from thresholds.bounds import BoundError, asked
from thresholds.calibrate import runs
from thresholds.calibrate.runs import Figure, Run
from thresholds.calibrate.sift import Key, key_of
from thresholds.hardware import Gap, Hardware, Limit
from thresholds.loading.extends import Family, Unreadable, contents
from thresholds.loading.faults import HardwareFileError
from thresholds.loading.load import load, resolve
from thresholds.loading.schema import TABLES
from thresholds.lookup import LimitError, absent, describe, find, idle_rows
from thresholds.selectors import Selector
from thresholds.units import METRICS, format_number
from thresholds.verdict import subject

_RowKey = tuple[str, tuple[tuple[str, str], ...]]
_NAMES = (("hardware", "name"), ("hardware", "about"), ("hardware", "extends"))  # which always differ
_GAP = "gap"
MOST_LETTERS = 60  # of a fact in a column


class BadInput(Exception):
    """What was given cannot be compared; the text holds every reason."""


@dataclass(frozen=True)
class Comparison:
    """The differences, a line each, and whether anything differs."""

    lines: tuple[str, ...]
    differs: bool


def diff(first: str, second: str) -> Comparison:
    """Compare a hardware file with another, or with a run."""
    if is_run(first):
        raise BadInput(f"{first} is a run; name a hardware file first, and then a run or another file")
    faults: list[str] = []
    files = [file for word in (first, second) if not is_run(word) for file in _loaded(word, faults)]
    run = runs.read(second) if is_run(second) else None
    if run is not None and not run.id:
        faults += run.faults
    if faults:
        raise BadInput("\n".join(faults))
    if run is not None:
        return _with_run(files[0], run)
    lines = tuple(_with_file(*files))
    return Comparison(lines, bool(lines))


def is_run(word: str) -> bool:
    """Whether a word of the command line names a run: a directory, or a journal."""
    return word.endswith(".jsonl") or Path(word).is_dir()


def _loaded(word: str, faults: list[str]) -> Iterator[Hardware]:
    try:
        yield load(resolve(word))
    except HardwareFileError as error:
        faults.append(str(error))


# two files


def _with_file(old: Hardware, new: Hardware) -> Iterator[str]:
    facts = [(name, _text(left), _text(right)) for name, left, right in _facts(old, new)]
    rows = [
        (metric, ", ".join(f"{name} = {text}" for name, text in selectors) or "every case", left, right)
        for (metric, selectors), left, right in _rows(old, new)
    ]
    yield from _columns(("fact", old.name, new.name), facts)
    yield from [""] if facts and rows else []
    yield from _columns(("figure", "for", old.name, new.name), rows)


def _facts(old: Hardware, new: Hardware) -> Iterator[tuple[str, object, object]]:
    left, right = _flat(old), _flat(new)
    for key in sorted({*left, *right}):
        if key not in _NAMES and left.get(key) != right.get(key):
            yield ".".join(key), left.get(key), right.get(key)


def _flat(file: Hardware) -> dict[tuple[str, ...], object]:
    assert file.path is not None
    try:
        family = Family(contents(file.path), file.path)
    except Unreadable as error:
        raise BadInput(f"{file.path}: {error}") from error
    return {(name, key): value for name in TABLES for key, value in family.table(name).items()}


def _text(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 4]} ..."


def _rows(old: Hardware, new: Hardware) -> Iterator[tuple[_RowKey, str, str]]:
    """The rows that differ: limits, and gaps, which declare that there is no limit."""
    left, right = _judging(old), _judging(new)
    for key in sorted({*left, *right}):
        before, after = left.get(key), right.get(key)
        if _said(before) != _said(after):
            yield key, _said(before), _said(after) + _per_cent(before, after)


def _judging(file: Hardware) -> dict[_RowKey, Limit | Gap]:
    found: dict[_RowKey, Limit | Gap] = {}
    rows: tuple[Limit | Gap, ...] = (*file.limits, *file.gaps)
    for row in rows:
        selectors = tuple(sorted((name, _canonical(one)) for name, one in row.selectors.items()))
        found.update({(metric, selectors): row for metric in row.metrics})
    return found


def _canonical(selector: Selector) -> str:
    """The same text for equal sets, whatever their order in the file."""
    if selector.values is None or len(selector.values) < 2:
        return selector.text
    return " | ".join(sorted(repr(value) if value == "" else str(value) for value in selector.values))


def _said(row: Limit | Gap | None) -> str:
    if not isinstance(row, Limit):
        return "-" if row is None else _GAP
    unit = "" if row.kind == "min_of_bound" else METRICS[row.metrics[0]].unit
    samples = "" if row.min_samples == 10 else f" of {row.min_samples} samples"
    return f"{row.kind} {row.value:g} {unit}".rstrip() + samples


def _per_cent(before: Limit | Gap | None, after: Limit | Gap | None) -> str:
    if not isinstance(before, Limit) or not isinstance(after, Limit):
        return ""
    if before.kind != after.kind or not before.value or before.value == after.value:
        return ""
    return f" ({100 * (after.value / before.value - 1):+.1f} %)"


# a file and a run


def _with_run(file: Hardware, run: Run) -> Comparison:
    cases: dict[Key, list[Figure]] = {}
    for figure in run.figures:
        if absent(file, figure.case) is None:
            cases.setdefault(key_of(figure), []).append(figure)
    held: list[tuple[str, ...]] = []
    idle = idle_rows(file, ((metric, dict(case)) for metric, case in cases))
    rest = [f"judged nothing: {row.where}: {describe(row)}" for row in idle]
    rest += [f"not a sound run: {fault}" for fault in run.faults]
    for (metric, _), group in cases.items():
        try:
            held.append(_margin(file, find(file, metric, group[0].case), group))
        except LimitError as error:
            rest += [f"no row: {error}"] if any(one.judged for one in group) else []
        except BoundError as error:
            rest.append(f"no limit: {subject(metric, group[0].case)}: {error}")
    table = _columns(("row", "figure", "limit", "measured", "n", "margin"), held)
    unmet = any(line[-1].startswith("-") for line in held)
    return Comparison((*table, *sorted(rest)), unmet or bool(rest))


def _margin(file: Hardware, row: Limit, group: Sequence[Figure]) -> tuple[str, ...]:
    """The limit, the median of all nodes and rounds, and how far it is on the good side."""
    metric, unit = group[0].metric, METRICS[group[0].metric].unit
    measured = statistics.median(one.value for one in group)
    limit = statistics.median(asked(row, one.case, file.line_rate, one.copy_rate) for one in group)
    better = 1 if row.kind != "max" else -1
    room = 100 * better * (measured / limit - 1) if limit else -100.0 * (measured > 0)
    room += 0.0  # turns -0.0 into 0.0
    return (
        row.where,
        subject(metric, group[0].case),
        f"{'<=' if row.kind == 'max' else '>='} {format_number(limit, measured)} {unit}".rstrip(),
        f"{format_number(measured, limit)} {unit}".rstrip(),
        str(len(group)),
        f"{room:+.1f} %" if room >= 0 else f"{min(room, -0.1):+.1f} %",
    )


# columns


def _columns(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """The rows under their head in aligned columns; nothing when there is no row."""
    table = [head, *sorted(rows, key=_natural)]
    if len(table) == 1:
        return
    widths = [max(len(line[at]) for line in table) for at in range(len(head))]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _natural(line: Sequence[str]) -> list[list[str]]:
    """A sort key by which file:9 comes before file:10."""
    return [
        [part.zfill(9) if part.isdigit() else part for part in re.split("([0-9]+)", cell)] for cell in line
    ]
