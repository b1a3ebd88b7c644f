"""What a pass of disaggregated experts sends, in closed form, and an exact payload through the same pairs."""

from __future__ import annotations

from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context
from fixtures.ranks.study.dealt import Dealt
from fixtures.ranks.study.pattern import Corruptions, Pattern, timed
from fixtures.ranks.study.traffic import Expected
from suites.expert.disaggregated.model import Problem
from suites.expert.disaggregated.passes import Sides
from suites.expert.issued import apart
from suites.expert.routing import counts, scaled, top_k, transposed

Matrix = list[list[int]]


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


def row_matrices(problem: Problem, roles: Sides, ranks: int) -> tuple[Matrix, Matrix]:
    """Rows from every rank to every rank in one layer, there and back."""
    there = [[0] * ranks for _ in range(ranks)]
    for source, line in enumerate(batch_rows(problem, roles)):
        for rows in line:
            for number, count in enumerate(rows):
                there[source][roles.experts[number]] += count
    return there, transposed(there)


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
    matrices = row_matrices(problem, roles, ctx.size)
    there, back = (scaled(matrix, problem.shape.hidden) for matrix in matrices)
    exchanges = [
        Dealt(ctx, "M-to-N dispatch", there, among=Among.of(roles.dispatch), pairs=True),
        Dealt(ctx, "N-to-M combine", back, among=Among.of(roles.combine), pairs=True),
    ]
    return timed(ctx, Pattern(exchanges), "both ways").wrong
