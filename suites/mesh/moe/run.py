"""One mixture of experts on one grid of ranks, trained and compared with the unsharded run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fixtures.ranks.steps import Context
from fixtures.ranks.study.driver import Entries, Named, Run
from fixtures.wire.held import Weighed
from suites.expert.routing import imbalance
from suites.mesh.moe.grid import Grid, on_grid
from suites.mesh.moe.held import PLAN, replicated
from suites.mesh.moe.issued import STEPS, Dims, Issues, Sizes
from suites.mesh.moe.task import Task, unsharded
from suites.mesh.moe.training import Trainer
from suites.mesh.technique import Combined, Issued, told
from suites.pipeline.schedules import Shape, differing

PATTERNS = {
    "pp": ("send_recv",),
    "tp": ("all_gather", "reduce_scatter"),
    "cp": ("all_gather", "reduce_scatter"),
    "dp_cp": ("all_reduce",),
    "ep": ("all_to_all_v",),
    "edp": ("all_reduce",),
}
# Where weights, or the optimizer's masters of them, are sharded among the ranks that have the same ones.
SHARDED = PATTERNS | dict.fromkeys(("dp_cp", "edp"), ("reduce_scatter", "all_gather"))


class Mixture(Combined[Trainer]):
    """The mixture of experts on a grid, where all ranks of a line have the same weights.

    `patterns` is what training issues along each line, `engine` a rank's part, `weighed` what it holds.
    """

    patterns: Mapping[str, Sequence[str]] = PATTERNS
    engine: type[Trainer] = Trainer
    weighed: Callable[[Sizes, int], Weighed] = staticmethod(replicated)

    def __init__(self, task: Task, grid: Grid, issues: Issues) -> None:
        self.task, self.grid, self.issues = task, grid, issues
        self.ctx, self.steps, self.adding = task.ctx, task.dims.steps, task.axes.stage_ranks
        self.shape = Shape(task.axes.stages, task.dims.micro_batches)

    def make(self, dtype: torch.dtype) -> Trainer:
        """Make a rank's part."""
        return self.engine(self.task, self.grid, dtype)

    def reference(self, dtype: torch.dtype) -> Named:
        """Train the whole model alone."""
        return unsharded(self.task, dtype)

    def issued(self, dtype: torch.dtype) -> Issued:
        """What is issued along the lines with several ranks."""
        issued = self.issues(self.task, dtype.itemsize)
        return {line.name: (line.group, issued[line.name]) for line in self.grid.used}

    def holds(self, dtype: torch.dtype) -> Mapping[str, int]:
        """What a rank holds."""
        return self.weighed(self.task, dtype.itemsize)

    def found(self, engine: Trainer) -> dict[str, int]:
        """Add the most micro-batches that are held at a time."""
        flying = {} if engine.schedule is None else {"in-flight micro-batches": engine.recorder.held.peak}
        return super().found(engine) | flying

    def beside(self, dtype: torch.dtype, run: Run[Trainer]) -> Entries:
        """Compare the order of operations with that of the 1F1B paper."""
        held = super().beside(dtype, run)
        if run.kept.schedule is None:
            return held
        done = [span.op for span in run.kept.recorder.spans]
        return [*held, differing(done, PLAN.order(self.shape, self.task.place[0]))]


def run(ctx: Context, name: str, dims: Mapping[str, int], kind: type[Mixture] = Mixture) -> dict[str, Any]:
    """Train the mixture; the worst imbalance of all blocks and micro-batches is recorded."""
    rule, issues = STEPS[name]
    task = Task(ctx.rank, rule(ctx.size), Dims(**dims), ctx=ctx)
    with on_grid(ctx, task.axes) as grid:
        found = told(ctx, kind(task, grid, issues), grid.used, kind.patterns)
        found["figures"]["imbalance"] = max(imbalance([task.loads(*one)]) for one in task.times)
        return found
