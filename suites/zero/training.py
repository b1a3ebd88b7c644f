"""What every data-parallel step trains, and the unsharded run that it must equal.

A stack of MLP blocks learns by SGD with momentum (one state per parameter). Rank r of w has rows
r*n .. (r+1)*n of each batch; the loss is a mean over rows, so the mean of the ranks' gradients is the
gradient of the whole batch. Weights and data are numbers that bf16 holds, so that a run in bf16 and a run in
fp64 start from the same place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import nn

from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study.deliveries import Deliveries, record_deliveries
from fixtures.ranks.study.models import Mlp
from fixtures.ranks.study.traffic import Traffic, count_traffic

LEARNING_RATE = 5e-4
MOMENTUM = 0.9
TRAINING = torch.bfloat16
EXACT = torch.float64
_ALIGNED = 8  # elements of bf16 in 16 bytes

Named = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Task:
    """A model and its data. `width` is rounded up to a multiple of the ranks, so that nothing is padded.

    On a GPU it is one of 8 as well: where a flat buffer's parts begin at odd places, matrix products of bf16
    are rounded otherwise than those of fresh weights.
    """

    ctx: Context
    width: int
    layers: int
    rows: int
    steps: int

    @property
    def columns(self) -> int:
        """Features: a shard of a matrix then is a whole number of its rows."""
        multiple = math.lcm(self.ctx.size, 1 if self.ctx.device.type == "cpu" else _ALIGNED)
        return -(-self.width // multiple) * multiple

    def model(self, dtype: torch.dtype) -> nn.Sequential:
        """The same weights on every rank and in every dtype."""
        model = nn.Sequential(*(Mlp(self.columns, 2 * self.columns) for _ in range(self.layers)))
        source = torch.Generator().manual_seed(key(self.ctx.seed, 1) >> 1)
        with torch.no_grad():
            for weight in model.parameters():
                drawn = torch.randn(weight.shape, generator=source) / weight.shape[-1] ** 0.5
                weight.copy_(drawn.to(TRAINING))
        return model.to(self.ctx.device, dtype)

    def batch(self, number: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of all ranks."""
        source = torch.Generator().manual_seed(key(self.ctx.seed, 2, number) >> 1)
        both = torch.randn(2, self.rows * self.ctx.size, self.columns, generator=source).to(TRAINING)
        x, y = both.to(self.ctx.device, dtype)
        return x, y

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's rows."""
        return whole[self.ctx.rank * self.rows : (self.ctx.rank + 1) * self.rows]

    def share(self, number: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of this rank."""
        x, y = self.batch(number, dtype)
        return self.own(x), self.own(y)

    def losses(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Each rank's loss, of what all their rows give."""
        pairs = zip(torch.split(output.detach(), self.rows), torch.split(y, self.rows), strict=True)
        return torch.stack([loss_of(*pair) for pair in pairs])

    @property
    def elements(self) -> int:
        """Psi, in elements."""
        with torch.device("meta"):
            block = Mlp(self.columns, 2 * self.columns)
        return self.layers * sum(weight.numel() for weight in block.parameters())

    @property
    def block_elements(self) -> int:
        """Psi of one block."""
        return self.elements // self.layers


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Squared error, summed over features, its mean over rows."""
    return (output - target).square().sum(-1).mean()


def optimizer_of(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Make the optimizer of all steps: one state as large as the parameters."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)


@dataclass(frozen=True)
class Trace:
    """What a run leaves: losses of this rank's rows, last gradients, parameters, and the output they give.

    `traffic` is that of the last step, `delivered` what all exchanges of all steps brought. An unsharded run
    has the losses and the output of all ranks' rows as well.
    """

    losses: torch.Tensor
    grads: Named
    params: Named
    output: torch.Tensor
    traffic: Traffic = field(default_factory=Traffic)
    delivered: Deliveries = field(default_factory=Deliveries)
    all_losses: torch.Tensor | None = None
    all_output: torch.Tensor | None = None


class Engine(Protocol):
    """A technique at work on one rank. Gradients are those of the last step, averaged over the ranks."""

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Forward, backward, whatever is exchanged, update; give this rank's loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the output for this rank's rows."""

    def gradients(self) -> Named:
        """The part of the gradients that this rank holds."""

    def parameters(self) -> Named:
        """The part of the parameters that this rank holds."""

    def part(self, full: Named) -> Named:
        """The same part of full tensors."""

    def close(self) -> None:
        """Leave nothing behind."""


AnEngine = TypeVar("AnEngine", bound=Engine)
Make = Callable[[torch.dtype], AnEngine]


def follow(task: Task, engine: Engine, dtype: torch.dtype) -> Trace:
    """Train; the calls of the last step, the steady state, are counted."""
    with record_deliveries() as delivered:
        losses = [engine.step(*task.share(number, dtype)).detach() for number in range(task.steps - 1)]
        with count_traffic() as seen:
            losses.append(engine.step(*task.share(task.steps - 1, dtype)).detach())
        grads = {name: grad.detach().clone() for name, grad in engine.gradients().items()}
        params = {name: value.detach().clone() for name, value in engine.parameters().items()}
        with torch.no_grad():
            output = engine.forward(task.share(task.steps, dtype)[0])
    return Trace(torch.stack(losses), grads, params, output, seen, delivered)


def unsharded(task: Task, dtype: torch.dtype) -> Trace:
    """Train on the big batch, alone."""
    model = task.model(dtype)
    optimizer = optimizer_of(list(model.parameters()))
    losses = []
    for number in range(task.steps):
        x, y = task.batch(number, dtype)
        optimizer.zero_grad()
        output = model(x)
        torch.autograd.backward(loss_of(output, y))
        losses.append(task.losses(output, y))
        optimizer.step()
    grads = {name: gradient_of(weight) for name, weight in model.named_parameters()}
    return seen_by(task, model, losses, grads)


def seen_by(task: Task, model: nn.Module, losses: list[torch.Tensor], grads: Named) -> Trace:
    """Make the trace of an unsharded run: what this rank must find, and what all of them must."""
    params = {name: weight.detach() for name, weight in model.named_parameters()}
    dtype = next(iter(params.values())).dtype
    with torch.no_grad():
        output = model(task.batch(task.steps, dtype)[0])
    all_losses = torch.stack(losses)
    own_losses = all_losses[:, task.ctx.rank]
    return Trace(own_losses, grads, params, task.own(output), all_losses=all_losses, all_output=output)


def gradient_of(weight: torch.Tensor) -> torch.Tensor:
    """Its gradient; to have none is an error."""
    if weight.grad is None:
        raise RuntimeError(f"a parameter of shape {list(weight.shape)} has no gradient")
    return weight.grad.detach()
