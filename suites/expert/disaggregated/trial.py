"""A trial of disaggregated experts: against the co-located model in every dtype, again, and against time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fixtures.ranks import timing
from fixtures.ranks.steps import Context
from fixtures.ranks.study import parity
from fixtures.ranks.study.calibrated import Work
from fixtures.ranks.study.traffic import count_traffic
from suites.expert.disaggregated.model import Problem
from suites.expert.disaggregated.passes import Log, Pace, Sides, run_pass, sides
from suites.expert.disaggregated.speed import pace_figures
from suites.expert.disaggregated.traffic import batch_rows, exact_both_ways, expected_traffic

Entries = list[dict[str, Any]]
_FACTOR = 3.0  # times the error of the co-located run in the same dtype
# No run can be nearer to the fp64 one than the rounding of its results: half the spacing at 1.
_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: parity.BF16_ROUNDOFF}
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


class Draw(Protocol):
    """Makes the same problem in any dtype."""

    def __call__(self, *, dtype: torch.dtype = torch.float64) -> Problem:
        """Draw it."""


def disaggregated_trial(ctx: Context, attention: int, draw: Draw, stage_s: float) -> dict[str, Any]:
    """Run it in fp64, fp32 and bf16, each twice, and once more with stages of their length."""
    made = draw()
    right = made.expected(ctx.rank, ctx.size)
    free = Pace(Work(ctx.device))
    paced = replace(free, least_s=stage_s)
    with sides(ctx, attention) as roles:
        with count_traffic() as seen:
            found, log = run_pass(ctx, roles, made, free)
        timing.barrier(ctx)
        _, alone = run_pass(ctx, roles, made.first(), paced)
        timing.barrier(ctx)
        again, timed = run_pass(ctx, roles, made, paced)
        near, same = _narrow(ctx, roles, draw, right, free)
        wrong = exact_both_ways(ctx, roles, made)
    what = "forward" if ctx.rank < attention else "rows at experts"
    traffic = expected_traffic(made, roles, batch_rows(made, roles), ctx.rank)
    pace = pace_figures(ctx, roles, alone, timed, layers=made.depth, micro_batches=len(made.batches[0]))
    return {
        "parity": [
            parity.entry(f"{what} {i}", *pair) for i, pair in enumerate(zip(found, right, strict=True))
        ]
        + near,
        "repeat": _repeated("fp64", (again, timed), (found, log)) + same,
        "traffic": seen.table(traffic),
        "figures": pace,
        "wrong": wrong,
    }


def _narrow(
    ctx: Context, roles: Sides, draw: Draw, right: Sequence[Tensor], pace: Pace
) -> tuple[Entries, Entries]:
    """The other dtypes: how near to fp64, and whether two passes have the same bits."""
    near: Entries = []
    same: Entries = []
    for dtype, name in _NAMES.items():
        made = draw(dtype=dtype)
        first = run_pass(ctx, roles, made, pace)
        timing.barrier(ctx)
        same += _repeated(name, run_pass(ctx, roles, made, pace), first)
        timing.barrier(ctx)
        colocated = made.expected(ctx.rank, ctx.size)
        found, unsharded, exact = (_flat(one) for one in (first[0], colocated, right))
        tolerance = _FACTOR * max(parity.relative(unsharded, exact), _ROUNDOFF[dtype])
        near.append(parity.entry(f"{name} pass", found, exact, tolerance))
    return near, same


def _repeated(name: str, again: tuple[list[Tensor], Log], first: tuple[list[Tensor], Log]) -> Entries:
    """Compare where two passes end, and the rows that came in either direction, bit for bit."""
    return [
        parity.equal(f"{name}: end of a pass", _flat(again[0]), _flat(first[0])),
        parity.equal(f"{name}: rows that came", _flat(again[1].arrived), _flat(first[1].arrived)),
    ]


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])
