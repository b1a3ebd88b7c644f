"""fully_shard with its options besides sharding: prefetch of the next block, a dtype for each purpose."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from fixtures.ranks.exact.dtypes import NAMES
from fixtures.ranks.study import parity
from fixtures.ranks.study.at_size import at_size
from fixtures.ranks.study.driver import EXACT, TRAINED, WIDE, Entries, Named, answer, run_once, same, study
from fixtures.ranks.study.pattern import sent
from fixtures.ranks.study.traffic import count_traffic
from suites.zero.answers import moves_of
from suites.zero.held import CAST, RESHARDED
from suites.zero.mixed import Casting, ReducedOnce
from suites.zero.training import Task, Trained
from suites.zero.wrapped import FullySharded, whole


class Prefetching(FullySharded):
    """Each block prefetches the one that computes after it, in forward and in backward."""

    def __init__(self, task: Task, mesh: DeviceMesh, dtype: torch.dtype) -> None:
        super().__init__(task, mesh, True, dtype)
        blocks = [block for block in self.model if isinstance(block, FSDPModule)]
        for block, after in itertools.pairwise(blocks):
            block.set_modules_to_forward_prefetch([after])
            after.set_modules_to_backward_prefetch([block])


def prefetched(task: Task, mesh: DeviceMesh) -> dict[str, Any]:
    """Run with prefetch, and compare it also with the same without: only the time may differ."""
    ahead = Trained(task, partial(Prefetching, task, mesh), RESHARDED)
    plain = Trained(task, partial(FullySharded, task, mesh, True), RESHARDED)
    if task.ctx.at_size:
        return at_size(task.ctx, ahead)
    done = study(task.ctx, ahead)
    told, moved = answer(done), sent(task.ctx, moves_of(task, gathers=2))
    for dtype, run in done.runs.items():
        without = run_once(plain, dtype)
        told["parity"] += same(without, run, f" (with prefetch against without, {NAMES[dtype]})")
    told["parity"].append(ahead_of_time(task, mesh))
    return {**told, **moved}


def ahead_of_time(task: Task, mesh: DeviceMesh) -> dict[str, Any]:
    """Count the blocks whose forward began before their own and the next block's gather were issued."""
    engine, issued = Prefetching(task, mesh, EXACT), list[int]()
    with count_traffic() as seen:

        def count(*_: object) -> None:
            issued.append(sum(call.op == "all_gather" for call in seen.calls))

        for block in engine.model:
            block.register_forward_pre_hook(count)
        engine.step(*task.share(0, EXACT))
    wanted = [min(number + 2, task.layers) for number in range(task.layers)]
    late = sum(found < right for found, right in zip(issued, wanted, strict=True))
    return {"what": "blocks gathered late in forward", "error": float(late), "tolerance": 0.0}


class Cast(FullySharded, ReducedOnce):
    """Parameters kept in fp32, gathered and used in bf16; gradients added up and reduced in fp32."""

    def __init__(self, task: Task, mesh: DeviceMesh) -> None:
        super().__init__(task, mesh, True, WIDE)
        self.first: Named = {}

    def policy(self) -> MixedPrecisionPolicy:
        """One dtype for computing, one for adding up."""
        return MixedPrecisionPolicy(param_dtype=TRAINED, reduce_dtype=WIDE)

    def around(self, last: bool) -> AbstractContextManager[object]:
        """Whole gradients of the micro-batches before the last one add up, and are not reduced."""
        self.root.set_requires_gradient_sync(last)
        return nullcontext()

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Keep the gradients of the first step."""
        loss = super().step(x, y)
        self.first = self.first or {name: grad.clone() for name, grad in self.gradients().items()}
        return loss

    def rounding(self) -> Entries:
        """Compare what is gathered, of all ranks."""
        self.reshard()
        masters = {name: whole(weight).to(TRAINED) for name, weight in self.model.named_parameters()}
        for block in self.model:
            if isinstance(block, FSDPModule):
                block.unshard()
        gathered = dict(self.model.named_parameters())
        held = [
            parity.equal(f"param:{name} is its master rounded", gathered[name], right)
            for name, right in masters.items()
        ]
        self.reshard()
        return held


def casts(task: Task, mesh: DeviceMesh) -> Casting[Cast]:
    """Numbers are kept and reduced in four bytes, gathered in two."""
    return Casting(
        task,
        lambda _: Cast(task, mesh),
        CAST,
    )
