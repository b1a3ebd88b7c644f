"""Activation checkpointing: a block keeps its input alone and computes the rest again during backward.

Of n rows of d features, a block of the stack saves its input (n d), both halves of the gate (2 n d each), the
silu of one (2 n d) and their product (2 n d): 9 n d elements. With recomputation it saves n d. The loss
saves n d (Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.utils import checkpoint as checkpointing

from fixtures.ranks.study import memory
from fixtures.ranks.study.driver import Entries
from suites.zero.answers import replicated
from suites.zero.ceilings import SAVED_BY_BLOCK
from suites.zero.training import Task, Trained, loss_of
from suites.zero.wrapped import Replicated


class Recomputed(Replicated):
    """DDP around a stack whose blocks are checkpointed."""

    def __init__(self, task: Task, dtype: torch.dtype, bucket_bytes: int, micro_batches: int = 1) -> None:
        super().__init__(task, dtype, bucket_bytes, micro_batches)
        for block in self.model:
            block.forward = functools.partial(checkpointing.checkpoint, block.forward, use_reentrant=False)


def activations(task: Task, per_block: int) -> Callable[[Replicated, int], Entries]:
    """Compare what one forward saves for backward with the closed form; the parameters do not count."""

    def held(engine: Replicated, item: int) -> Entries:
        dtype = next(engine.model.parameters()).dtype
        x, y = (own.clone() for own in task.share(0, dtype))  # without the storage of the other ranks' rows

        def forward() -> torch.Tensor:
            return loss_of(engine.model(x), y)

        found = memory.saved_activation_bytes(forward, engine.model.parameters())
        expected = (per_block * task.layers + 1) * task.rows * task.columns * item
        return [memory.entry("activations", found, expected)]

    return held


def recomputed(task: Task) -> tuple[Trained[Replicated], Trained[Replicated]]:
    """DDP with checkpointing, and without."""
    return (
        replicated(task, Recomputed, variant="recomputed", held=activations(task, 1), saved=1),
        replicated(task, variant="kept", held=activations(task, SAVED_BY_BLOCK)),
    )
