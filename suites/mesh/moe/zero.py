"""ZeRO-1 beside pipelines and experts, as DeepSeek-V3 trains (arXiv:2412.19437, section 3.2).

Weights of one dtype that the same w ranks have are one bucket of P numbers: dense ones, and routers, on all
ranks of a stage, experts on their replicas. A rank has masters of P/w of them, in fp32 at least, and their
optimizer state. Once in a step gradients are reduce-scattered in fp32 and divided by the ranks of a
stage; updated masters are all-gathered in the weights' dtype (Rajbhandari et al.,
arXiv:1910.02054, section 5; with experts as in Megatron-Core's distributed optimizer):

    dp_cp, edp   reduce_scatter   P numbers of 4 bytes, or 8, of each bucket
                 all_gather       P numbers of the weights' dtype
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.driver import Entries, Left, Named, Run, Seen
from fixtures.ranks.study.models import gradient_of
from suites.context.ring_attention import wide
from suites.mesh.moe.grid import Grid
from suites.mesh.moe.held import zero1
from suites.mesh.moe.issued import LINE
from suites.mesh.moe.run import SHARDED, Mixture
from suites.mesh.moe.stage import is_expert
from suites.mesh.moe.task import Task
from suites.mesh.moe.training import Trainer
from suites.mesh.technique import RULE
from suites.tensor.regions import Group, all_gather, reduce_scatter


def bucket_of(name: str) -> str:
    """The bucket of a weight; a router is fp32 where the others are bf16."""
    return "experts" if is_expert(name) else "router" if ".router." in name else "dense"


class Bucket:
    """Weights that the same ranks have, and this rank's part of their masters."""

    def __init__(self, weights: dict[str, nn.Parameter], group: Group) -> None:
        self.weights, self.group = weights, group
        self.dtype = next(iter(weights.values())).dtype
        self.masters = nn.Parameter(self.cut(self.flat(weights.values())).to(wide(self.dtype)).clone())

    def flat(self, parts: Iterable[Tensor]) -> Tensor:
        """All of them concatenated, with zeros at the end where they do not divide."""
        whole = torch.cat([part.detach().flatten() for part in parts])
        return functional.pad(whole, (0, -len(whole) % self.group.size))

    def cut(self, flat: Tensor) -> Tensor:
        """This rank's part."""
        return self.group.part(flat, 0)

    def reduce(self, ranks: int) -> None:
        """Reduce the gradient onto the masters, and free the whole one."""
        grad = self.flat(map(gradient_of, self.weights.values())).to(self.masters.dtype)
        own = reduce_scatter(grad, 0, self.group) if self.group.size > 1 else grad
        self.masters.grad = own.div_(ranks)
        for weight in self.weights.values():
            weight.grad = None

    @property
    def rounded(self) -> Tensor:
        """The masters in the weights' dtype."""
        return self.masters.detach().to(self.dtype)

    def gather(self) -> None:
        """Gather the updated weights on all ranks."""
        own = self.rounded
        whole = all_gather(own, 0, self.group) if self.group.size > 1 else own
        for weight in self.weights.values():
            weight.data.copy_(whole[: weight.numel()].view_as(weight))
            whole = whole[weight.numel() :]


class Zero1(Trainer):
    """One rank's part; its optimizer has only this rank's masters."""

    def __init__(self, task: Task, grid: Grid, dtype: torch.dtype) -> None:
        super().__init__(task, grid, dtype)
        held = self.stage.weights()
        self.buckets = {
            kind: Bucket({name: held[name] for name in held if bucket_of(name) == kind}, grid.group(line))
            for kind, line in LINE.items()
        }
        self.optimizer = RULE.optimizer(bucket.masters for bucket in self.buckets.values())

    def weights(self) -> dict[str, nn.Parameter]:
        """The masters."""
        return {kind: bucket.masters for kind, bucket in self.buckets.items()}

    def gathered(self) -> dict[str, Tensor]:
        """All weights of the stage."""
        return {f"param:all {kind}": one.flat(one.weights.values()) for kind, one in self.buckets.items()}

    def part(self, whole: Named) -> dict[str, Tensor]:
        """This rank's losses, its stage's outputs, its part of each bucket, and all weights."""
        found = {what: whole[what] for what in ("forward", *["loss"] * self.last)}
        flats = {
            f"{what}:{kind}": bucket.flat(whole[f"{what}:{name}"] for name in bucket.weights)
            for what in ("grad", "param")
            for kind, bucket in self.buckets.items()
        }
        found |= {name: self.buckets[name.partition(":")[2]].cut(flat) for name, flat in flats.items()}
        return found | {f"param:all {kind}": flats[f"param:{kind}"] for kind in self.buckets}

    def step(self, number: int) -> dict[str, Tensor]:
        """Train, and gather what all ranks updated."""
        found = super().step(number)
        for bucket in self.buckets.values():
            bucket.gather()
        return found

    def synchronise(self) -> None:
        """Reduce every gradient to the rank that needs it."""
        for bucket in self.buckets.values():
            bucket.reduce(self.task.axes.stage_ranks)


class ZeroMixture(Mixture):
    """The mixture of experts whose optimizer is sharded."""

    patterns, engine, weighed = SHARDED, Zero1, staticmethod(zero1)

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[Trainer]:
        """Train; the weights that were gathered last are results too."""
        left = super().run(dtype, seen)
        assert isinstance(left.kept, Zero1)
        return replace(left, results={**left.results, **left.kept.gathered()})

    def beside(self, dtype: torch.dtype, run: Run[Trainer]) -> Entries:
        """Compare a rank's weights with its rounded masters."""
        assert isinstance(run.kept, Zero1)
        rounded = [
            parity.equal(f"rounded:{kind}", one.cut(one.flat(one.weights.values())), one.rounded)
            for kind, one in run.kept.buckets.items()
        ]
        return [*super().beside(dtype, run), *rounded]

    def found(self, engine: Trainer) -> dict[str, int]:
        """Add all weights of the stage, and their gradients, of which none is left after the step."""
        stage = engine.stage
        whole = {"all params": memory.parameter_bytes(stage), "all grads": memory.gradient_bytes(stage)}
        return super().found(engine) | whole
