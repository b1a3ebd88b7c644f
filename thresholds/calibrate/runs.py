"""Read the journals of finished runs as figures, or give all reasons why they cannot be used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reports.audit import cut_short, examine, head
from reports.begin import JOURNAL
from reports.compare.earlier import kind_of
from reports.journal import scan
from reports.record import BlameKind, CheckRecord, JobRecord, Judgement, NodeRecord, Outcome, Record
from thresholds.lookup import Case
from thresholds.selectors import READERS
from thresholds.units import METRICS, format_size, is_finite

LARGEST, SMALLEST = 1e15, 1e-15  # beyond any real figure in any unit, and sums stay finite
LONGEST_NAME = 255  # of a host, by DNS
MOST_SHOWN = 20
_LIBRARY = re.compile(r"lib(nccl|rccl)\.so\.([0-9][0-9.]*)")


@dataclass(frozen=True)
class Figure:
    """One value of one metric, as one run measured it in one world.

    `variant` distinguishes checks that share a metric and its selectors. A figure that is not `judged` is
    on record only. `share` is the part of the physical bound, where that is known.
    """

    run: str
    nodes: tuple[str, ...]
    metric: str
    case: Case
    variant: str
    value: float
    samples: int
    copy_rate: float | None = None
    judged: bool = True
    share: float | None = None

    @property
    def number(self) -> float:
        """What is compared: the share of the bound, or else the value itself."""
        return self.value if self.share is None else self.share


@dataclass(frozen=True)
class Run:
    """One journal. `said`: the nodes' identities, `versions`: what ran there, `sizes`: the sweep in bytes."""

    path: Path
    id: str = ""
    started: str = ""
    workload: str = ""
    hardware: str = ""
    selection: str = ""
    said: Mapping[str, Mapping[str, str | int]] = field(default_factory=dict)
    versions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    sizes: frozenset[int] = frozenset()
    faults: tuple[str, ...] = ()


