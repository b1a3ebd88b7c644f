"""Dispatch and combine of every size of expert parallelism that a world can be divided into."""

from __future__ import annotations

from typing import Any

from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context
from fixtures.ranks.study.driver import answer, study
from suites.expert.routing import Shape
from suites.expert.speed import Traffic, even_traffic
from suites.expert.tokens import RoundTrip, exact
from suites.expert.worlds import divided

_TOKENS, _WORDS = 32, 8  # of the round trip, in which every token is followed


def every_size(
    ctx: Context,
    sizes: list[int],
    shape: tuple[int, int, int],
    *,
    experts_per_rank: int,
    iterations: int,
    budget_s: float,
) -> dict[str, Any]:
    """Do each size in turn; `shape` has tokens, hidden and top-k of what is timed."""
    parts = []
    for size in sizes:
        with divided(ctx, size) as among:
            followed, work = in_part(ctx, among, shape, experts_per_rank)
            part = answer(study(ctx, followed), study(ctx, work))
            paced = work.timed(ctx, iterations, budget_s / len(sizes), f"_ep{size}")
            wrong = exact(ctx, work.exact(), "expert", among)
            parts.append({**part, **paced, "parity": part["parity"] + paced["parity"], "wrong": wrong})
    joined = ("parity", "repeat", "traffic", "wrong")
    return {
        **{name: [entry for part in parts for entry in part[name]] for name in joined},
        "figures": {name: value for part in parts for name, value in part["figures"].items()},
        "samples": min(part["samples"] for part in parts),
    }


def in_part(
    ctx: Context, among: Among, shape: tuple[int, int, int], experts_per_rank: int
) -> tuple[RoundTrip, Traffic]:
    """What a group's ranks send each other: tokens that are followed, and those that are timed."""
    count, hidden, top_k = shape
    inside = among.context(ctx)
    followed = Shape(_TOKENS, _WORDS, 1, experts_per_rank * inside.size, top_k)
    followed.refuse(inside.size)
    timed = Shape(count, hidden, 1, followed.experts, top_k)
    goes = even_traffic(inside.seed, inside.size, timed)
    return (
        RoundTrip(inside, "skewed", followed, among.group, among.name),
        Traffic(inside, goes, hidden, among.group, among.name),
    )
