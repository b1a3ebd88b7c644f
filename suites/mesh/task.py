"""What the dense steps train on a mesh: a small Llama, its data, and the run on one rank that it must equal.

Rank (d, c) of the axes dp and cp has its rows of every batch, and of these its positions. The loss is a mean
over tokens, and every rank has equally many, so the mean of the ranks' gradients is the gradient of the whole
batch. Weights are numbers that bf16 holds, so that runs in bf16 and fp64 start from the same place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study.at_size import made
from fixtures.ranks.study.driver import TRAINED, Named
from fixtures.ranks.study.fitting import fit
from fixtures.ranks.study.models import Llama, seeded, tokens
from suites.context import layout as context_layout
from suites.mesh.issued import GROUPED, Sizes
from suites.mesh.technique import RULE, loss_of, stacked, trained
from suites.zero import clipping
from suites.zero.training import in_pieces

BATCHES = 2  # batches that take turns, so that a loss curve falls


@dataclass(frozen=True)
class Task(Sizes):
    """The same problem on every rank."""

    ctx: Context = field(kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what does not fit.

        A parameter takes 36 bytes: 12 in the unsharded run in fp32, 6 in that in bf16, 12 while results are
        compared, and 6 in this rank's runs. Backward has the scores of one sequence five times in fp32, and
        all logits in fp32 and bf16. Both unsharded runs take 6 operations per parameter and token.
        """
        block = self.width * (3 * self.width + 3 * self.hidden)
        elements = self.layers * block + 2 * self.width * self.hidden
        positions = self.rows * self.layout.size("dp") * self.length
        scores = self.layers * GROUPED * self.kv_heads * self.length**2
        held = 36 * elements + 20 * scores + 6 * positions * self.hidden * self.steps
        fit(self.ctx, held, 12 * self.steps * positions * elements)

    def model(self, dtype: torch.dtype) -> Llama:
        """The same weights on every rank and in every dtype."""
        sizes = (self.width, self.layers, GROUPED * self.kv_heads, self.kv_heads, self.hidden)
        if self.ctx.at_size:
            return made(lambda: Llama(self.words, *sizes), self.ctx.seed, self.ctx.device, dtype)
        with seeded(self.ctx.seed):
            model = Llama(self.words, *sizes)
        return model.to(TRAINED).to(self.ctx.device, dtype)

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of all ranks."""
        seed = key(self.ctx.seed, 3, number % BATCHES) >> 1
        both = tokens(seed, 2 * self.rows * self.layout.size("dp"), self.length, self.words)
        x, y = both.to(self.ctx.device).chunk(2)
        return x, y

    @cached_property
    def positions(self) -> list[Tensor]:
        """The positions of every cp rank: all of them, or a piece from the front and one from the back."""
        ranks = self.layout.size("cp")
        return context_layout.zigzag(self.length, ranks) if ranks > 1 else [torch.arange(self.length)]

    @property
    def own_positions(self) -> Tensor:
        """The positions of this rank."""
        own: Tensor = self.positions[self.layout.place(self.ctx.rank, "cp")].to(self.ctx.device)
        return own

    def own(self, whole: Tensor) -> Tensor:
        """This rank's rows and positions of (rows, positions, ...)."""
        first = self.layout.place(self.ctx.rank, "dp") * self.rows
        return whole[first : first + self.rows].index_select(1, self.own_positions)


def unsharded(task: Task, dtype: torch.dtype) -> Named:
    """Train on the batches of all ranks, alone; losses and logits are those of this rank's tokens."""
    model = task.model(dtype)
    optimizer, steps = RULE.optimizer(model.parameters()), []
    for number in range(task.steps):
        x, y = task.batch(number)
        optimizer.zero_grad()
        logits = task.own(in_pieces(model, loss_of, x, y, len(x) if task.ctx.at_size else 1))
        norm = clipping.of_norms(clipping.clip_alone(model, task.clip))
        steps.append({"loss": loss_of(logits, task.own(y)), "logits": logits, **norm})
        optimizer.step()
    return stacked(steps) | trained(dict(model.named_parameters()))
