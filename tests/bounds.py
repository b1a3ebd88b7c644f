"""Exact bounds of a proportion that was seen (Clopper and Pearson, Biometrika 26, 1934)."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, fsum, lgamma, log

CONFIDENCE = 0.95
STEPS = 60  # halvings of the interval


def clopper_pearson(hits: int, runs: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact two-sided interval of a proportion after so many hits.

    With alpha = 1 - confidence, the lower end is the proportion at which so many hits or more have a chance
    of alpha / 2, and the upper end that at which so many or fewer have it. ValueError for what is none.
    """
    if not 0 <= hits <= runs or runs < 1:
        raise ValueError(f"{hits} of {runs} is no rate")
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _where(lambda p: at_most(runs - hits, runs, 1 - p) > tail)
    high = 1.0 if hits == runs else _where(lambda p: at_most(hits, runs, p) <= tail)
    return low, high


def at_most(hits: int, runs: int, p: float) -> float:
    """Return the chance of so many hits or fewer in so many runs."""
    if hits >= runs or p <= 0:
        return 1.0
    if p >= 1:
        return 0.0
    if hits > runs // 2:  # the shorter sum
        return 1 - at_most(runs - hits - 1, runs, 1 - p)
    return fsum(exp(_log_chance(one, runs, p)) for one in range(hits + 1))


def sentence(hits: int, runs: int, what: str) -> str:
    """Say a rate with its bounds."""
    if not runs:
        return f"{what}: no trial"
    low, high = clopper_pearson(hits, runs)
    return (
        f"{what}: {hits} of {runs} ({hits / runs:.1%}), "
        f"between {low:.1%} and {high:.1%} with {CONFIDENCE:.0%} confidence (exact)"
    )


def _log_chance(hits: int, runs: int, p: float) -> float:
    ways = lgamma(runs + 1) - lgamma(hits + 1) - lgamma(runs - hits + 1)
    return ways + hits * log(p) + (runs - hits) * log(1 - p)


def _where(holds: Callable[[float], bool]) -> float:
    """Return from which proportion on something holds that does not hold for smaller ones."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
