"""How ranks lie along axes: a place along each, groups that differ along some alone, and shards of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_INSIDE = 8  # ranks of the innermost axis: beyond a node's usual eight its shards get too small


@dataclass(frozen=True)
class Layout:
    """Axes and how many ranks each has, outermost first. An axis that is not named has one."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def size(self, *names: str) -> int:
        """Ranks along these axes together."""
        return math.prod(size for name, size in zip(self.names, self.sizes, strict=True) if name in names)

    def places(self, rank: int) -> list[int]:
        """A rank's index along every axis."""
        found = []
        for size in reversed(self.sizes):
            rank, place = divmod(rank, size)
            found.append(place)
        return found[::-1]

    def place(self, rank: int, name: str) -> int:
        """A rank's index along an axis."""
        return self.places(rank)[self.names.index(name)] if name in self.names else 0

    def groups(self, *names: str) -> list[list[int]]:
        """All groups along these axes together, each in their order."""
        fixed = [axis for axis, name in enumerate(self.names) if name not in names]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(math.prod(self.sizes)):
            places = self.places(rank)
            found.setdefault(tuple([places[axis] for axis in fixed]), []).append(rank)
        return list(found.values())

    def by_rank(self) -> list[dict[str, list[int]]]:
        """Give each rank's group along every axis of several ranks."""
        return by_rank({name: self.groups(name) for name in self.names}, math.prod(self.sizes))


def by_rank(groups: Mapping[str, Sequence[list[int]]], ranks: int) -> list[dict[str, list[int]]]:
    """Give each rank's group along every axis, without groups of one rank, from all groups of the axes."""
    found: list[dict[str, list[int]]] = [{} for _ in range(ranks)]
    for axis, lines_of in groups.items():
        for line in lines_of:
            for rank in line if len(line) > 1 else ():
                found[rank][axis] = line
    return found


def divide(per_node: Sequence[int], names: Sequence[str], order: Sequence[str]) -> Layout:
    """Divide the ranks of nodes among axes. Of all ways to do it the best is taken, by these in turn:

    - axes have more than one rank, those first in `order` before the others;
    - the innermost axis fits into a node: it divides the ranks of every node;
    - it is as large as fits, but no larger than MOST_INSIDE; where none fits, as small as can be;
    - "dp" takes what is left.
    """
    size, common = sum(per_node), math.gcd(*per_node)
    if size < 2:
        raise ValueError("a mesh of several axes needs at least 2 ranks; this world has 1")

    def merit(sizes: tuple[int, ...]) -> tuple[object, ...]:
        layout, inner = Layout(tuple(names), sizes), sizes[-1]
        fits = common % inner == 0 and inner <= MOST_INSIDE
        several = tuple(layout.size(name) > 1 for name in order)
        return several, fits, inner if fits else -inner, layout.size("dp")

    return Layout(tuple(names), max(_ways(size, len(names)), key=merit))


def _ways(size: int, axes: int) -> list[tuple[int, ...]]:
    """All ways to write a size as a product of so many factors."""
    if axes == 1:
        return [(size,)]
    return [(one, *rest) for one in divisors(size) for rest in _ways(size // one, axes - 1)]


def divisors(size: int) -> list[int]:
    """All whole numbers that divide a size, the smallest first."""
    return [one for one in range(1, size + 1) if size % one == 0]


def shard(rows: int, number: int, shards: int) -> range:
    """The rows of a matrix that one of so many shards has: the last shards may have fewer, or none."""
    each = -(-rows // shards)
    return range(rows)[number * each : (number + 1) * each]
