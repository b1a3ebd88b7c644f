"""The edges of a pipeline by themselves: an exact payload between real neighbours, compared and timed.

All edges at once are what training does, and there a slow one makes its neighbours slow. So each is also
timed with the edges beside it at rest: every second edge at a time, one direction at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fixtures.ranks import timing
from fixtures.ranks.exact.compare import MOST_REPORTED
from fixtures.ranks.exact.dtypes import format_of
from fixtures.ranks.steps import Context
from fixtures.ranks.study.dealt import Dealt
from fixtures.ranks.study.pattern import Corruptions, Pattern, exact, timed
from fixtures.ranks.study.traffic import count_traffic
from suites.pipeline.stages import ACTIVATION, GRADIENT
from suites.pipeline.technique import ranks_of

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
    back = [(target, source) for source, target in forth]
    wrong: Corruptions = []
    compared = 0
    for length in elements:
        fresh = _over(ctx, forth + back, length, dtype, fresh=True)
        compared += iterations * fresh.compared(0)
        wrong += exact(ctx, Pattern([fresh]), f"{length} elements", iterations)
    count = size_bytes[ctx.device.type] // item
    both = _over(ctx, forth + back, count, dtype)
    with count_traffic() as seen:
        both.run(0)
    ends = sum(source == ctx.rank for source, _ in forth + back)
    expected = ends, ends * count * item
    together = timed(ctx, Pattern([both]), f"{count} elements", iterations=iterations, budget_s=budget_s)
    wrong += together.wrong
    alone: list[dict[str, Any]] = []
    for what, edges in ((ACTIVATION, forth), (GRADIENT, back)):
        for parity in range(2):
            turn = [edge for edge in edges if min(edge) // stride % 2 == parity]
            pattern = Pattern([_over(ctx, turn, alone_bytes // item, dtype)])
            label = f"{what} alone {parity}"
            found = timed(ctx, pattern, label, iterations=timing.FEWEST, budget_s=budget_s / 4)
            wrong += found.wrong
            rate = alone_bytes // item * item / found.median_s / 1e9
            ends_here = [source for source, target in turn if target == ctx.rank]
            alone += [
                {"what": what, "from": one, "to": ctx.rank, "gigabytes_per_s": rate} for one in ends_here
            ]
    return {
        "traffic": seen.table({"send": expected, "recv": expected}, "pp"),
        "iterations": len(elements) * iterations,
        "elements": compared,
        "figures": {"edge": count * item / together.median_s / 1e9},
        "samples": len(together.seconds),
        "edges": alone,
        "wrong": wrong[:MOST_REPORTED],
    }


def _over(ctx: Context, edges: Edges, count: int, dtype: str, *, fresh: bool = False) -> Dealt:
    """So many elements over each edge, all at once, as the steady state of 1F1B does it."""
    elements = [[0] * ctx.size for _ in range(ctx.size)]
    for source, target in edges:
        elements[source][target] = count
    return Dealt(ctx, "edges", elements, pairs=True, dtype=dtype, fresh=fresh)
