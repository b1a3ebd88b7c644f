"""Mixed precision as the ZeRO paper counts it: 2 Psi + 2 Psi + 12 Psi / w bytes for Psi parameters.

Parameters and gradients are bf16 (2 bytes each); a rank updates fp32 masters with AdamW (4 + 4 + 4 bytes) of
its shard alone. Gradients are widened before they are reduced: a sum in bf16 would round w - 1 times. For the
same reason those of several micro-batches add up in fp32, which is 4 Psi bytes more (Megatron-Core's
`main_grad`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.driver import EXACT, TRAINED, WIDE, Entries, Named, Run
from fixtures.ranks.study.memory import storage_bytes
from fixtures.ranks.study.models import gradient_of
from fixtures.ranks.study.updates import AdamW, Rule
from fixtures.wire.held import Weighed
from suites.zero.flat import FlatBlock, Zero1, reduce_scatter
from suites.zero.held import MIXED
from suites.zero.training import Engine, Task, Trained, loss_of, whole_results

ADAM = AdamW(rate=1e-3, decay=0.1)
EPSILON_BITS = 24  # half the spacing of fp32 at 1 is 2^-24


class ReducedOnce(Engine, ABC):
    """An engine that keeps this rank's part of the first step's gradients, as they were reduced."""

    first: Named

    @abstractmethod
    def rounding(self) -> Entries:
        """Compare the parameters in use with the rounded masters."""


Reduced = TypeVar("Reduced", bound=ReducedOnce)


class MixedZero1(Zero1, ReducedOnce):
    """Stage 1 on bf16 parameters, with fp32 masters of this rank's shards.

    Micro-batches that add up end in a fused update: both kinds of update are run.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task, TRAINED)
        self.masters = [nn.Parameter(block.shard.detach().to(WIDE)) for block in self.blocks]
        self.optimizer = ADAM.optimizer(self.masters, fused=task.micro_batches > 1)
        self.first: Named = {}
        self.main: list[torch.Tensor] = []
        self.main_bytes = 0

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Widen the gradients and add them up, with the last ones reduce them onto the masters."""
        for block in self.blocks:
            block.expect_gradients()
        torch.autograd.backward(loss)
        self.watch()
        if self.task.micro_batches > 1:
            self._add_up()
        if last:
            self._reduce()

    def _add_up(self) -> None:
        self.main = self.main or [torch.zeros_like(block.full, dtype=WIDE) for block in self.blocks]
        for main, block in zip(self.main, self.blocks, strict=True):
            main.add_(_taken(block))
        self.main_bytes = storage_bytes(self.main)

    def _reduce(self) -> None:
        for number, master in reversed(list(enumerate(self.masters))):
            master.grad = torch.empty_like(master)
            reduce_scatter(master.grad, self._widened(number))
        self.main = []
        self.first = self.first or {name: grad.clone() for name, grad in self.gradients().items()}

    def _widened(self, number: int) -> torch.Tensor:
        """A block's gradients in fp32, which are not kept when they are reduced."""
        return self.main[number] if self.main else _taken(self.blocks[number]).to(WIDE)

    def publish(self) -> None:
        """Round the masters into the shards, and gather the shards on all ranks."""
        with torch.no_grad():
            for block, master in zip(self.blocks, self.masters, strict=True):
                block.shard.copy_(master)
        super().publish()

    def gradients(self) -> Named:
        """The masters' gradients, by block."""
        return {str(number): gradient_of(master) for number, master in enumerate(self.masters)}

    def updated(self) -> Named:
        """The masters, by block."""
        return {str(number): master for number, master in enumerate(self.masters)}

    def rounding(self) -> Entries:
        """Compare the shards."""
        pairs = zip(self.blocks, self.masters, strict=True)
        return [
            parity.equal(f"param:{number} is its master rounded", block.shard, master.detach().to(TRAINED))
            for number, (block, master) in enumerate(pairs)
        ]

    def held(self) -> Weighed:
        """2 + 2 + 12 / w bytes per parameter, and 4 / w for the reduced gradients."""
        params = storage_bytes([tensor for block in self.blocks for tensor in (block.full, block.shard)])
        return {
            "params": params,
            "grads": self.gradient_peak_bytes,
            "grads added up": self.main_bytes,
            "optimizer": memory.optimizer_bytes(self.optimizer) + storage_bytes(list(self.masters)),
            "grads reduced": storage_bytes(list(self.gradients().values())),
        }


def _taken(block: FlatBlock) -> torch.Tensor:
    """Take a block's whole gradients away from it."""
    grad, block.grad = block.grad, None
    for weight in block.weights:
        weight.grad = None
    if grad is None:
        raise RuntimeError("gradients are reduced before there are any")
    return grad


