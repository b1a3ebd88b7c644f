"""Exact bounds of a rate that was seen k times in n trials (Clopper and Pearson, Biometrika 26, 1934)."""

from __future__ import annotations

from collections.abc import Callable
from math import comb

LEVEL = 0.95


def bounds(count: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """The interval that holds the true rate with at least this probability.

    With alpha = 1 - level, the lower end is the rate at which `count` or more of `trials` have probability
    alpha / 2, and the upper end the rate at which `count` or fewer have it.
    """
    if not 0 <= count <= trials or trials < 1:
        raise ValueError(f"{count} of {trials} is no rate")
    tail = (1 - level) / 2
    lower = 0.0 if count == 0 else _rate(lambda rate: 1 - at_most(count - 1, trials, rate) < tail)
    upper = 1.0 if count == trials else _rate(lambda rate: at_most(count, trials, rate) > tail)
    return lower, upper


def at_most(count: int, trials: int, rate: float) -> float:
    """The probability of `count` or fewer."""
    return sum(comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(count + 1))


def sentence(count: int, trials: int, what: str) -> str:
    """Say a rate with its bounds."""
    if not trials:
        return f"{what}: no trial"
    lower, upper = bounds(count, trials)
    return (
        f"{what}: {count} of {trials} ({count / trials:.1%}), "
        f"between {lower:.1%} and {upper:.1%} with {LEVEL:.0%} confidence (exact)"
    )


def _rate(below: Callable[[float], bool]) -> float:
    """The rate up to which a condition holds, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2
