"""Expert parallelism in a part of the world: groups of s consecutive ranks, all at work at the same time.

Each group is a world of its own to its ranks: experts, tokens and payloads count within it, and those of two
groups differ. Only times and exact payloads are the whole world's: an iteration lasts as long as in its
slowest group, and a wrong word names the rank that it is on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fixtures.ranks.exact.payload import key
from fixtures.ranks.groups import divided_into, lasting
from fixtures.ranks.steps import Context
from suites.expert.payload import Members

_GROUPS = 760


@dataclass(frozen=True)
class Group:
    """The group of this rank: what the rank knows there, and who is in it."""

    ctx: Context
    members: Members

    def in_world(self, sent: list[list[int]], ranks: int) -> list[list[int]]:
        """Stand what goes from rank to rank in this group into the world's matrix, in which others send 0.

        Other groups' lines are not known here, and nobody in this one asks for them.
        """
        first, size = self.members.ranks.start, len(sent)
        whole = [[0] * ranks for _ in range(ranks)]
        for source, row in enumerate(sent):
            whole[first + source][first : first + size] = row
        return whole


def sizes_in(world: int, asked: Sequence[int]) -> list[int]:
    """Those of the asked sizes that divide a larger world; where none does, the world is the one group."""
    return [size for size in asked if size < world and world % size == 0] or [world]


@contextmanager
def divided(ctx: Context, size: int) -> Iterator[Group]:
    """Divide the world into groups of this size, for as long as the work goes well."""
    if ctx.size % size:
        raise ValueError(f"{ctx.size} ranks cannot be divided into groups of {size}")
    parts = [range(first, first + size) for first in range(0, ctx.size, size)]
    number = ctx.rank // size
    members = Members(parts[number], divided_into(parts))
    inside = replace(
        ctx,
        rank=ctx.rank % size,
        size=size,
        hosts=ctx.hosts[parts[number].start : parts[number].stop],
        local_ranks=ctx.local_ranks[parts[number].start : parts[number].stop],
        seed=key(ctx.seed, _GROUPS, size, number) >> 1,
    )
    with lasting([members.group]):
        yield Group(inside, members)
