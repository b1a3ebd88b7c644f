"""The parallel steps of a family: each with its limits, the thinnest margin first.

A row is a step in a world: everything that the checks of a family with equal parameters in brackets have
judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reports import notation
from reports.record import CheckRecord, Judgement, Outcome

_HELD = "parity"
_FIRST = (_HELD, "repeat", "wrong_elements", "traffic", "memory", "pattern")
GRAVITY = (Outcome.FAIL, Outcome.UNCHECKED, Outcome.PASS, Outcome.NOT_APPLICABLE)


@dataclass(frozen=True)
class Cell:
    """The result of one metric; `used` is the share of the limit that the measurement takes up."""

    outcome: Outcome | None = None
    text: str = ""
    beside: str = ""
    used: float = 0.0


@dataclass(frozen=True)
class Step:
    """A step in a world: the worst outcome of its checks, a cell per metric, and recorded figures."""

    name: str
    outcome: Outcome
    cells: tuple[Cell, ...]
    figures: str

    @property
    def used(self) -> float:
        """The largest share of a limit that its metrics take up."""
        return max((cell.used for cell in self.cells), default=0.0)


@dataclass(frozen=True)
class Table:
    """The steps of a family: those in trouble first, then by margin, thinnest first."""

    metrics: tuple[str, ...]
    steps: tuple[Step, ...]


def table(checks: Iterable[CheckRecord]) -> Table | None:
    """The steps of a family's checks; None where none is compared with the unsharded model."""
    steps: dict[str, list[CheckRecord]] = {}
    for check in checks:
        steps.setdefault(check.name.partition("[")[2].rstrip("]"), []).append(check)
    judged = {step: _judged(same) for step, same in steps.items()}
    said = dict.fromkeys(metric for metrics in judged.values() for metric in metrics)
    if _HELD not in said:
        return None
    metrics = (*(one for one in _FIRST if one in said), *(one for one in said if one not in _FIRST))
    rows = [_step(step, same, judged[step], metrics) for step, same in steps.items()]
    measured = [row for row in rows if row.outcome is not Outcome.NOT_APPLICABLE]
    return Table(metrics, tuple(sorted(measured, key=lambda row: (GRAVITY.index(row.outcome), -row.used))))


def _step(
    name: str,
    checks: Sequence[CheckRecord],
    judged: Mapping[str, Sequence[Judgement]],
    metrics: Sequence[str],
) -> Step:
    cells = tuple(_cell(judged.get(metric, ())) for metric in metrics)
    outcome = min((check.outcome for check in checks), key=GRAVITY.index)
    return Step(name, outcome, cells, _figures(checks, metrics))


def _judged(checks: Sequence[CheckRecord]) -> dict[str, list[Judgement]]:
    """What has a limit, by metric."""
    found: dict[str, list[Judgement]] = {}
    for check in checks:
        for judgement in check.judgements:
            if judgement.limit:
                found.setdefault(judgement.metric, []).append(judgement)
    return found


def _cell(judgements: Sequence[Judgement]) -> Cell:
    """Show the worst of them."""
    if not judgements:
        return Cell()
    return _shown(min(judgements, key=lambda one: (GRAVITY.index(one.outcome), -(used(one) or 0.0))))


def _shown(judgement: Judgement) -> Cell:
    measured, limit = notation.quantity(judgement.value, judgement.unit), judgement.limit
    share = used(judgement)
    if share is None:
        right = judgement.outcome is Outcome.PASS
        return Cell(judgement.outcome, "exact" if right else measured or judgement.outcome.value)
    return Cell(judgement.outcome, f"{notation.number(100 * share, 3)} %", f"{measured} ({limit})", share)


def used(judgement: Judgement) -> float | None:
    """Value over ceiling, or floor over value; None where a limit is not a number, or must be met exactly."""
    value, limit = judgement.value, judgement.limit_value
    if value is None or limit is None or not math.isfinite(value):
        return None
    over, under = (limit, value) if judgement.limit.startswith(">") else (value, limit)
    return over / under if under > 0 and judgement.limit.startswith((">", "<")) else None


def _figures(checks: Sequence[CheckRecord], metrics: Sequence[str]) -> str:
    """The recorded figures, each with its formula beside it."""
    found: dict[str, float] = {}
    for check in checks:
        said = check.recorded.get("figures")
        for name, value in said.items() if isinstance(said, Mapping) else ():
            if isinstance(name, str) and isinstance(value, int | float) and name not in metrics:
                found[name] = value
    beside = {of: _beside(of, found) for of in found}
    others = {other for there in beside.values() for other in there}
    shown = []
    for name, value in found.items():
        if name not in others:
            formulas = f" ({', '.join(beside[name].values())})" if beside[name] else ""
            shown.append(f"{name.replace('_', ' ')} {notation.number(value)}{formulas}")
    return ", ".join(shown)


def _beside(name: str, found: Mapping[str, float]) -> dict[str, str]:
    """The figures that are the formula of this one."""
    words = {f"{name}_formula": "formula", f"{name}_simulated": "simulated", f"expected_{name}": "expected"}
    return {
        other: f"{word} {notation.number(found[other])}" for other, word in words.items() if other in found
    }
