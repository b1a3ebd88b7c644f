"""Timed kernels: every device of a node at once, and then each while the others wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fixtures.ranks import timing
from fixtures.ranks.steps import Context

# On a CPU enough to last for some periods of its scheduler: a quota or another program takes 10 to 100 ms at
# a time, between iterations at full speed.
LONG = {"cpu": 301, "cuda": 51}
LONG_S = {"cpu": 0.3, "cuda": 2.0}
# For a figure that needs only the median.
ITERATIONS = {"cpu": 21, "cuda": 51}
BUDGET_S = {"cpu": 0.1, "cuda": 2.0}

Series = dict[str, Any]


@dataclass(frozen=True)
class Timed:
    """What is timed: `amount` operations or bytes. With `brief` only the median is needed."""

    metric: str
    what: str
    amount: float
    brief: bool = False


def timed(ctx: Context, about: Timed, run: Callable[[], object]) -> list[Series]:
    """Time `run` with all devices at work and then with this one alone."""
    found = [_series(about, "all at once", _measure(ctx, about, run))]
    if ctx.size > 1:
        alone = timing.in_turn(ctx, lambda one: _measure(one, about, run))
        found.append(_series(about, "alone", alone))
    return found


def _measure(ctx: Context, about: Timed, run: Callable[[], object]) -> timing.Samples:
    kind = ctx.device.type
    most, budget_s = (ITERATIONS, BUDGET_S) if about.brief else (LONG, LONG_S)
    return timing.measure(ctx, timing.Kernel(run), most[kind], budget_s[kind], about.what[:20])


def _series(about: Timed, load: str, samples: timing.Samples) -> Series:
    return {
        "metric": about.metric,
        "what": about.what,
        "load": load,
        "amount": about.amount,
        "seconds": samples.seconds,
        "warmup": samples.warmup,
        "waited": samples.waited,
    }


def figure(metric: str, what: str, value: float, samples: int, load: str = "all at once") -> Series:
    """Report a figure that was computed from many samples."""
    return {"metric": metric, "what": what, "load": load, "value": value, "samples": samples}
