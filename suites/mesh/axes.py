"""The device mesh of a layout, and the groups of its axes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fixtures.ranks.groups import Among, lasting, mesh_names
from fixtures.ranks.steps import Context, Unsupported
from suites.mesh.layout import Layout


def needs(ctx: Context, ranks: int, what: str) -> None:
    """Say that a mesh is not applicable where the world does not divide into as many ranks as it needs."""
    if ctx.size % ranks:
        raise Unsupported(f"{what} need a multiple of {ranks} ranks, and this world has {ctx.size}")


class Mesh:
    """torch's mesh of a layout."""

    def __init__(self, ctx: Context, layout: Layout) -> None:
        self.layout, self._kind = layout, ctx.device.type
        self._ranks = torch.arange(ctx.size).view(layout.sizes)
        axes = (*layout.names, "dp_cp")
        self._names = dict(zip(axes, mesh_names(*axes), strict=True))
        names = tuple(self._names[name] for name in layout.names)
        self._mesh = DeviceMesh(self._kind, self._ranks, mesh_dim_names=names)

    def axis(self, name: str) -> DeviceMesh:
        """The mesh of one axis."""
        return self._mesh[self._names[name]]

    @cached_property
    def shards(self) -> DeviceMesh:
        """The ranks among which fully_shard shards parameters: dp; or dp and cp together."""
        if "cp" not in self.layout.names:
            return self.axis("dp")
        if "tp" in self.layout.names:  # a weight that tp divides is divided again, on the same mesh
            return self._mesh[self._names["dp"], self._names["cp"]]._flatten(self._names["dp_cp"])
        return DeviceMesh(self._kind, self._ranks.flatten(), mesh_dim_names=(self._names["dp_cp"],))

    def group(self, name: str) -> dist.ProcessGroup:
        """This rank's group along an axis."""
        return self._mesh.get_group(self._names[name])

    @property
    def used(self) -> list[Among]:
        """The axes with several ranks."""
        several = [name for name in self.layout.names if self.layout.size(name) > 1]
        return [Among.of(self.group(name), name) for name in several]


@contextmanager
def laid_out(ctx: Context, layout: Layout) -> Iterator[Mesh]:
    """Make the mesh; destroy its groups unless the work fails."""
    mesh = Mesh(ctx, layout)
    groups = [mesh.group(name) for name in layout.names]
    groups += [mesh.shards.get_group()] if "cp" in layout.names else []
    with lasting(groups):
        yield mesh
