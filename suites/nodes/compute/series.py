"""What a step reports of a device: kernels that were timed, and results that are not what they must be.

Kernels are timed on every device of a node at once, and then on each while the others wait.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from fixtures.ranks import timing
from fixtures.ranks.exact.compare import WINDOW, flipped_bit, hexadecimal, occasion
from fixtures.ranks.exact.dtypes import NAMES
from fixtures.ranks.steps import Context
from fixtures.ranks.study.parity import bits

# On a CPU enough to last for some periods of its scheduler: a quota or another program takes 10 to 100 ms at
# a time, between iterations at full speed.
LONG = {"cpu": 301, "cuda": 51}
LONG_S = {"cpu": 0.3, "cuda": 2.0}
# For a figure that needs only the median.
ITERATIONS = {"cpu": 21, "cuda": 51}
BUDGET_S = {"cpu": 0.1, "cuda": 2.0}

Series = dict[str, Any]
Corruption = dict[str, Any]


def timed(
    ctx: Context, run: Callable[[], object], metric: str, what: str, *, amount: float, brief: bool = False
) -> list[Series]:
    """Time `run`, of `amount` operations or bytes, with all devices at work and then with this one alone.

    With `brief` only the median is needed.
    """
    kind = ctx.device.type
    most, budget_s = (ITERATIONS, BUDGET_S) if brief else (LONG, LONG_S)

    def measured(ctx: Context, load: str) -> Series:
        samples = timing.measure(ctx, timing.Kernel(run), most[kind], budget_s[kind], what[:20])
        return {
            "metric": metric,
            "what": what,
            "load": load,
            "amount": amount,
            "seconds": samples.seconds,
            "warmup": samples.warmup,
            "waited": samples.waited,
        }

    found = [measured(ctx, "all at once")]
    if ctx.size > 1:
        found.append(timing.in_turn(ctx, lambda alone: measured(alone, "alone")))
    return found


def median_s(ctx: Context, run: Callable[[], object], label: str) -> float:
    """Give the median seconds of `run`, with all devices at work."""
    kind = ctx.device.type
    samples = timing.measure(ctx, timing.Kernel(run), ITERATIONS[kind], BUDGET_S[kind], label)
    return statistics.median(samples.seconds)


def figure(metric: str, what: str, value: float, samples: int) -> Series:
    """Report a figure that was computed from many samples, taken on all devices at once."""
    return {"metric": metric, "what": what, "load": "all at once", "value": value, "samples": samples}


def unlike(
    ctx: Context, what: str, found: torch.Tensor, right: torch.Tensor, iteration: int, *, start: int = 0
) -> Corruption | None:
    """Describe where `found` differs from `right`; None when it does not.

    No other rank takes part: this one is both the observer and the source. `start` is the offset of the first
    element of `found` in what is being compared.
    """
    if found.shape != right.shape or found.dtype != right.dtype:
        raise ValueError(f"{what}: compared {found.dtype} {found.shape} with {right.dtype} {right.shape}")
    seen, wanted = bits(found.detach()).flatten(), bits(right.detach()).flatten()
    if torch.equal(seen, wanted):
        return None
    places = torch.nonzero(seen != wanted).flatten()
    first, sample, dtype = int(places[0]), places[:WINDOW], NAMES[found.dtype]
    return {
        **occasion(ctx.rank, what.removesuffix(f" {dtype}"), dtype, found.nbytes, iteration),
        "source_rank": ctx.rank,
        "first_offset": start + first,
        "count": places.numel(),
        "found": hexadecimal(seen[first]),
        "expected": hexadecimal(wanted[first]),
        "looks_like": flipped_bit(seen[sample], wanted[sample], places.numel()),
    }
