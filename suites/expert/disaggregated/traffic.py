"""What a pass of disaggregated experts sends, in closed form, and an exact payload through the same pairs."""

from __future__ import annotations

from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context
from fixtures.ranks.study.dealt import Dealt
from fixtures.ranks.study.pattern import Corruptions, Pattern, timed
from fixtures.ranks.study.traffic import Expected
from suites.expert.disaggregated.model import Problem
from suites.expert.disaggregated.passes import Sides
from suites.expert.routing import counts, scaled, top_k, transposed
from suites.expert.tokens import WORD_BYTES

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
    """Calls and bytes of sends and receives of a pass, from `batch_rows`; what has no rows is not sent."""
    shape = problem.shape
    row_bytes = shape.hidden * problem.dtype.itemsize
    if rank in roles.attention:
        parts = [count for line in rows[rank] for count in line]
        header_bytes = WORD_BYTES * shape.experts * len(rows[rank])
    else:
        number = rank - roles.experts.start
        parts = [line[number] for one in rows for line in one]
        header_bytes = WORD_BYTES * shape.experts // len(roles.experts) * len(parts)
    some = sum(count > 0 for count in parts)
    headed = problem.depth * (len(parts) + some), problem.depth * (header_bytes + sum(parts) * row_bytes)
    plain = problem.depth * some, problem.depth * sum(parts) * row_bytes
    return {"send": headed, "recv": plain} if rank in roles.attention else {"send": plain, "recv": headed}


def exact_both_ways(ctx: Context, roles: Sides, problem: Problem) -> Corruptions:
    """Integers there and back, as many rows from each to each as in a layer."""
    matrices = row_matrices(problem, roles, ctx.size)
    there, back = (scaled(matrix, problem.shape.hidden) for matrix in matrices)
    exchanges = [
        Dealt(ctx, "M-to-N dispatch", there, among=Among.of(roles.dispatch), pairs=True),
        Dealt(ctx, "N-to-M combine", back, among=Among.of(roles.combine), pairs=True),
    ]
    return timed(ctx, Pattern(exchanges), "both ways").wrong
