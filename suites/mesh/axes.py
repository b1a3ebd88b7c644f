"""How a world's ranks are laid out along named axes, and the device mesh that follows.

Axes are named from the outermost to the innermost; neighbouring ranks differ in the innermost. Ranks are
numbered node by node, so the innermost axis, which talks most, stays inside a node and the outer ones cross
(the order of "The Llama 3 Herd of Models", 2024, section 3.3.2, with torchtitan's pipelines outermost).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fixtures.ranks.groups import Among, lasting
from fixtures.ranks.steps import Context, Unsupported

MOST_INSIDE = 8  # ranks of the innermost axis: beyond a node's usual eight its shards get too small


@dataclass(frozen=True)
class Layout:
    """Axes and how many ranks each has, outermost first. An axis that is not named has one."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def size(self, name: str) -> int:
        """Ranks along an axis."""
        return self.sizes[self.names.index(name)] if name in self.names else 1

    def place(self, rank: int, name: str) -> int:
        """Where along an axis a rank is."""
        return rank // self._stride(name) % self.size(name) if name in self.names else 0

    def _stride(self, name: str) -> int:
        return math.prod(self.sizes[self.names.index(name) + 1 :])


def needs(ctx: Context, ranks: int, what: str) -> None:
    """Say that a mesh is not applicable where the world does not divide into as many ranks as it needs."""
    if ctx.size % ranks:
        raise Unsupported(f"{what} need a multiple of {ranks} ranks, and this world has {ctx.size}")


def divide(ctx: Context, names: Sequence[str], order: Sequence[str]) -> Layout:
    """Divide the world among axes. Of all ways to do it the best is taken, by these in turn:

    - axes have more than one rank, those first in `order` before the others;
    - the innermost axis fits into a node: it divides the ranks of every node;
    - it is as large as fits, but no larger than MOST_INSIDE; where none fits, as small as can be;
    - "dp" takes what is left.
    """
    if ctx.size < 2:
        raise ValueError("a mesh of several axes needs at least 2 ranks; this world has 1")
    per_node = math.gcd(*(ctx.hosts.count(host) for host in set(ctx.hosts)))

    def merit(sizes: tuple[int, ...]) -> tuple[object, ...]:
        layout, inner = Layout(tuple(names), sizes), sizes[-1]
        fits = per_node % inner == 0 and inner <= MOST_INSIDE
        several = tuple(layout.size(name) > 1 for name in order)
        return several, fits, inner if fits else -inner, layout.size("dp")

    return Layout(tuple(names), max(_ways(ctx.size, len(names)), key=merit))


def _ways(size: int, axes: int) -> list[tuple[int, ...]]:
    """All ways to write a size as a product of so many factors."""
    if axes == 1:
        return [(size,)]
    divisors = [one for one in range(1, size + 1) if size % one == 0]
    return [(one, *rest) for one in divisors for rest in _ways(size // one, axes - 1)]


class Mesh:
    """torch's mesh of a layout.

    DTensor keeps what it once derived for a mesh, group names and all, and takes two meshes of the same ranks
    and names for one. So the names carry a number: a later mesh must not get the groups of one that is gone.
    """

    _numbers = itertools.count()

    def __init__(self, ctx: Context, layout: Layout) -> None:
        self.layout, self._kind, self._number = layout, ctx.device.type, next(self._numbers)
        self._ranks = torch.arange(ctx.size).view(layout.sizes)
        names = tuple(map(self._name, layout.names))
        self._mesh = DeviceMesh(self._kind, self._ranks, mesh_dim_names=names)

    def axis(self, name: str) -> DeviceMesh:
        """The mesh of one axis."""
        return self._mesh[self._name(name)]

    @cached_property
    def shards(self) -> DeviceMesh:
        """The ranks among which fully_shard deals out parameters: dp; or dp and cp together."""
        if "cp" not in self.layout.names:
            return self.axis("dp")
        if "tp" in self.layout.names:  # a weight that tp divides is divided again: both must be of one mesh
            return self._mesh[self._name("dp"), self._name("cp")]._flatten(self._name("dp_cp"))
        return DeviceMesh(self._kind, self._ranks.flatten(), mesh_dim_names=(self._name("dp_cp"),))

    def group(self, name: str) -> dist.ProcessGroup:
        """This rank's group along an axis."""
        return self._mesh.get_group(self._name(name))

    @property
    def used(self) -> list[Among]:
        """The axes along which this rank meets others."""
        several = [name for name in self.layout.names if self.layout.size(name) > 1]
        return [Among.of(self.group(name), name) for name in several]

    def _name(self, axis: str) -> str:
        return f"{axis}{self._number}"


@contextmanager
def laid_out(ctx: Context, layout: Layout) -> Iterator[Mesh]:
    """Make the mesh; its groups last as long as the work goes well."""
    mesh = Mesh(ctx, layout)
    groups = [mesh.group(name) for name in layout.names]
    groups += [mesh.shards.get_group()] if "cp" in layout.names else []
    with lasting(groups):
        yield mesh
