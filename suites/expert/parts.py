"""Dispatch and combine of every size of expert parallelism that a world can be divided into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fixtures.ranks.steps import Context
from fixtures.ranks.study import parity
from fixtures.ranks.study.traffic import count_traffic
from suites.expert.payload import through_all_to_all
from suites.expert.routing import Shape, column, matrix, tables, transposed
from suites.expert.speed import Traffic, even_traffic
from suites.expert.tokens import TAGS, Trip, compared_tokens, round_trip, tokens
from suites.expert.worlds import Group, divided

_TOKENS, _WORDS = 32, 8  # of the round trip, in which every token is followed
_INT64_BYTES = 8
_DISPATCH, _COMBINE = 1500, 1600  # payload tags
Parts = dict[str, Any]


def every_size(
    ctx: Context,
    sizes: list[int],
    shape: tuple[int, int, int],
    *,
    experts_per_rank: int,
    iterations: int,
    budget_s: float,
) -> Parts:
    """Do each size in turn; `shape` has tokens, hidden and top-k of what is timed."""
    found: Parts = {
        "parity": [],
        "repeat": [],
        "traffic": [],
        "figures": {},
        "wrong": [],
        "samples": iterations,
    }
    for size in sizes:
        with divided(ctx, size) as group:
            routed = Routed(group, shape, experts_per_rank)
            part = _one_size(ctx, routed, iterations, budget_s / len(sizes))
        for name in ("parity", "repeat", "traffic", "wrong"):
            found[name] += part[name]
        found["figures"].update(part["figures"])
        found["samples"] = min(found["samples"], part["samples"])
    return found


class Routed:
    """What a group's ranks send each other: tokens that are followed, and those that are timed."""

    def __init__(self, group: Group, shape: tuple[int, int, int], experts_per_rank: int) -> None:
        count, hidden, top_k = shape
        ctx = self.ctx = group.ctx
        self.group, self.hidden = group, hidden
        self.followed = Shape(_TOKENS, _WORDS, 1, experts_per_rank * ctx.size, top_k)
        self.followed.refuse(ctx.size)
        timed = Shape(count, hidden, 1, self.followed.experts, top_k)
        self.tables = [one.to(ctx.device) for one in tables("skewed", ctx.seed, ctx.size, self.followed)]
        self.goes = even_traffic(ctx.seed, ctx.size, timed)

    def expected(self) -> Mapping[str, tuple[int, int]]:
        """E counts, k T rows there and as many back as came; then one dispatch and one combine; 2 counts."""
        rank, sent = self.ctx.rank, matrix(self.tables, self.followed.experts)
        rows = sum(sent[rank]) + sum(column(sent, rank))
        followed = _INT64_BYTES * (self.followed.experts + (TAGS + _WORDS) * rows)
        goes = [one.sum(0).tolist() for one in self.goes]
        timed = 2 * self.hidden * (sum(goes[rank]) + sum(column(goes, rank)))
        return {"all_to_all": (5, followed + timed), "all_reduce": (1, 2 * _INT64_BYTES)}


def _one_size(ctx: Context, routed: Routed, iterations: int, budget_s: float) -> Parts:
    inside, group = routed.ctx, routed.group
    name = f"EP {inside.size}"
    everybodys = [tokens(inside, r, _TOKENS, TAGS + _WORDS) for r in range(inside.size)]
    work = Traffic(inside, routed.goes, routed.hidden, group.members.group)

    def trip() -> Trip:
        chosen, own = routed.tables[inside.rank], everybodys[inside.rank]
        return round_trip(inside, chosen, own, routed.followed.experts, group.members.group)

    with count_traffic() as seen:
        first = trip()
        work.dispatch()
        work.combine()
    again = trip()
    timed = work.timed(ctx, iterations, budget_s, f"_ep{inside.size}")
    compared = compared_tokens(inside, first, routed.tables, everybodys, routed.followed.experts)
    exact = group.in_world(work.exact(routed.goes), ctx.size)
    return {
        **timed,
        "parity": [_named(name, one) for one in (*compared, *work.parity())],
        "repeat": [
            parity.equal(f"{name}: tokens at experts", again.arrived, first.arrived),
            parity.equal(f"{name}: tokens at home", again.home, first.home),
        ],
        "traffic": seen.tables({name: (group.members.group, routed.expected())}),
        "wrong": _exact(ctx, group, name, exact),
    }


def _named(name: str, entry: Parts) -> Parts:
    return {**entry, "what": f"{name}: {entry['what']}"}


def _exact(ctx: Context, group: Group, name: str, sent: list[list[int]]) -> list[Parts]:
    """Integers through the splits of dispatch and combine, in all groups at the same time."""
    there = through_all_to_all(ctx, f"dispatch at {name}", sent, 3, _DISPATCH, group.members)
    back = transposed(sent)
    return there + through_all_to_all(ctx, f"combine at {name}", back, 3, _COMBINE, group.members)