def read(word: str) -> Run:
    """Read a run and all its faults; `word` is its report directory or its journal.

    A journal that cannot be read gives only its faults.
    """
    path = Path(word)
    try:
        path = path / JOURNAL if path.is_dir() else path
        found = scan(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Run(Path(word), faults=(f"{word}: no journal can be read: {reason}",))
    if found.faults:
        return Run(path, faults=tuple(f"{path}, {fault}" for fault in found.faults[:MOST_SHOWN]))
    return _run(path, found.records)


def _run(path: Path, records: Sequence[Record]) -> Run:
    first = head(records)
    if first is None:
        return Run(path, faults=(f"{path}: the journal is empty",))
    checks = [record for record in records if isinstance(record, CheckRecord)]
    nodes = [record for record in records if isinstance(record, NodeRecord)]
    said = {node.name: _identity(node.facts) for node in nodes}
    faults = [f"{path}: {fault}" for fault in _faults(records, checks, first.hardware == "none")]
    return Run(
        path=path,
        id=first.run_id,
        started=first.started,
        workload=first.workload,
        hardware=first.hardware,
        selection=first.selection,
        said=said,
        versions=_versions(records),
        figures=tuple(figure for check in checks for figure in _figures(first.run_id, check)),
        sizes=frozenset(size for check in checks for size in _swept(check)),
        faults=tuple(faults[:MOST_SHOWN]),
    )


# whether a run can be believed


def _faults(records: Sequence[Record], checks: Sequence[CheckRecord], unjudged: bool) -> Iterator[str]:
    if why := cut_short(records):
        yield f"the run was cut short: {why}"
    ledger = examine(records)
    yield from (fault.sentence for fault in ledger.faults)
    yield from (f"{entry.check} was planned and never reported" for entry in ledger.not_reported)
    for node in (record for record in records if isinstance(record, NodeRecord)):
        if node.state != "ready":
            yield f"{node.name} was {node.state}: {node.reason}"
        elif not {"gpu", "fabric"} <= _identity(node.facts).keys():
            yield f"nothing says what hardware {node.name} is (gpu, fabric)"
        if len(node.name) > LONGEST_NAME:
            yield f"a node's name has {len(node.name)} letters"
    for check in checks:
        if why := _trouble(check, unjudged):
            yield f"{check.name}: {why}"
        for one in check.judgements:
            if _is_figure(one) and (why := unselectable(one.case)):
                yield f"{check.name}: no row can select what was measured: {why}"


def _trouble(check: CheckRecord, unjudged: bool) -> str:
    """Why a check speaks against its run.

    A figure that is too low for a file, or has no row, does not. Without a hardware file (`unjudged`) a
    comparison that lacked what only a file says does not either. Hangs and crashes leave no judgement.
    """
    for blame in check.blame:
        if blame.kind is BlameKind.WRONG_DATA:
            return f"wrong data: {blame.sentence}"
    if check.outcome in (Outcome.PASS, Outcome.NOT_APPLICABLE):
        return ""
    bad = [one for one in check.judgements if one.outcome in (Outcome.FAIL, Outcome.UNCHECKED)]
    if bad and all(_is_figure(one) or (unjudged and one.outcome is Outcome.UNCHECKED) for one in bad):
        return ""
    return f"{check.outcome.value}: {check.reason or 'without a reason'}"


def _is_figure(judgement: Judgement) -> bool:
    return judgement.metric in METRICS and _plausible(judgement.metric, judgement.value)


def _plausible(metric: str, value: object) -> bool:
    if not is_finite(value) or not 0 <= value <= LARGEST:
        return False
    return value <= 1 if METRICS[metric].share else value >= SMALLEST or METRICS[metric].unit == ""


# figures


def _figures(run: str, check: CheckRecord) -> Iterator[Figure]:
    """The figures that were judged, and those that are only on record."""
    copy = check.recorded.get("copy_gigabytes_per_s")
    rate = float(copy) if is_finite(copy) and SMALLEST <= copy <= LARGEST else None
    found: list[tuple[str, Case, float, bool]] = [
        (one.metric, one.case, float(one.value), True)
        for one in check.judgements
        if _is_figure(one) and one.value is not None
    ]
    named = {metric for metric, *_ in found}
    told = check.recorded.get("figures")
    for case in [one.case for one in check.judgements if one.metric == "figures"][:1]:
        for metric, value in told.items() if isinstance(told, dict) else ():
            if metric in METRICS and metric not in named and _plausible(metric, value):
                found.append((metric, case, float(value), False))
    variant = f"{check.suite}::{kind_of(check.name, check.nodes)}"
    for metric, case, value, judged in found:
        if check.nodes and not unselectable(case):
            samples = _samples(check, metric, case)
            yield Figure(run, check.nodes, metric, case, variant, value, samples, rate, judged)


def unselectable(case: Case) -> str:
    """Why no row can select this case; "" when one can."""
    for name, value in case.items():
        if name in READERS and value not in ("", 0):
            try:
                READERS[name](format_size(value) if name == "size" and isinstance(value, int) else value)
            except ValueError as error:
                return f"{name}: {error}"
    return ""


def _samples(check: CheckRecord, metric: str, case: Case) -> int:
    """How many samples a figure was made of: of its size, of pairs, or of its series on each device."""
    for entry in _dicts(check.recorded.get("sweep")):
        if entry.get("size_bytes") == case.get("size") and "size" in case:
            return _count(entry.get("samples"))
    counts = [_count(pair.get("samples")) for pair in _dicts(check.recorded.get("pairs"))]
    for rank in () if counts else _dicts(check.measurement.get("ranks")):
        series = [one for one in _dicts(_at(rank, "result", "series")) if one.get("metric") == metric]
        counts += map(_timed, series)
        if not series:
            counts.append(_count(_at(rank, "result", "samples")))
    return min(counts, default=1)


def _timed(series: Mapping[str, Any]) -> int:
    times = series.get("seconds", series.get("windows"))
    return _count(series.get("samples")) if times is None else len(times)


def _swept(check: CheckRecord) -> Iterator[int]:
    if any(one.metric == "busbw" for one in check.judgements):
        for entry in _dicts(check.recorded.get("sweep")):
            if (size := _count(entry.get("size_bytes"))) and not unselectable({"size": size}):
                yield size


# what the nodes are


def _identity(facts: Mapping[str, Any]) -> dict[str, str | int]:
    """What the run recorded of a node for the comparison with [match]."""
    told = _at(facts, "identity")
    found = told.items() if isinstance(told, Mapping) else ()
    return {
        str(name): value if isinstance(value, int) else str(value)
        for name, value in found
        if isinstance(value, str | int)
    }


def _versions(records: Sequence[Record]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for record in records:
        for name, value in _named(record):
            if isinstance(value, str) and value:
                found.setdefault(name, set()).add(value[:80])
    return {name: frozenset(values) for name, values in sorted(found.items())}


def _named(record: Record) -> Iterator[tuple[str, object]]:
    if isinstance(record, NodeRecord):
        yield "torch", _at(record.facts, "torch", "version")
        yield "NCCL", _at(record.facts, "inventory", "versions", "nccl")
        for device in _dicts(_at(record.facts, "accelerators", "devices")):
            yield "driver", device.get("driver")
    for rank in record.ranks if isinstance(record, JobRecord) else ():
        yield "backend", _at(rank, "backend")
        loaded = _at(rank, "facts", "libraries")
        for library in loaded if isinstance(loaded, list) else ():
            if match := _LIBRARY.search(str(library)):
                yield match[1].upper(), match[2]


# reading values of any type


def _at(value: object, *keys: str) -> Any:  # noqa: ANN401 - whatever the journal holds there
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 50 else 0
