"""Disaggregated experts compared with the co-located model in every dtype and a second run, and timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fixtures.ranks import timing
from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context
from fixtures.ranks.study import overlap, parity
from fixtures.ranks.study.calibrated import Work
from fixtures.ranks.study.dealt import Dealt
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
from fixtures.ranks.study.models import repeatable
from fixtures.ranks.study.pattern import Corruptions, Pattern, timed
from fixtures.ranks.study.traffic import Expected
from suites.expert.disaggregated.model import Problem
from suites.expert.disaggregated.passes import Log, Pace, Sides, run_pass, sides, typical
from suites.expert.issued import apart
from suites.expert.routing import counts, scaled, top_k, transposed

Draw = Callable[[torch.dtype], Problem]  # the same problem in any dtype


@repeatable()
def disaggregated_trial(ctx: Context, attention: int, draw: Draw, stage_s: float) -> dict[str, Any]:
    """Study a pass, and time it with stages of at least `stage_s`."""
    made = draw(EXACT)
    free = Pace(Work(ctx.device))
    paced = replace(free, least_s=stage_s)
    with sides(ctx, attention) as roles:
        technique = Apart(ctx, roles, draw, free)
        found = study(ctx, technique)
        alone, all_paced, ended = list[Log](), list[Log](), list[Named]()

        def first() -> None:
            alone.append(run_pass(ctx, roles, made.first(), paced)[1])

        def all_of_them() -> None:
            ends, log = run_pass(ctx, roles, made, paced)
            all_paced.append(log)
            ended.append(technique.named(ends))

        overlap.timed_rounds(ctx, (first, all_of_them), overlap.ROUNDS)
        wrong = exact_both_ways(ctx, roles, made)
    told, right = answer(found), found.runs[EXACT].results
    told["repeat"] += [
        parity.equal(f"{what} (paced, {number})", end[what], right[what])
        for number, end in enumerate(ended)
        for what in right
    ]
    passes = typical(alone), typical(all_paced)
    paced_s = [seconds for log in passes for seconds in (log.span_s, statistics.fmean(log.stages))]
    return {**told, "paced": paced_s, "wrong": wrong}


class Apart(Technique[Log]):
    """A pass: an attention rank ends with its micro-batches, an expert rank with the rows it was given.

    Its peak is unknown, for a pass keeps all rows itself: what came to be compared, and what it sent.
    """

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

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """Counts and rows to and from every peer."""
        made = self.made[dtype]
        rows = batch_rows(made, self.roles)
        return [Form(expected_traffic(made, self.roles, rows, self.ctx.rank))]


def batch_rows(problem: Problem, roles: Sides) -> list[list[list[int]]]:
    """Rows of attention rank a, micro-batch i, for every expert rank: the same in every layer."""
    shape = problem.shape
    return [
        [
            counts(top_k(wanted, shape.top_k), shape.experts).view(len(roles.experts), -1).sum(1).tolist()
            for wanted in line
        ]
        for line in problem.wanted
    ]


def expected_traffic(problem: Problem, roles: Sides, rows: list[list[list[int]]], rank: int) -> Expected:
    """Calls and bytes of sends and receives of a pass, from `batch_rows`; empty messages are not sent."""
    shape = problem.shape
    row_bytes = shape.hidden * problem.dtype.itemsize
    if rank in roles.attention:
        parts = [count for line in rows[rank] for count in line]
    else:
        number = rank - roles.experts.start
        parts = [line[number] for one in rows for line in one]
    headers = len(parts), len(parts) * (shape.experts // len(roles.experts))
    some = sum(count > 0 for count in parts)
    there, back = apart(problem.depth, headers, some, sum(parts) * row_bytes)
    return {"send": there, "recv": back} if rank in roles.attention else {"send": back, "recv": there}


def exact_both_ways(ctx: Context, roles: Sides, problem: Problem) -> Corruptions:
    """Send exact integers there and back, as many rows from each to each as in a layer."""
    rows = [[0] * ctx.size for _ in range(ctx.size)]
    for source, line in enumerate(batch_rows(problem, roles)):
        for batch in line:
            for target, count in zip(roles.experts, batch, strict=True):
                rows[source][target] += count
    there = scaled(rows, problem.shape.hidden)
    exchanges = [
        Dealt(ctx, "M-to-N dispatch", there, among=Among.of(roles.dispatch), pairs=True),
        Dealt(ctx, "N-to-M combine", transposed(there), among=Among.of(roles.combine), pairs=True),
    ]
    return timed(ctx, Pattern(exchanges), "both ways").wrong