@dataclass
class Casting(Trained[Reduced]):
    """A technique that runs only in bf16, and keeps its masters wide.

    After the first reduction, results may have three times the error of the unsharded run that casts in the
    same places.
    """

    dtypes: Sequence[torch.dtype] = (TRAINED,)

    def reference(self, dtype: torch.dtype) -> Named:
        """Train alone: in bf16 with casts in the same places, in fp64 without casts."""
        return unsharded(self.task, dtype is TRAINED, self.rule)

    def beside(self, dtype: torch.dtype, run: Run[Reduced]) -> Entries:
        """Check the first reduction by itself, and the last rounding, too."""
        held = super().beside(dtype, run) + reduction_entries(self.task, run.kept)
        return held + run.kept.rounding()


def mixed_zero1(task: Task, variant: str = "") -> Casting[MixedZero1]:
    """Stage 1 that reduces four bytes of a gradient and gathers two of a parameter."""
    return Casting(task, lambda _: MixedZero1(task), MIXED, variant, ADAM)


def unsharded(task: Task, mixed: bool, rule: Rule = ADAM) -> Named:
    """Train alone: in fp64, or with bf16 parameters, fp32 masters, and gradients rounded rank by rank."""
    dtype, kept = (TRAINED, WIDE) if mixed else (EXACT, EXACT)
    model = task.model(dtype)
    masters = [nn.Parameter(weight.detach().to(kept)) for weight in model.parameters()]
    optimizer, losses, grads = rule.optimizer(masters), [], dict[str, torch.Tensor]()
    names = [name for name, _ in model.named_parameters()]
    for number in range(task.steps):
        x, y = task.batch(number, dtype)
        losses.append(_accumulate(task, model, masters, (x, y)))
        optimizer.step()
        task.add_up(grads, {name: gradient_of(one) for name, one in zip(names, masters, strict=True)})
        with torch.no_grad():
            for weight, master in zip(model.parameters(), masters, strict=True):
                weight.copy_(master)
    return whole_results(task, model, losses, grads)


def _accumulate(
    task: Task, model: nn.Module, masters: list[nn.Parameter], batch: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Average every rank's gradients onto the masters; give every rank's loss."""
    losses = []
    for master in masters:
        master.grad = torch.zeros_like(master)
    rows, pieces = task.rows // task.micro_batches, task.ctx.size * task.micro_batches
    for x, y in zip(*(torch.split(whole, rows) for whole in batch), strict=True):
        model.zero_grad()
        losses.append(loss_of(model(x), y))
        torch.autograd.backward(losses[-1])
        for weight, master in zip(model.parameters(), masters, strict=True):
            gradient_of(master).add_(gradient_of(weight), alpha=1 / pieces)
    return torch.stack(losses).detach().view(task.ctx.size, -1).double().mean(1)


def reduction_entries(task: Task, engine: ReducedOnce) -> Entries:
    """Compare the first step's reduced gradients with the fp64 mean of every rank's bf16 gradients.

    All ranks start from the same weights, so this rank can compute what each of them adds with each of its
    micro-batches. A mean of n numbers g_i in fp32 is within n * 2^-24 * mean|g_i| (Higham, "Accuracy and
    Stability of Numerical Algorithms", section 4.2); a sum in bf16 is off by some 2^-9.
    """
    total: dict[str, torch.Tensor] = {}
    size: dict[str, torch.Tensor] = {}
    pieces = task.ctx.size * task.micro_batches
    model = task.model(TRAINED)
    for rank in range(task.ctx.size):
        for _, x, y in task.pieces(*task.rows_of(rank, 0, TRAINED)):
            for name, grad in _gradients_of(model, x, y).items():
                total[name] = total.get(name, torch.zeros_like(grad)) + grad / pieces
                size[name] = size.get(name, torch.zeros_like(grad)) + grad.abs() / pieces
    right, bound = engine.part(total), engine.part(size)
    entries = []
    for name, grad in engine.first.items():
        scale = float(bound[name].max()) / float(right[name].abs().max())
        tolerance = (pieces + 1) * math.ldexp(scale, -EPSILON_BITS)
        entries.append(parity.entry(f"grad:{name} reduced in fp32", grad, right[name], tolerance))
    return entries


def _gradients_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of one micro-batch."""
    model.zero_grad()
    torch.autograd.backward(loss_of(model(x), y))
    return {name: gradient_of(weight).to(EXACT) for name, weight in model.named_parameters()}
