"""Integers whose every bit is known, sent along every line of the grid as training sends its numbers."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from fixtures.ranks import timing
from fixtures.ranks.exact.compare import MOST_REPORTED
from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from suites.mesh.along import ITERATIONS, SIZE_BYTES, Along
from suites.mesh.axes import Layout
from suites.mesh.moe.grid import Axes, Grid, Line

_BUDGET_S = 0.05
# What training issues along each line, and the view of the ranks in which the line is an axis.
PATTERNS = {
    "pp": ("send_recv",),
    "tp": ("all_gather", "reduce_scatter"),
    "cp": ("all_gather", "reduce_scatter"),
    "dp_cp": ("all_reduce",),
    "ep": ("all_to_all_v",),
    "edp": ("all_reduce",),
}


def layout_of(axes: Axes, line: str) -> Layout:
    """The ranks as axes of which this line is one."""
    if line in ("ep", "edp"):
        sets = axes.stage_ranks // axes.expert
        return Layout(("pp", "edp", "ep"), (axes.stages, sets, axes.expert))
    if line == "dp_cp":
        return Layout(("pp", "dp_cp", "tp"), (axes.stages, axes.data * axes.context, axes.tensor))
    return Layout(("pp", "dp", "cp", "tp"), (axes.stages, axes.data, axes.context, axes.tensor))


class _Sent(Along):
    """A collective of one line; an uneven all-to-all sends what `shapes.splits` says."""

    def run(self, i: int) -> None:
        """Call it in the line's group."""
        if self.collective != "all_to_all_v":
            super().run(i)
            return
        taken, given = list(self.received_splits), list(self.sent_splits)
        dist.all_to_all_single(self.output(i), self.input(i), taken, given, group=self.group)


def sent(ctx: Context, grid: Grid) -> dict[str, Any]:
    """Give what was wrong, and the bandwidth of each line (bytes over median)."""
    wrong: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    for line in grid.used:
        took_s = 0.0
        for collective in PATTERNS[line.name]:
            seconds, found = _timed(_work(ctx, grid.axes, line, collective))
            took_s += seconds
            wrong += found
        figures[f"{line.name}_bandwidth"] = (
            len(PATTERNS[line.name]) * SIZE_BYTES[ctx.device.type] / took_s / 1e9
        )
    return {"wrong": wrong[:MOST_REPORTED], "figures": figures}


def _work(ctx: Context, axes: Axes, line: Line, collective: str) -> _Sent:
    """Every group sends data of its own, so that another group's are told from this one's."""
    own = replace(ctx, seed=key(ctx.seed, *line.members))
    return _Sent(own, layout_of(axes, line.name), line.name, line.group.handle, collective)


def _timed(work: _Sent) -> tuple[float, list[dict[str, Any]]]:
    name = f"{work.axis} {work.collective}"
    samples = timing.measure(work.ctx, work, ITERATIONS, _BUDGET_S, name[:20])
    checked = (work.check(i) for i in range(samples.last - work.kept + 1, samples.last + 1))
    return statistics.median(samples.seconds), [one for one in checked if one is not None]
