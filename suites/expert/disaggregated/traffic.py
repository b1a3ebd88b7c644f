"""What a pass of disaggregated experts sends, in closed form, and an exact payload through the same pairs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks import timing
from fixtures.ranks.exact.payload import poison
from fixtures.ranks.steps import Context
from suites.expert.disaggregated.model import Problem
from suites.expert.disaggregated.passes import Pending, Sides, receive
from suites.expert.layer import cut
from suites.expert.payload import examined, keep, scaled, stream
from suites.expert.routing import column, counts, top_k, transposed

Group = Any  # a process group
Matrix = list[list[int]]
_INT64_BYTES = 8
_REPEATS = 3
_DISPATCH, _COMBINE = 1300, 1400  # payload tags


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


def expected_traffic(
    problem: Problem, roles: Sides, rows: list[list[list[int]]], rank: int
) -> dict[str, tuple[int, int]]:
    """Calls and bytes of sends and receives of a pass, from `batch_rows`; what has no rows is not sent."""
    shape = problem.shape
    row_bytes = shape.hidden * problem.dtype.itemsize
    if rank in roles.attention:
        parts = [count for line in rows[rank] for count in line]
        header_bytes = _INT64_BYTES * shape.experts * len(rows[rank])
    else:
        number = rank - roles.experts.start
        parts = [line[number] for one in rows for line in one]
        header_bytes = _INT64_BYTES * shape.experts // len(roles.experts) * len(parts)
    some = sum(count > 0 for count in parts)
    headed = problem.depth * (len(parts) + some), problem.depth * (header_bytes + sum(parts) * row_bytes)
    plain = problem.depth * some, problem.depth * sum(parts) * row_bytes
    return {"send": headed, "recv": plain} if rank in roles.attention else {"send": plain, "recv": headed}


def through_pairs(
    ctx: Context, group: Group, name: str, sent: Matrix, first_tag: int
) -> list[dict[str, Any]]:
    """Send `sent[s][d]` words from s to d by isend and irecv, fresh ones each time, and compare them all."""
    wrong: list[dict[str, Any]] = []
    ctx.progress.phase(f"exact {name}"[:31])
    for i in range(_REPEATS):
        output = torch.empty(sum(column(sent, ctx.rank)), dtype=torch.int64, device=ctx.device)
        poison(output)
        own = stream(ctx, ctx.rank, first_tag + i, 0, sum(sent[ctx.rank]))
        by_pairs(group, own, sent[ctx.rank], output, column(sent, ctx.rank))
        timing.complete(ctx)
        keep(wrong, examined(ctx, name, output, sent, first_tag=first_tag, i=i))
        ctx.progress.done(i + 1)
    return wrong


def exact_both_ways(ctx: Context, roles: Sides, problem: Problem) -> list[dict[str, Any]]:
    """Integers there and back, as many rows from each to each as in a layer."""
    there, back = row_matrices(problem, roles, ctx.size)
    words = problem.shape.hidden
    return [
        *through_pairs(ctx, roles.dispatch, "M-to-N dispatch", scaled(there, words), _DISPATCH),
        *through_pairs(ctx, roles.combine, "N-to-M combine", scaled(back, words), _COMBINE),
    ]


def by_pairs(
    group: Group, own: torch.Tensor, sent: list[int], output: torch.Tensor, taken: list[int]
) -> None:
    """One exchange between two sides: a rank sends or receives, never both."""
    pending = Pending()
    everybody = range(dist.get_world_size(group))
    pending.send(cut(own, sent), everybody, group)
    receive(cut(output, taken), everybody, group)
    pending.finish()
