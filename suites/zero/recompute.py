"""Activation checkpointing: a block keeps only its input and computes the rest again during backward.

Of n rows of d features, a block of the stack saves its input (n d), both halves of the gate (2 n d each), the
silu of one (2 n d), their product (2 n d), and the mask of what it drops (n d): 10 n d elements. With
recomputation it saves n d, and must draw the same mask again. The loss saves n d (Chen et al., "Training Deep
Nets with Sublinear Memory Cost", arXiv:1604.06174).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils import checkpoint as checkpointing

from fixtures.ranks.exact.payload import key
from fixtures.ranks.study import memory
from fixtures.ranks.study.dropout import drawn_from, drop, next_drawn
from fixtures.wire.held import Weighed
from suites.zero.answers import replicated
from suites.zero.held import KINDS
from suites.zero.training import Task, Trained, loss_of
from suites.zero.wrapped import Replicated

_MASKS = 3  # the stream of their seeds


@dataclass(frozen=True)
class Dropping(Task):
    """Every block drops a share of its output, in training.

    A step has a seed on each rank, from which torch draws the masks of all blocks in turn.
    """

    dropout: float = 0.0

    def seed(self, rank: int, number: int) -> int:
        """The seed of a rank and step."""
        return key(self.ctx.seed, _MASKS, rank, number) >> 1

    def reference(self, dtype: torch.dtype) -> nn.Sequential:
        """The unsharded model, with the masks that all ranks draw."""
        model, drawn = super().reference(dtype), list[torch.Tensor]()
        shapes = [(self.rows, self.columns)] * self.layers

        def begin(number: int) -> None:
            seeds = [self.seed(rank, number) for rank in range(self.ctx.size)]
            by_rank = [drawn_from(seed, self.ctx.device, shapes) for seed in seeds]
            drawn[:] = [torch.cat(parts) for parts in zip(*by_rank, strict=True)]

        _drops(model, self.dropout, begin, lambda _: drawn.pop(0))
        return model


def _drops(
    model: nn.Sequential,
    share: float,
    begin: Callable[[int], object],
    draw: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Make every block drop what is drawn; a forward with gradients begins the next step."""
    numbers = itertools.count()

    def before(*_: object) -> None:
        if torch.is_grad_enabled():
            begin(next(numbers))

    def dropping(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        out = forward(x)
        return drop(out, share, draw(out)) if torch.is_grad_enabled() else out

    model.register_forward_pre_hook(before)
    for block in model:
        block.forward = functools.partial(dropping, block.forward)


class Dropped(Replicated):
    """DDP around a stack with dropout, which is drawn from torch's global generator."""

    def __init__(self, task: Dropping, dtype: torch.dtype, bucket_bytes: int) -> None:
        super().__init__(task, dtype, bucket_bytes)
        own = functools.partial(task.seed, task.ctx.rank)
        _drops(self.model, task.dropout, lambda number: torch.manual_seed(own(number)), next_drawn)

    def held(self) -> Weighed:
        """What one forward saves for backward; the parameters do not count."""
        dtype = next(self.model.parameters()).dtype
        x, y = (own.clone() for own in self.task.share(0, dtype))  # without each other's storage

        def forward() -> torch.Tensor:
            return loss_of(self.model(x), y)

        return {"activations": memory.saved_activation_bytes(forward, self.model.parameters())}


class Recomputed(Dropped):
    """DDP around a stack whose blocks are checkpointed."""

    def __init__(self, task: Dropping, dtype: torch.dtype, bucket_bytes: int) -> None:
        super().__init__(task, dtype, bucket_bytes)
        for block in self.model:
            block.forward = functools.partial(checkpointing.checkpoint, block.forward, use_reentrant=False)


def recomputed(task: Dropping) -> tuple[Trained[Replicated], Trained[Replicated]]:
    """DDP with checkpointing, and without."""
    less, more = (
        replicated(task, engine, KINDS["recompute"][name], name)
        for engine, name in ((Recomputed, "recomputed"), (Dropped, "kept"))
    )
    return less, more
