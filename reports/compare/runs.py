"""A finished run reduced to what can be compared: series of seconds, figures, outcomes, environment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from reports.audit import cut_short, head
from reports.begin import JOURNAL
from reports.journal import Scan, scan
from reports.notation import number
from reports.notation import size as size_text
from reports.record import FIRST_INVENTORY, READY, CheckRecord, JobRecord, NodeRecord, Record, RunRecord
from reports.render import with_workers

Key = tuple[str, str, str]  # the nodes it was measured on, the check, the series or the metric
_LABELS = ("metric", "what", "load", "name", "from", "to")
# Numbers that differ at every reading, and say nothing about the machine.
_READINGS = {
    FIRST_INVENTORY,
    "hugepages_free",
    "pid",
    "power_w",
    "processes",
    "sm_mhz",
    "memory_mhz",
    "temperature_c",
    "throttle",
}
_READING_ENDS = ("_s", "_free_bytes", "_available_bytes")
_RATES = "_per_s"
_ABSENT = "-"


class UnreadableError(Exception):
    """No run can be read there; says why."""


@dataclass(frozen=True)
class Run:
    """One journal. `cut` says why the run ended before its plan; "" when it did not."""

    path: Path
    first: RunRecord
    records: Sequence[Record]
    cut: str

    @property
    def checks(self) -> list[CheckRecord]:
        """Its checks of nodes, in the order in which they reported; the self-check is about none."""
        return [record for record in self.records if isinstance(record, CheckRecord) and record.nodes]


def read(place: Path, measurements: bool = True) -> Run:
    """Read a report directory or a journal; raises UnreadableError, also for one of another schema."""
    path = place / JOURNAL if place.is_dir() else place
    found = scanned(place, path, measurements)
    first = head(found.records)
    if found.faults or first is None:
        why = "; ".join(found.faults[:3]) or "it is empty"
        raise UnreadableError(f"{path}: {why}")
    records = with_workers(found.records, path.parent, measurements)
    return Run(path, first, records, cut_short(records))


def scanned(place: Path, path: Path, measurements: bool = True) -> Scan:
    """The journal of a report directory; raises UnreadableError where it cannot be read."""
    try:
        return scan(path, measurements)
    except OSError as fault:
        raise UnreadableError(f"{place}: no journal can be read: {fault.strerror or fault}") from None


def series(run: Run) -> dict[Key, list[float]]:
    """Every series of seconds (one per iteration), of the rank with the slowest median.

    Checks that were measured together have the same samples, which count only for the first of them.
    """
    found: dict[Key, list[float]] = {}
    owners: dict[tuple[float, ...], str] = {}
    for check in run.checks:
        for part in check.parts:
            nodes = ", ".join(part.nodes)
            for rank in part.measurement.get("ranks") or ():
                for label, seconds in _numbered(rank.get("result")):
                    key = (nodes, owners.setdefault(tuple(seconds), short(check)), label)
                    if key not in found or median(seconds) > median(found[key]):
                        found[key] = seconds
    return found


def _numbered(result: object) -> Iterator[tuple[str, list[float]]]:
    """The series of one rank; those of one label are numbered."""
    times: Counter[str] = Counter()
    for label, seconds in _timed(result):
        times[label] += 1
        yield (label if times[label] == 1 else f"{label} #{times[label]}"), seconds


def _timed(value: object) -> Iterator[tuple[str, list[float]]]:
    if isinstance(value, Mapping):
        seconds = value.get("seconds")
        if (
            isinstance(seconds, list)
            and seconds
            and all(isinstance(one, int | float) and math.isfinite(one) and one > 0 for one in seconds)
        ):
            yield _label(value), seconds
        else:
            yield from (one for item in value.values() for one in _timed(item))
    elif isinstance(value, list):
        yield from (one for item in value for one in _timed(item))


def _label(entry: Mapping[str, Any]) -> str:
    words = [str(entry[name]) for name in _LABELS if entry.get(name)]
    size = entry.get("size_bytes")
    return " ".join([*words, *([size_text(size)] if isinstance(size, int) else [])]) or "seconds"


def values(run: Run) -> dict[Key, tuple[float, str]]:
    """Every figure that was judged and has a unit, with that unit."""
    found: dict[Key, tuple[float, str]] = {}
    for check in run.checks:
        for part in check.parts:
            for one in part.judgements:
                if one.value is not None and one.unit:
                    size = one.case.get("size")
                    what = f"{one.metric} {size_text(size)}" if isinstance(size, int) else one.metric
                    found[", ".join(part.nodes), short(check), what] = (one.value, one.unit)
    return found


def table(runs: Sequence[Run]) -> Iterator[str]:
    """The runs, oldest first, then a row per figure that was judged; "-" where a run did not judge it."""
    ordered = sorted(runs, key=lambda run: run.first.started)
    for place, run in enumerate(ordered, start=1):
        cut = f"  (cut short: {run.cut})" if run.cut else ""
        yield f"{place}: {run.first.run_id}  {run.first.started}  {run.path}{cut}"
    told = [values(run) for run in ordered]
    rows = [("nodes", "check", "metric", "unit", *(str(place + 1) for place in range(len(ordered))))]
    for key in sorted({key for one in told for key in one}):
        found = [one.get(key) for one in told]
        unit = next(value[1] for value in found if value is not None)
        rows.append((*key, unit, *(_ABSENT if value is None else number(value[0]) for value in found)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        words = [cell.ljust(width) for cell, width in zip(row[:4], widths[:4], strict=True)]
        figures = [cell.rjust(width) for cell, width in zip(row[4:], widths[4:], strict=True)]
        yield "  ".join([*words, *figures]).rstrip()


def short(check: CheckRecord) -> str:
    """The id of a check without the prefix that all of them share."""
    return check.id.removeprefix("suites/")


def outcomes(run: Run) -> dict[str, str]:
    """The outcome of each check."""
    return {short(check): check.outcome.value for check in run.checks}


def environment(run: Run) -> dict[str, dict[str, object]]:
    """The environment of the run and of each node, leaf by leaf, without readings that always differ.

    Of a node that was never ready only its state is given.
    """
    first = run.first
    about = {"versions": first.versions, "workload": first.workload, "hardware": first.hardware}
    told: dict[str, Any] = {"run": {**about, "controller": first.controller, "hosts": first.hosts}}
    for record in run.records:
        if isinstance(record, NodeRecord):
            known = {"hardware": record.hardware, **record.facts} if record.state == READY else {}
            told.setdefault(record.name, {}).update({**known, "state": record.state})
        elif isinstance(record, JobRecord):
            for facts in (told[name] for name in record.nodes if "hardware" in told.get(name, {})):
                facts.setdefault("job environment", {}).update(record.environment)
    return {name: dict(leaves(facts, name)) for name, facts in told.items()}


def leaves(value: object, at: str) -> Iterator[tuple[str, object]]:
    """Every fact below `value` with its path, without readings, which always differ."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not _is_reading(str(name)):
                yield from leaves(item, f"{at}.{name}" if at else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            own = item.get("name", index) if isinstance(item, Mapping) else index
            yield from leaves(item, f"{at}[{own}]")
    else:
        yield at, value


def _is_reading(name: str) -> bool:
    return name in _READINGS or (name.endswith(_READING_ENDS) and not name.endswith(_RATES))
