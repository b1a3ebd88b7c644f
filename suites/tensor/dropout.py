"""Dropout under tensor parallelism: which ranks draw the same mask, and which must not.

Between column and row a rank has its own part of the hidden features, so every rank draws its own mask there.
After the sum all ranks have the same activations and must draw the same mask, so that they stay the same. So
there are two seeds, one with the rank and one without, as in Megatron-Core's CudaRNGStatesTracker
(`model_parallel_cuda_manual_seed`, whose 2718 it is; Shoeybi et al., "Megatron-LM", 2019, appendix B.2).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from fixtures.ranks.study.dropout import drawn_from, drop, next_drawn
from fixtures.ranks.study.models import Mlp, seeded
from suites.tensor.blocks import Whole

_APART = 2718


class DroppingMlp(Mlp):
    """The unsharded layer, which draws the masks of all ranks, on `drawn_on`."""

    def __init__(self, width: int, hidden: int, share: float, *, ranks: int, seed: int) -> None:
        super().__init__(width, hidden)
        self.share, self.ranks, self.seed = share, ranks, seed
        self.drawn_on = torch.device("cpu")

    def forward(self, x: Tensor) -> Tensor:
        """Drop hidden features, and outputs."""
        hidden = functional.silu(self.gate(x)) * self.up(x)
        shape = (*hidden.shape[:-1], hidden.shape[-1] // self.ranks)
        parts = [self._drawn(seed_of(self.seed, rank), shape) for rank in range(self.ranks)]
        out = self.down(drop(hidden, self.share, torch.cat(parts, -1)))
        return drop(out, self.share, self._drawn(self.seed, out.shape))

    def _drawn(self, seed: int, shape: tuple[int, ...]) -> Tensor:
        return drawn_from(seed, self.drawn_on, [shape])[0]


def seed_of(seed: int, rank: int) -> int:
    """The seed of a rank's own mask."""
    return seed + _APART + rank


def mlp(meet: Whole, whole: DroppingMlp, x: Tensor, weights: Iterable[Tensor]) -> Tensor:
    """SwiGLU over this rank's hidden features, some of which are dropped, as are some of the outputs."""
    gate, up, down = weights
    opened, passed = meet.read(x, gate, up)
    hidden = functional.silu(opened) * passed
    with seeded(seed_of(whole.seed, meet.group.rank), x.device):
        hidden = drop(hidden, whole.share, next_drawn(hidden))
    out = meet.add(functional.linear(hidden, down))
    with seeded(whole.seed, x.device):
        return drop(out, whole.share, next_drawn(out))
