"""Integers whose every bit is known, sent along one axis of a mesh: in all its groups at once."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks import timing
from fixtures.ranks.collectives.calls import renamed
from fixtures.ranks.collectives.collectives import Collective
from fixtures.ranks.collectives.shapes import count_for
from fixtures.ranks.exact.compare import MOST_REPORTED
from fixtures.ranks.exact.dtypes import format_of
from fixtures.ranks.steps import Context
from suites.mesh.axes import Layout, Mesh

DTYPE = "int32"
SIZE_BYTES = {"cpu": 1 << 16, "cuda": 1 << 26}
ITERATIONS = 10
_BUDGET_S = 0.1

Tensor = torch.Tensor
Group = Any  # a process group


class Along(Collective):
    """A collective of one axis. Ranks count along the axis; what is wrong is said in those of the world."""

    def __init__(self, ctx: Context, layout: Layout, axis: str, group: Group, collective: str) -> None:
        self.members, self.group, self.axis = layout.members(ctx.rank, axis), group, axis
        own = replace(
            ctx,
            rank=layout.place(ctx.rank, axis),
            size=layout.size(axis),
            hosts=[ctx.hosts[rank] for rank in self.members],
            local_ranks=[ctx.local_ranks[rank] for rank in self.members],
        )
        size_bytes = SIZE_BYTES[ctx.device.type]
        count = count_for(collective, size_bytes, own.size, format_of(DTYPE))
        super().__init__(own, collective, DTYPE, "sum", count, size_bytes=size_bytes)

    def run(self, i: int) -> None:
        """Call it in the axis' group."""
        _CALLS[self.collective](self.input(i), self.output(i), self.group)

    def check(self, i: int) -> dict[str, Any] | None:
        """Compare every element."""
        wrong = super().check(i)
        if wrong is None:
            return None
        said = {**wrong, "rank": self.members[wrong["rank"]], "collective": f"{self.axis} {self.collective}"}
        if isinstance(said.get("source_rank"), int):
            said["source_rank"] = self.members[said["source_rank"]]
        return said


def _all_reduce(_sent: Tensor, received: Tensor, group: Group) -> None:
    dist.all_reduce(received, group=group)


def _all_gather(sent: Tensor, received: Tensor, group: Group) -> None:
    renamed("all_gather_single", "all_gather_into_tensor")(received, sent, group=group)


def _reduce_scatter(sent: Tensor, received: Tensor, group: Group) -> None:
    renamed("reduce_scatter_single", "reduce_scatter_tensor")(received, sent, group=group)


def _send_recv(sent: Tensor, received: Tensor, group: Group) -> None:
    """To the next rank of the axis, from the one before; receives first."""
    ranks = dist.get_process_group_ranks(group)
    own = ranks.index(dist.get_rank())
    after, before = ranks[(own + 1) % len(ranks)], ranks[own - 1]
    pair = [dist.P2POp(dist.irecv, received, before, group), dist.P2POp(dist.isend, sent, after, group)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


_CALLS: dict[str, Callable[[Tensor, Tensor, Group], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "send_recv": _send_recv,
}


def sent(
    ctx: Context, layout: Layout, mesh: Mesh, patterns: Mapping[str, Sequence[str]]
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Send each axis' own pattern; give what was wrong, and each axis' bandwidth: bytes over median."""
    wrong: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    for axis, collectives in patterns.items():
        if layout.size(axis) == 1:
            continue
        took_s = 0.0
        for collective in collectives:
            work = Along(ctx, layout, axis, mesh.group(axis), collective)
            samples = timing.measure(ctx, work, ITERATIONS, _BUDGET_S, f"{axis} {collective}"[:20])
            checked = (work.check(i) for i in range(samples.last - work.kept + 1, samples.last + 1))
            wrong += [corruption for corruption in checked if corruption is not None]
            took_s += statistics.median(samples.seconds)
        figures[f"{axis}_bandwidth"] = len(collectives) * SIZE_BYTES[ctx.device.type] / took_s / 1e9
    return wrong[:MOST_REPORTED], figures
