"""Disaggregated experts compared with the co-located model in every dtype and a second run, and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fixtures.ranks import timing
from fixtures.ranks.steps import Context
from fixtures.ranks.study import overlap, parity
from fixtures.ranks.study.calibrated import Work
from fixtures.ranks.study.driver import (
    EXACT,
    TRAINED,
    WIDE,
    Form,
    Left,
    Named,
    Seen,
    Technique,
    answer,
    study,
)
from suites.expert.disaggregated.model import Problem
from suites.expert.disaggregated.passes import Log, Pace, Sides, run_pass, sides, typical
from suites.expert.disaggregated.speed import pace_figures
from suites.expert.disaggregated.traffic import batch_rows, exact_both_ways, expected_traffic

Draw = Callable[[torch.dtype], Problem]  # the same problem in any dtype


def disaggregated_trial(ctx: Context, attention: int, draw: Draw, stage_s: float) -> dict[str, Any]:
    """Study a pass, and time it with stages of at least `stage_s`."""
    made = draw(EXACT)
    free = Pace(Work(ctx.device))
    paced = replace(free, least_s=stage_s)
    with sides(ctx, attention) as roles:
        apart = Apart(ctx, roles, draw, free)
        found = study(ctx, apart)
        alone, timed, ended = list[Log](), list[Log](), list[Named]()

        def first() -> None:
            alone.append(run_pass(ctx, roles, made.first(), paced)[1])

        def all_of_them() -> None:
            ends, log = run_pass(ctx, roles, made, paced)
            timed.append(log)
            ended.append(apart.named(ends))

        overlap.timed_rounds(ctx, (first, all_of_them), overlap.ROUNDS)
        wrong = exact_both_ways(ctx, roles, made)
    told, right = answer(found), found.runs[EXACT].results
    told["repeat"] += [
        parity.equal(f"{what} (paced, {number})", end[what], right[what])
        for number, end in enumerate(ended)
        for what in right
    ]
    layers, micro_batches = made.depth, len(made.batches[0])
    pace = pace_figures(
        ctx, roles, typical(alone), typical(timed), layers=layers, micro_batches=micro_batches
    )
    return {**told, "figures": pace, "wrong": wrong}


class Apart(Technique[Log]):
    """A pass: an attention rank ends with its micro-batches, an expert rank with the rows it was given."""

    dtypes = (EXACT, WIDE, TRAINED)
    joined = ("forward", "row at experts")
    delivers = ("recv",)

    def __init__(self, ctx: Context, roles: Sides, draw: Draw, pace: Pace) -> None:
        self.ctx, self.roles, self.pace = ctx, roles, pace
        self.made = {dtype: draw(dtype) for dtype in self.dtypes}

    def named(self, ends: Sequence[Tensor]) -> Named:
        """Name them after this rank's side."""
        what = "forward" if self.ctx.rank in self.roles.attention else "row at experts"
        return {f"{what}:{i}": end for i, end in enumerate(ends)}

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[Log]:
        """Run one pass, after the previous one has ended on all ranks."""
        timing.barrier(self.ctx)
        with seen():
            ends, log = run_pass(self.ctx, self.roles, self.made[dtype], self.pace)
        came = torch.cat([rows.flatten() for rows in log.arrived])
        return Left(self.named(ends), log, {"rows that came": came})

    def reference(self, dtype: torch.dtype) -> Named:
        """The co-located model, on this rank."""
        return self.named(self.made[dtype].expected(self.ctx.rank, self.ctx.size))

    def peak(self, dtype: torch.dtype) -> int | str:
        """None: a pass keeps all rows on purpose."""
        return "a pass keeps all rows itself: what came to be compared, and what was sent until its end"

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """Counts and rows to and from every peer."""
        made = self.made[dtype]
        rows = batch_rows(made, self.roles)
        return [Form(expected_traffic(made, self.roles, rows, self.ctx.rank))]
