"""The edges of a pipeline by themselves: an exact payload between real neighbours, compared and timed.

Training uses all edges at once, where a slow edge makes its neighbours slow. So each is also timed with the
neighbouring edges idle: every second edge at a time, one direction at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fixtures.ranks import timing
from fixtures.ranks.exact.compare import MOST_REPORTED
from fixtures.ranks.exact.dtypes import format_of
from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context
from fixtures.ranks.study.dealt import Dealt
from fixtures.ranks.study.pattern import Corruptions, Move, Pattern, exact, moved, timed
from fixtures.ranks.study.traffic import Expected, count_traffic
from suites.pipeline.issued import GROUP, between, ranks_of
from suites.pipeline.stages import ACTIVATION, GRADIENT

Edges = Sequence[tuple[int, int]]  # from a rank to a rank


def run(
    ctx: Context,
    *,
    dtype: str,
    size_bytes: Mapping[str, int],
    alone_bytes: int,
    elements: list[int],
    iterations: int,
    budget_s: float,
    most: int,
) -> dict[str, Any]:
    """Compare fresh payloads of several lengths, time one size and compare its last, then edge by edge."""
    if ctx.size < 2:
        raise ValueError("a pipeline has edges from 2 ranks on")
    item, stride = format_of(dtype).item_bytes, ctx.size // ranks_of(ctx.size, most)
    forth = [(rank, rank + stride) for rank in range(ctx.size - stride)]
    ways = {ACTIVATION: forth, GRADIENT: [(target, source) for source, target in forth]}
    everywhere = [edge for edges in ways.values() for edge in edges]
    fresh = [_over(ctx, everywhere, length, dtype, fresh=True) for length in elements]
    wrong = [one for dealt in fresh for one in exact(ctx, Pattern([dealt]), "edges", iterations)]
    count = size_bytes[ctx.device.type] // item
    both = _over(ctx, everywhere, count, dtype)
    together = timed(ctx, Pattern([both]), f"{count} elements", iterations=iterations, budget_s=budget_s)
    turns = [
        (what, [edge for edge in edges if min(edge) // stride % 2 == parity])
        for what, edges in ways.items()
        for parity in range(2)
    ]
    alone = [_alone(ctx, *turn, alone_bytes // item, dtype, budget_s / 4) for turn in turns]
    wrong += [*together.wrong, *(one for _, found in alone for one in found)]
    return {
        "traffic": _traffic(both, between(ctx.size, most, ctx.rank, count * item)),
        "iterations": len(elements) * iterations,
        "elements": iterations * sum(dealt.compared(0) for dealt in fresh),
        "figures": {"edge": count * item / together.median_s / 1e9},
        "samples": len(together.seconds),
        **_moved(ctx, stride, count * item, together.seconds),
        "edges": [edge for edges, _ in alone for edge in edges],
        "wrong": wrong[:MOST_REPORTED],
    }


def _moved(ctx: Context, stride: int, size_bytes: int, seconds: Sequence[float]) -> dict[str, Any]:
    """An inner rank sends and receives like two send_recv; with only two ranks, like one."""
    among = Among(range(ctx.rank % stride, ctx.size, stride), None)
    move = Move("send_recv", size_bytes, among if stride > 1 else None)
    return moved(ctx, [move] * min(len(among.ranks) - 1, 2), seconds)


def _traffic(dealt: Dealt, expected: Expected) -> list[dict[str, Any]]:
    """Count what is issued."""
    with count_traffic() as seen:
        dealt.run(0)
    return seen.table(expected, GROUP)


def _alone(  # noqa: PLR0917 - what is timed, and how long
    ctx: Context, what: str, edges: Edges, count: int, dtype: str, budget_s: float
) -> tuple[list[dict[str, Any]], Corruptions]:
    """Time these edges alone; give those that end on this rank, and what arrived wrong."""
    dealt = _over(ctx, edges, count, dtype)
    found = timed(ctx, Pattern([dealt]), f"{what} alone", iterations=timing.FEWEST, budget_s=budget_s)
    rate = count * dealt.form.item_bytes / found.median_s / 1e9
    said = [
        {"what": what, "from": source, "to": target, "gigabytes_per_s": rate}
        for source, target in edges
        if target == ctx.rank
    ]
    return said, found.wrong


def _over(ctx: Context, edges: Edges, count: int, dtype: str, *, fresh: bool = False) -> Dealt:
    """`count` elements over each edge, all at once, as in the steady state of 1F1B."""
    elements = [[0] * ctx.size for _ in range(ctx.size)]
    for source, target in edges:
        elements[source][target] = count
    return Dealt(ctx, "edges", elements, pairs=True, dtype=dtype, fresh=fresh)
