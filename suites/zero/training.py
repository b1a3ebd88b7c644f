"""What every data-parallel step trains, and the unsharded run that it must equal.

A stack of MLP blocks learns by SGD with momentum (one state per parameter). Rank r of w has rows
r*n .. (r+1)*n of each batch; the loss is a mean over rows, so the mean of the ranks' gradients is the
gradient of the whole batch. Weights and data are numbers that bf16 holds, so that a run in bf16 and a run in
fp64 start from the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory
from fixtures.ranks.study.at_size import drawn, made
from fixtures.ranks.study.driver import EXACT, TRAINED, Entries, Form, Left, Named, Run, Seen, Technique
from fixtures.ranks.study.fitting import fit
from fixtures.ranks.study.models import Mlp, gradient_of
from fixtures.ranks.study.updates import Rule, Sgd, Updates
from fixtures.wire.held import PEAK, Weighed
from suites.zero import clipping, issued
from suites.zero.held import Kind
from suites.zero.issued import Sizes

RULE = Sgd(rate=5e-4, momentum=0.9)
# Targets are scaled by this, and more at the size of training: by gradients so much larger, an update moves
# weights by several of bf16's steps, so that weights of the step before are not taken for the new ones.
FAR, FARTHER = 1 << 6, 1 << 10
_PART = 0.25  # of an MLP's output, so that deep stacks keep their size
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Task:
    """A model and its data. `width` is rounded up to a multiple of the ranks, so that nothing is padded.

    On a GPU it is a multiple of 8 as well: where parts of a flat buffer are not aligned, matrix products of
    bf16 are rounded differently from those of fresh weights. Engines that add up gradients take a rank's rows
    in `micro_batches`.
    """

    ctx: Context
    width: int
    layers: int
    rows: int
    steps: int
    micro_batches: int = 1
    clip: float = 0.0  # the largest norm of all gradients; 0: any

    def __post_init__(self) -> None:
        """Refuse what does not fit, and rows that micro-batches do not share.

        A parameter takes 12 bytes in the unsharded run in fp32, 6 in that in bf16, 20 more while results are
        compared, and 8 for two runs' results; a row 11 numbers a block, besides the batch. There are 6
        operations per parameter and row, in both unsharded runs and, for own rows, in two more.
        """
        if self.rows % self.micro_batches:
            raise ValueError(f"{self.rows} rows cannot be cut into {self.micro_batches} micro-batches")
        computed = 6 * self.elements * self.rows * (self.steps + 1) * (2 * self.ctx.size + 2)
        held = 4 * self.rows * self.columns * (11 * self.layers + 3 * self.ctx.size)
        fit(self.ctx, 46 * self.elements + held, computed)

    @property
    def columns(self) -> int:
        """Features, such that a shard of a matrix is a whole number of its rows."""
        return issued.columns(self.width, self.ctx.size, self.ctx.device.type != "cpu")

    def model(self, dtype: torch.dtype) -> nn.Sequential:
        """The same weights on every rank and in every dtype."""
        if self.ctx.at_size:
            return made(self._blocks, key(self.ctx.seed, 1), self.ctx.device, dtype)
        model = self._blocks()
        source = torch.Generator().manual_seed(key(self.ctx.seed, 1) >> 1)
        with torch.no_grad():
            for weight in model.parameters():
                drawn = torch.randn(weight.shape, generator=source) / weight.shape[-1] ** 0.5
                weight.copy_(drawn.to(TRAINED))
        return model.to(self.ctx.device, dtype)

    def reference(self, dtype: torch.dtype) -> nn.Sequential:
        """The model that one rank trains alone, on the rows of all."""
        return self.model(dtype)

    def _blocks(self) -> nn.Sequential:
        return nn.Sequential(*(Block(self.columns, 2 * self.columns) for _ in range(self.layers)))

    def batch(self, number: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of all ranks."""
        parts = [self.rows_of(rank, number, dtype) for rank in range(self.ctx.size)]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    def rows_of(self, rank: int, number: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of a rank."""
        seed = key(self.ctx.seed, 2, number, rank)
        x, y = drawn(seed, (2, self.rows, self.columns), self.ctx.device).to(dtype)
        y.mul_(FARTHER if self.ctx.at_size else FAR)  # in place: `fit` plans no further copy of a batch
        return x, y

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's rows."""
        return whole[self.ctx.rank * self.rows : (self.ctx.rank + 1) * self.rows]

    def share(self, number: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of this rank."""
        return self.rows_of(self.ctx.rank, number, dtype)

    def pieces(self, x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[bool, torch.Tensor, torch.Tensor]]:
        """Inputs and targets of every micro-batch, and whether it is the last."""
        pairs = list(zip(x.chunk(self.micro_batches), y.chunk(self.micro_batches), strict=True))
        for number, (own, wanted) in enumerate(pairs, 1):
            yield number == len(pairs), own, wanted

    def losses(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Each rank's loss, the mean of those of its micro-batches, from the outputs of all rows."""
        rows = self.rows // self.micro_batches
        pairs = zip(torch.split(output.detach(), rows), torch.split(y, rows), strict=True)
        return torch.stack([loss_of(*pair) for pair in pairs]).view(self.ctx.size, -1).double().mean(1)

    def add_up(self, total: dict[str, torch.Tensor], gradients: Named) -> None:
        """Add a step's gradients to those before it, in fp64; large ones take the place of those before."""
        for name, grad in gradients.items():
            total[name] = grad if self.ctx.at_size else total.get(name, 0) + grad.detach().to(EXACT)

    @property
    def sizes(self) -> Sizes:
        """The sizes that the closed forms depend on."""
        return Sizes(
            self.ctx.size,
            self.columns,
            self.layers,
            self.rows,
            self.ctx.size,
            self.ctx.rank,
            self.micro_batches,
            bool(self.clip),
            self.ctx.device.type != "cpu",
        )

    @property
    def elements(self) -> int:
        """Psi, in elements."""
        return self.sizes.elements

    @property
    def block_elements(self) -> int:
        """Psi of one block."""
        return self.sizes.block_elements


class Block(Mlp):
    """An MLP beside a residual stream: of gates alone six blocks give 1e-16, and no weight matters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the same shape."""
        return torch.add(x, super().forward(x), alpha=_PART)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Squared error, summed over features, averaged over rows."""
    return (output - target).square().sum(-1).mean()


class Engine:
    """A technique on one rank. Gradients are those of the last step, averaged over the ranks."""

    task: Task
    model: nn.Sequential
    optimizer: torch.optim.Optimizer
    updates: Updates
    live_bytes = 0  # of whole parameters between a forward and its backward

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Forward and backward of every micro-batch, exchange, update; give this rank's loss."""
        self.optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64, device=x.device)  # a sum in bf16 would round each time
        for last, own, wanted in self.task.pieces(x, y):
            with self.around(last):
                loss = loss_of(self.forward(own), wanted) / self.task.micro_batches
                self.live_bytes = self.unsharded_bytes()
                self.backward(loss, last)
            total += loss.detach()
        self.optimizer.step()
        self.publish()
        return total

    def around(self, last: bool) -> AbstractContextManager[object]:
        """The context for a micro-batch."""
        return nullcontext()

    def unsharded_bytes(self) -> int:
        """Bytes of whole parameters now; 0 where that is not judged."""
        return 0

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Run torch's backward, whose hooks exchange gradients."""
        torch.autograd.backward(loss)

    def publish(self) -> None:
        """Give all ranks the updated parameters, where the optimizer does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the output for this rank's rows."""
        output: torch.Tensor = self.model(x)
        return output

    def gradients(self) -> Named:
        """The part of the gradients that this rank holds."""
        return {name: gradient_of(weight) for name, weight in self.model.named_parameters()}

    def parameters(self) -> Named:
        """The part of the parameters that this rank holds."""
        return dict(self.model.named_parameters())

    def updated(self) -> Named:
        """The part that the optimizer updates, by the names of its gradients."""
        return self.parameters()

    def part(self, full: Named) -> Named:
        """The same part of full tensors."""
        return full

    def held(self) -> Weighed:
        """What it holds now."""
        return {
            "params": memory.parameter_bytes(self.model),
            "grads": memory.gradient_bytes(self.model),
            "optimizer": memory.optimizer_bytes(self.optimizer),
        }

    def beside(self, dtype: torch.dtype) -> Entries:
        """What else must hold after training."""
        return []

    def close(self) -> None:
        """Leave nothing behind."""


AnEngine = TypeVar("AnEngine", bound=Engine)
Make = Callable[[torch.dtype], AnEngine]


@dataclass
class Trained(Technique[AnEngine]):
    """A technique that trains a task.

    `kind` has the closed forms of what a step issues, and of what an engine holds.
    """

    task: Task
    make: Make[AnEngine]
    kind: Kind
    variant: str = ""
    rule: Rule = RULE
    joined = ("grad", "param")

    @property
    def sizes(self) -> Sizes:
        """What the closed forms are made of."""
        return self.task.sizes

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[AnEngine]:
        """Train from the start."""
        engine = self.make(dtype)
        norms = clipping.clip(engine.optimizer, self.task.clip)
        updates = None if seen.watched else Updates(engine.updated(), self.rule)
        if updates is not None:
            engine.updates = updates
        found = follow(self.task, engine, dtype, seen, updates)
        return Left({**found, **clipping.of_norms(norms)}, engine)

    def reference(self, dtype: torch.dtype) -> Named:
        """Train on the whole batch, alone."""
        return unsharded(self.task, dtype)

    def part(self, whole: Named, kept: AnEngine) -> Named:
        """This rank's losses and rows, and what its engine holds of gradients and parameters."""
        return part_of(self.task, whole, kept)

    def summands(self, what: str) -> int:
        """All ranks add up their gradients, of every micro-batch."""
        return self.task.ctx.size * self.task.micro_batches if what == "grads" else 2

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """What a step issues among all ranks."""
        return [Form(self.kind.calls(self.sizes, dtype.itemsize))]

    def memory(self, dtype: torch.dtype, run: Run[AnEngine]) -> Entries:
        """What the engine holds after training."""
        return memory.entries(run.kept.held(), self.kind.holds(self.sizes, dtype.itemsize))

    def beside(self, dtype: torch.dtype, run: Run[AnEngine]) -> Entries:
        """Compare the updates with their rule."""
        return run.kept.updates.entries(run.kept.updated()) + run.kept.beside(dtype)

    def peak(self, dtype: torch.dtype) -> int:
        """The ceiling of a step."""
        return self.kind.holds(self.sizes, dtype.itemsize)[PEAK]

    def close(self, kept: AnEngine) -> None:
        """Close the engine."""
        kept.close()


def part_of(task: Task, whole: Named, engine: Engine) -> Named:
    """The part of whole results of a rank and its engine."""
    found = {"loss": whole["loss"][:, task.ctx.rank], "forward": task.own(whole["forward"])}
    found |= {"norm": whole["norm"]} if task.clip else {}
    for kind in ("grad", "param"):
        found |= of_kind(kind, engine.part(_kind(kind, whole)))
    return found


def follow(
    task: Task, engine: Engine, dtype: torch.dtype, seen: Seen, updates: Updates | None = None
) -> Named:
    """Train; the calls of the last step, the steady state, are counted.

    Without `updates`, gradients are those that the engine has at the end.
    """
    losses, grads = [], dict[str, torch.Tensor]()
    for number in range(task.steps):
        share = task.share(number, dtype)
        with seen() if number == task.steps - 1 else nullcontext():
            losses.append(engine.step(*share).detach())
        if updates is not None:
            updates.follow(engine.gradients())
            task.add_up(grads, engine.gradients())
    grads, params = grads or dict(engine.gradients()), engine.parameters()
    found = {**of_kind("grad", grads), **of_kind("param", params)}
    kept = {name: tensor.detach().clone() for name, tensor in found.items()}
    with torch.no_grad():
        output = engine.forward(task.share(task.steps, dtype)[0])
    return {"loss": torch.stack(losses), "forward": output, **kept}


def unsharded(task: Task, dtype: torch.dtype) -> Named:
    """Train on the whole batch, alone."""
    model = task.reference(dtype)
    optimizer = RULE.optimizer(model.parameters())
    losses, norms, grads = [], [], dict[str, torch.Tensor]()
    for number in range(task.steps):
        x, y = task.batch(number, dtype)
        optimizer.zero_grad()
        output = in_pieces(model, loss_of, x, y, task.ctx.size if task.ctx.at_size else 1)
        losses.append(task.losses(output, y))
        norms += clipping.clip_alone(model, task.clip)
        optimizer.step()
        task.add_up(grads, {name: gradient_of(weight) for name, weight in model.named_parameters()})
    return {**whole_results(task, model, losses, grads), **clipping.of_norms(norms)}


def in_pieces(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor, pieces: int) -> torch.Tensor:
    """Forward and backward of a batch in equal `pieces`, one after another; give the whole output."""
    outputs = []
    for one, target in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
        output = model(one)
        torch.autograd.backward(loss(output, target) / pieces)
        outputs.append(output.detach())
    return torch.cat(outputs)


def whole_results(task: Task, model: nn.Module, losses: list[torch.Tensor], grads: Named) -> Named:
    """What an unsharded run gives: losses (steps, ranks), the next batch's output, gradients, parameters."""
    params = {name: weight.detach() for name, weight in model.named_parameters()}
    dtype = next(iter(params.values())).dtype
    with torch.no_grad():
        rows = torch.split(task.batch(task.steps, dtype)[0], task.rows)
        output = torch.cat([model(one) for one in rows]) if task.ctx.at_size else model(torch.cat(rows))
    both = {**of_kind("grad", grads), **of_kind("param", params)}
    return {"loss": torch.stack(losses), "forward": output, **both}


def of_kind(kind: str, named: Named) -> dict[str, torch.Tensor]:
    """Name them as results of a kind."""
    return {f"{kind}:{name}": tensor for name, tensor in named.items()}


def _kind(kind: str, results: Named) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(f"{kind}:"): one for name, one in results.items() if name.startswith(f"{kind}:")
    }
