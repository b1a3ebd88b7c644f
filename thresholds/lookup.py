"""Which row judges a case: exactly one, or an error that names the nearest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal, TypeVar

from fixtures.wire.collectives import BARRIER
from reports.record import Judgement
from thresholds import beyond
from thresholds.bounds import BoundError
from thresholds.hardware import Gap, Hardware, Limit
from thresholds.selectors import Value
from thresholds.units import MNNVL, format_size

Case = Mapping[str, Value]
_Row = TypeVar("_Row", Limit, Gap)
# On GPUs the host times a barrier, which has no result that a device could wait for: its launch, its end and
# the way back are estimated at 60 to 110 us. Nobody has published that: figures are timed on devices.
HOST_TIMED = 2.0
ARITHMETIC_STEP = "nodes.matmul"  # its dtype is what devices multiply in; elsewhere it is the data's


class LimitError(Exception):
    """No row, or more than one, judges the case. `kind` says why; the text names the nearest rows.

    `reason` is the same for all cases that lack a limit for the same reason.
    """

    def __init__(self, kind: Literal["missing", "ambiguous", "gap"], text: str, reason: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.reason = reason or text


def find(hardware: Hardware, metric: str, case: Case) -> Limit:
    """The one row for this metric of this case; LimitError when there is none, a gap, or several."""
    row = _find(hardware, metric, case)
    if case.get("collective") != BARRIER or "collective" in row.selectors or hardware.inside == "memory":
        return row
    said = f"{row.source}; {HOST_TIMED:g} times that, as the host times a barrier and waits for its end"
    return replace(row, value=HOST_TIMED * row.value, source=said, derived=True)


def _find(hardware: Hardware, metric: str, case: Case) -> Limit:
    limits = _matching(hardware.limits, metric, case)
    gaps = _matching(hardware.gaps, metric, case)
    if len(limits) == 1 and not gaps:
        return limits[0]
    if len(limits) + len(gaps) > 1:
        rows = ", ".join([*(row.where for row in limits), *(row.where for row in gaps)])
        raise LimitError("ambiguous", f"{_subject(metric, case)} matches several rows: {rows}")
    if gaps:
        reason = f"{gaps[0].reason} ({gaps[0].where})"
        raise LimitError("gap", f"{_subject(metric, case)} has no figure: {reason}", reason)
    if (fewer := beyond.fewer(hardware, case)) is not None:
        row = _find(hardware, metric, fewer)
        try:
            return beyond.limit(hardware, metric, row, case, fewer)
        except BoundError as error:
            raise LimitError("missing", f"{_subject(metric, case)} cannot be judged: {error}") from None
    raise LimitError(
        "missing", f"{_subject(metric, case)} matches no row; {_nearest(hardware, metric, case)}"
    )


def absent(hardware: Hardware, case: Case) -> str | None:
    """Why the hardware does not have what the case needs, as its file declares; None when it does."""
    arithmetic = ("dtype",) if case.get("step") == ARITHMETIC_STEP else ()
    for key in ("path", "collective", *arithmetic):
        reason = hardware.absent.get(str(case.get(key, "")))
        if reason is not None:
            return reason
    if case.get("path") == MNNVL and MNNVL not in hardware.line_rate.links:
        return f"no NVLink joins nodes: {hardware.name} has no {MNNVL} in [line_rate]"
    return None


def unused(hardware: Hardware, judgements: Iterable[Judgement]) -> list[str]:
    """The limits that matched no judged case of a run, each with its file and line."""
    idle = idle_rows(hardware, ((one.metric, one.case) for one in judgements))
    return [f"{limit.where}: matched no case: {describe(limit)}" for limit in idle]


def idle_rows(hardware: Hardware, judged: Iterable[tuple[str, Case]]) -> list[Limit]:
    """The limits that judge none of these metrics and cases."""
    known = [(metric, case) for metric, one in judged for case in _cases(hardware, metric, one)]
    return [
        limit
        for limit in hardware.limits
        if not any(metric in limit.metrics and not mismatches(limit, case) for metric, case in known)
    ]


def _cases(hardware: Hardware, metric: str, case: Case) -> Iterator[Case]:
    """Give a case and, if no row matches it, the case of fewer nodes by whose row it is judged."""
    yield case
    fewer = beyond.fewer(hardware, case)
    if fewer is not None and not _matching(hardware.limits, metric, case):
        yield fewer


def describe(row: Limit | Gap) -> str:
    """A row's metrics and selectors in one line."""
    selectors = (f"{name} = {selector.text}" for name, selector in row.selectors.items())
    return f"{', '.join(row.metrics)} for {', '.join(selectors) or 'every case'}"


def mismatches(row: Limit | Gap, case: Case) -> list[str]:
    """The selectors that the case does not match, each with what the case has instead."""
    found = []
    for name, selector in row.selectors.items():
        value = case.get(name, "" if name == "algorithm" else None)
        if value is None or not selector.matches(value):
            found.append(f"{name} = {selector.text}, the case has {_shown(name, value)}")
    return found


def _matching(rows: tuple[_Row, ...], metric: str, case: Case) -> list[_Row]:
    return [row for row in rows if metric in row.metrics and not mismatches(row, case)]


def _nearest(hardware: Hardware, metric: str, case: Case) -> str:
    rows = [row for row in hardware.limits if metric in row.metrics]
    if not rows:
        return f"{hardware.name} has no row for {metric} at all"
    rows.sort(key=lambda row: len(mismatches(row, case)))
    return "nearest: " + "; ".join(
        f"{row.where} wants {', '.join(mismatches(row, case))}" for row in rows[:3]
    )


def _subject(metric: str, case: Case) -> str:
    shown = (f"{name}={_shown(name, value)}" for name, value in case.items())
    return f"{metric} of ({', '.join(shown)})"


def _shown(name: str, value: Value | None) -> str:
    if value is None:
        return "none"
    return format_size(value) if name == "size" and isinstance(value, int) else str(value) or "''"
