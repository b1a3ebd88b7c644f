"""Expert parallelism in a part of the world: groups of s consecutive ranks, all at work at the same time.

Each group is a world of its own to its ranks: experts, tokens and payloads count within it, and those of two
groups differ. Only times are the whole world's: an iteration lasts as long as in its slowest group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fixtures.ranks.groups import Among, divided_into, lasting
from fixtures.ranks.steps import Context


def sizes_in(world: int, asked: Sequence[int]) -> list[int]:
    """Those of the asked sizes that divide a larger world; where none does, the world is the one group."""
    return [size for size in asked if size < world and world % size == 0] or [world]


@contextmanager
def divided(ctx: Context, size: int) -> Iterator[Among]:
    """Divide the world into groups of this size, for as long as the work goes well, and give this rank's."""
    if ctx.size % size:
        raise ValueError(f"{ctx.size} ranks cannot be divided into groups of {size}")
    parts = [range(first, first + size) for first in range(0, ctx.size, size)]
    group = divided_into(parts)
    with lasting([group]):
        yield Among(parts[ctx.rank // size], group, f"EP {size}")
