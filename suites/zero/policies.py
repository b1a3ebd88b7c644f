"""fully_shard with what it offers beside sharding: prefetch of the next block, a dtype for each purpose."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from fixtures.ranks import timing
from fixtures.ranks.study import memory
from suites.zero import exchanges, mixed
from suites.zero.answers import ITEM, answer, holds
from suites.zero.evidence import repeat_entries, study, training_entries
from suites.zero.mixed import MASTER
from suites.zero.overlap import seconds_of
from suites.zero.training import EXACT, TRAINING, Named, Task, follow, loss_of, optimizer_of
from suites.zero.wrapped import FullySharded

_LOW_BYTES, _WIDE_BYTES = TRAINING.itemsize, MASTER.itemsize


class Prefetching(FullySharded):
    """Each block asks for the one that computes after it, in forward and in backward."""

    def __init__(self, task: Task, mesh: DeviceMesh, dtype: torch.dtype) -> None:
        super().__init__(task, mesh, True, dtype)
        blocks = [block for block in self.model if isinstance(block, FSDPModule)]
        for block, after in itertools.pairwise(blocks):
            block.set_modules_to_forward_prefetch([after])
            after.set_modules_to_backward_prefetch([block])


def prefetched(task: Task, mesh: DeviceMesh, speed: Mapping[str, int]) -> dict[str, Any]:
    """Run with prefetch, and hold it also against the same without: nothing but the time may differ."""
    psi, block, layers = ITEM * task.elements, ITEM * task.block_elements, task.layers
    share = psi // task.ctx.size
    done = study(task, partial(Prefetching, task, mesh))
    plain = follow(task, FullySharded(task, mesh, True, EXACT), EXACT)
    expected = {"reduce_scatter": (layers, psi), "all_gather": (2 * layers, 2 * psi)}
    traffic = done.trace.traffic.table(expected)
    done.engine.reshard()
    held = holds(done.engine, share, share, share)
    held.append(memory.entry("live unsharded", done.engine.live_bytes, 0))
    told = answer([done], traffic, held)
    told["parity"] += repeat_entries(done.trace, plain, " (with prefetch against without)")
    pattern = [("reduce_scatter", block)] * layers + [("all_gather", block)] * 2 * layers
    sent = exchanges.sent(task.ctx, pattern)
    hidden = hiding(task, mesh, **speed) if task.ctx.device.type == "cuda" else {}
    return {**told, **sent, "figures": {**sent["figures"], **hidden}}


def hiding(
    task: Task, mesh: DeviceMesh, *, width: int, layers: int, rows: int, repeats: int
) -> dict[str, float]:
    """Time a block's computing alone, its exchange alone, and both: how much of the shorter hides.

    overlap = (T_compute + T_exchange - T_both) / min(T_compute, T_exchange), as of DDP.
    """
    large = Task(task.ctx, width, layers, rows, 1)
    x = torch.randn(rows, large.columns, device=task.ctx.device).to(TRAINING)
    alone, sharded = large.model(TRAINING), Prefetching(large, mesh, TRAINING)
    item = TRAINING.itemsize * large.block_elements
    pattern = [("reduce_scatter", item)] * layers + [("all_gather", item)] * 2 * layers
    exchange = exchanges.Pattern(task.ctx, pattern, "bf16")
    exchange.prepare(0)
    runs: dict[str, Callable[[], None]] = {
        "compute": lambda: _train(alone, x),
        "exchange": lambda: exchange.run(0),
        "both": lambda: _train(sharded.model, x),
    }
    for run in runs.values():
        run()  # once, for kernels and buffers
    timing.complete(task.ctx)
    spent_s = {name: statistics.median(seconds_of(task.ctx, run, repeats)) for name, run in runs.items()}
    hidden_s = spent_s["compute"] + spent_s["exchange"] - spent_s["both"]
    figures = {f"{name}_seconds": seconds for name, seconds in spent_s.items()}
    return {"overlap": hidden_s / min(spent_s["compute"], spent_s["exchange"]), **figures}


def _train(model: torch.nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    torch.autograd.backward(loss_of(model(x), x))


class Cast(FullySharded):
    """Parameters kept in fp32, gathered and used in bf16; gradients reduced in fp32."""

    def __init__(self, task: Task, mesh: DeviceMesh) -> None:
        super().__init__(task, mesh, True, MASTER)
        self.first: Named = {}

    def policy(self) -> MixedPrecisionPolicy:
        """One dtype for computing, one for adding up."""
        return MixedPrecisionPolicy(param_dtype=TRAINING, reduce_dtype=MASTER)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Keep the gradients of the first step."""
        loss = super().step(x, y)
        self.first = self.first or {name: grad.clone() for name, grad in self.gradients().items()}
        return loss


def cast(task: Task, mesh: DeviceMesh) -> dict[str, Any]:
    """Hold the first reduction against the fp64 mean of all ranks' bf16 gradients, and all that follows by
    three times the error of the unsharded run that casts in the same places.
    """
    engine = Cast(task, mesh)
    found = follow(task, engine, TRAINING)
    want, plain = (mixed.unsharded(task, low, optimizer_of) for low in (False, True))
    elements, layers, block = task.elements, task.layers, task.block_elements
    entries = mixed.reduction_entries(task, engine)
    expected = {
        "reduce_scatter": (layers, _WIDE_BYTES * elements),
        "all_gather": (2 * layers, 2 * _LOW_BYTES * elements),
    }
    engine.reshard()
    share = _WIDE_BYTES * elements // task.ctx.size
    held = holds(engine, share, share, share)
    held.append(memory.entry("live unsharded", engine.live_bytes, 0))
    pattern = [("reduce_scatter", _WIDE_BYTES * block)] * layers
    pattern += [("all_gather", _LOW_BYTES * block)] * 2 * layers
    return {
        "parity": entries + training_entries(found, plain, want, engine),
        "repeat": repeat_entries(follow(task, Cast(task, mesh), TRAINING), found),
        "traffic": found.traffic.table(expected),
        "memory": held,
        **exchanges.sent(task.ctx, pattern),
    }
