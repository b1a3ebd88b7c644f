"""One mixture of experts on one grid of ranks, trained and held beside the unsharded run."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from fixtures.ranks import timing
from fixtures.ranks.steps import Context
from fixtures.ranks.study import parity
from suites.expert.routing import imbalance
from suites.mesh import placement
from suites.mesh.moe import forms, payload
from suites.mesh.moe.grid import Axes, Grid, on_grid
from suites.mesh.moe.task import EXACT, TRAINED, Dims, Named, Task, Trace, unsharded
from suites.mesh.moe.training import Trainer, follow
from suites.pipeline.schedules import PLANS, Shape

Entries = list[dict[str, Any]]
Compared = list[tuple[str, Tensor, Tensor]]


def run(ctx: Context, axes: Axes, dims: Dims) -> dict[str, Any]:
    """Train in fp64 and bf16, twice each, and compare everything."""
    task = Task(ctx, axes, dims)
    with on_grid(ctx, axes) as grid:
        ctx.progress.phase("unsharded")
        want = unsharded(task, EXACT)
        ctx.progress.phase("fp64")
        trainer, found = _trained(task, grid, EXACT)
        entries, repeated = _exact(trainer, found, want), _repeated(task, grid, found, EXACT)
        result = {
            "traffic": forms.traffic(task, grid, found.traffic),
            "memory": forms.held(task, grid, trainer),
            "placement": placed(ctx, grid),
        }
        ctx.progress.phase("bf16")
        low, rounded = _trained(task, grid, TRAINED)
        entries += _in_training_dtype(trainer, rounded, unsharded(task, TRAINED), want)
        repeated += _repeated(task, grid, rounded, TRAINED)
        sent = payload.sent(ctx, grid)
        figures = {"step_seconds": _step_seconds(task, low), "imbalance": _imbalance(task, grid)}
        return {
            "parity": entries,
            "repeat": repeated,
            **result,
            "figures": {**sent["figures"], **figures},
            "wrong": sent["wrong"],
        }


def placed(ctx: Context, grid: Grid) -> Entries:
    """Say on which machines each line is."""
    ctx.progress.phase("placement")
    return [
        placement.entry(ctx, payload.layout_of(grid.axes, line.name), line.name, line.group.handle)
        for line in grid.used
    ]


def _trained(task: Task, grid: Grid, dtype: torch.dtype) -> tuple[Trainer, Trace]:
    trainer = Trainer(task, grid, dtype)
    return trainer, follow(task, trainer)


def _repeated(task: Task, grid: Grid, found: Trace, dtype: torch.dtype) -> Entries:
    """Train again from the start: the same bits, in the results and in all that was exchanged."""
    label = "bf16:" if dtype is TRAINED else ""
    trainer, again = _trained(task, grid, dtype)
    pairs = _pairs(trainer, again, found)
    same = [parity.equal(f"{label}{what}", got, before) for what, got, before in pairs]
    return same + found.delivered.entries(again.delivered, f" ({label[:-1]})" if label else "")


def _pairs(trainer: Trainer, found: Trace, want: Trace) -> Compared:
    """What a rank has to compare: the loss is where the last stage is."""
    losses = [("loss", found.losses, want.losses)] if trainer.last else []
    return [
        *losses,
        ("forward", found.forward, want.forward),
        *((f"grad:{name}", found.grads[name], want.grads[name]) for name in found.grads),
        *((f"param:{name}", found.params[name], want.params[name]) for name in found.params),
    ]


def _of_rank(trainer: Trainer, whole: Trace) -> Trace:
    """Keep of the unsharded run what this rank holds."""
    part = trainer.stage.part
    return Trace(whole.losses, whole.forward, part(whole.grads), part(whole.params))


def _exact(trainer: Trainer, found: Trace, want: Trace) -> Entries:
    pairs = _pairs(trainer, found, _of_rank(trainer, want))
    return _order(trainer) + [parity.entry(what, got, right) for what, got, right in pairs]


def _order(trainer: Trainer) -> Entries:
    """Who did what when, against 1F1B as its paper says: the number of places where they differ."""
    if trainer.schedule is None:
        return []
    task = trainer.task
    wanted = PLANS["one_f_one_b"].order(
        Shape(task.axes.stages, task.dims.micro_batches), trainer.grid.place[0]
    )
    done = [span.op for span in trainer.recorder.spans]
    differ = abs(len(done) - len(wanted)) + sum(a != b for a, b in zip(done, wanted))  # noqa: B905 - counted
    return [{"what": "order", "error": float(differ), "tolerance": 0.0}]


def _in_training_dtype(trainer: Trainer, found: Trace, plain: Trace, want: Trace) -> Entries:
    """In bf16 no more than three times as far from fp64 as the unsharded run.

    A rank's part is put into its place in the unsharded result, and all gradients are held as one, so are all
    weights: the error that the unsharded run has in a few numbers may be small by chance.
    """
    named = {
        "grads": (plain.grads, found.grads, want.grads),
        "params": (plain.params, found.params, want.params),
    }
    entries = [parity.bf16_entry("forward", found.forward, plain.forward, want.forward)]
    if trainer.last:
        entries.append(parity.bf16_entry("loss", found.losses, plain.losses, want.losses))
    for what, (alone, own, right) in named.items():
        placed = trainer.stage.placed(own, alone)
        summands = trainer.task.axes.stage_ranks if what == "grads" else 2  # those who add up, in bf16
        three = (_joined(one) for one in (placed, alone, right))
        entries.append(parity.bf16_entry(what, *three, summands=summands))
    return entries


def _joined(named: Named) -> Tensor:
    return torch.cat([one.double().flatten() for one in named.values()])


def _step_seconds(task: Task, trainer: Trainer) -> float:
    """One more training step in the training dtype, by the clock."""
    timing.barrier(task.ctx)
    began_s = time.perf_counter()
    trainer.step(task.dims.steps)
    timing.complete(task.ctx)
    return time.perf_counter() - began_s


def _imbalance(task: Task, grid: Grid) -> float:
    """The worst of all blocks and micro-batches: rows of the busiest rank over the mean."""
    return max(imbalance(sent) for sent in forms.routed(task, grid))
