"""What changed between two runs: series beyond their own noise, outcomes of checks, the environment.

A series is the seconds of every iteration that one check measured on the same nodes in both runs. With the
medians m1 and m2, and s = 1.4826 x median(|x - m|) of each run (the median absolute deviation as a standard
deviation, Iglewicz and Hoaglin 1993), it changed when

    |m2 - m1| > max(3.5 x sqrt(s1^2 + s2^2), 0.03 x min(m1, m2))

that is when the medians differ by more than the scatter of single iterations, and by 3 % at least. The rule
is the same in both directions: what is slower from A to B is faster from B to A. The noise of a series of
fewer than 10 iterations is unknown, so it is not compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from reports.compare.runs import Key, Run, environment, outcomes, series
from reports.text import first_line

FEWEST = 10
CUT = 3.5
LEAST = 0.03
_AS_SIGMA = 1.4826
_ABSENT = "-"


@dataclass(frozen=True)
class Change:
    """A series that is slower or faster; `noise` is the difference allowed, as a share of the old median."""

    key: Key
    old_s: float
    new_s: float
    noise: float

    @property
    def line(self) -> str:
        """One line for people."""
        word = "slower" if self.new_s > self.old_s else "faster"
        nodes, check, what = self.key
        per_cent = f"{100 * (self.new_s / self.old_s - 1):+.1f} %"
        times = f"{_microseconds(self.old_s)} -> {_microseconds(self.new_s)} us"
        return f"{word}  {nodes}  {check}  {what}: {times} ({per_cent}; noise {100 * self.noise:.1f} %)"


@dataclass(frozen=True)
class Comparison:
    """How two runs differ: changed series, and (what, old, new) of outcomes and of the environment."""

    changed: tuple[Change, ...]
    compared: int
    too_few: int
    outcomes: tuple[tuple[str, str, str], ...]
    environment: tuple[tuple[str, str, str], ...]

    @property
    def differs(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.changed or self.outcomes or self.environment)


def compare(old: Run, new: Run) -> Comparison:
    """Compare two runs; a series that only one of them measured is not a change."""
    before, after = series(old), series(new)
    both = [key for key in before if key in after]
    enough = [key for key in both if min(len(before[key]), len(after[key])) >= FEWEST]
    found = (changed(key, before[key], after[key]) for key in enough)
    return Comparison(
        changed=tuple(change for change in found if change is not None),
        compared=len(enough),
        too_few=len(both) - len(enough),
        outcomes=tuple(_differences(outcomes(old), outcomes(new))),
        environment=tuple(_other_environment(environment(old), environment(new))),
    )


def changed(key: Key, old: Sequence[float], new: Sequence[float]) -> Change | None:
    """The change of a series, None where it is within the noise."""
    middle, other = median(old), median(new)
    noise = max(CUT * math.hypot(_scatter(old), _scatter(new)), LEAST * min(middle, other))
    return Change(key, middle, other, noise / middle) if abs(other - middle) > noise else None


def _scatter(seconds: Sequence[float]) -> float:
    middle = median(seconds)
    return _AS_SIGMA * median(abs(one - middle) for one in seconds)


def _differences(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((*old, *new)):
        if old.get(name, _ABSENT) != new.get(name, _ABSENT):
            yield name, _text(old.get(name, _ABSENT)), _text(new.get(name, _ABSENT))


def _other_environment(
    old: Mapping[str, Mapping[str, object]], new: Mapping[str, Mapping[str, object]]
) -> Iterator[tuple[str, str, str]]:
    """The facts that differ; of a node that was silent in one of the runs, only its state."""
    for name in dict.fromkeys((*old, *new)):
        before, after, state = old.get(name, {}), new.get(name, {}), f"{name}.state"
        if min(len(before), len(after)) <= 1:
            before, after = ({state: one[state]} if state in one else {} for one in (before, after))
        yield from _differences(before, after)


def _text(value: object) -> str:
    return first_line(value if isinstance(value, str) else json.dumps(value), 80)


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.4g}"


def lines(old: Run, new: Run, found: Comparison) -> Iterator[str]:
    """The comparison for people, what got slower first."""
    for run in (old, new):
        cut = f", cut short: {run.cut}" if run.cut else ""
        yield f"{run.first.run_id} of {run.first.started}{cut}"
    yield from (change.line for change in sorted(found.changed, key=lambda one: one.old_s / one.new_s))
    yield from (f"outcome  {check}: {before} -> {after}" for check, before, after in found.outcomes)
    yield from (f"environment  {leaf}: {before} -> {after}" for leaf, before, after in found.environment)
    few = f", {found.too_few} have fewer than {FEWEST} iterations" if found.too_few else ""
    slower = sum(change.new_s > change.old_s for change in found.changed)
    yield (
        f"of {found.compared} series {slower} slower and {len(found.changed) - slower} faster{few}; "
        f"{len(found.outcomes)} outcomes and {len(found.environment)} facts changed"
    )
