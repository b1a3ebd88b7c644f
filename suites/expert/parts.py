"""Dispatch and combine of every size of expert parallelism that a world can be divided into.

A group is s consecutive ranks, and all groups work at the same time. Each is like a world of its own: it has
its own experts, tokens and payloads, which differ between groups. Only times are of the whole world: an
iteration lasts as long as in its slowest group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fixtures.ranks.groups import Among, divided_into, lasting
from fixtures.ranks.steps import Context
from suites.expert.issued import FOLLOWED
from suites.expert.routing import Shape
from suites.expert.speed import Traffic, even_traffic
from suites.expert.tokens import RoundTrip


def in_part(
    ctx: Context, among: Among, shape: Sequence[int], experts_per_rank: int
) -> tuple[RoundTrip, Traffic]:
    """What a group's ranks send each other: tokens that are followed, and those that are timed."""
    count, hidden, top_k = shape
    inside = among.context(ctx)
    followed = Shape(FOLLOWED["tokens"], FOLLOWED["words"], 1, experts_per_rank * inside.size, top_k)
    followed.refuse(inside.size)
    timed = Shape(count, hidden, 1, followed.experts, top_k)
    goes = even_traffic(inside.seed, inside.size, timed)
    return (
        RoundTrip(inside, "skewed", followed, among.group, among.name),
        Traffic(inside, goes, hidden, among.group, among.name),
    )


@contextmanager
def divided(ctx: Context, size: int) -> Iterator[Among]:
    """Divide the world into groups of this size, and give this rank's; destroy it unless work fails."""
    if ctx.size % size:
        raise ValueError(f"{ctx.size} ranks cannot be divided into groups of {size}")
    parts = [range(first, first + size) for first in range(0, ctx.size, size)]
    group = divided_into(parts)
    with lasting([group]):
        yield Among(parts[ctx.rank // size], group, f"EP {size}")
