"""The model that is split into attention and experts, and how long a pass of it should take."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study.models import Block, seeded
from suites.expert.layer import Unsharded, route
from suites.expert.parity import decided, drawn
from suites.expert.routing import Shape, preference, top_k

_BATCHES, _MODEL = 740, 741
_HEADS = 4


class Layer(Block):
    """A block whose experts are chosen with a preference."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape.hidden, _HEADS, _HEADS // 2, shape.inner)
        self.moe = Unsharded(shape, torch.zeros(1, shape.experts))
        self.mlp = self.moe

    def prepare(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream after attention, and the rows for the experts."""
        x = hidden + self.attention(self.attention_norm(hidden).unsqueeze(0)).squeeze(0)
        return x, self.mlp_norm(x)


@dataclass(frozen=True)
class Problem:
    """A stack of blocks, and the micro-batches of every attention rank with their preferred experts."""

    shape: Shape
    blocks: list[Layer]
    batches: list[list[Tensor]]
    wanted: list[list[Tensor]]
    dtype: torch.dtype

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.blocks)

    def attend(self, layer: int, hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """An attention stage: the residual stream, rows for the experts, their weights and experts."""
        block = self.blocks[layer]
        x, rows = block.prepare(hidden)
        logits = rows.double() @ block.moe.router.weight.double().T
        weights, chosen = route(logits, wanted, self.shape.top_k, rows.dtype)
        return x, rows, weights, chosen

    @torch.no_grad()
    def expected(self, rank: int, ranks: int) -> list[Tensor]:
        """What a rank must end with, by the whole blocks: an attention rank its micro-batches, an expert rank
        the rows that its experts must be given, layer by layer, micro-batch by micro-batch.
        """
        attention, streams = len(self.batches), [list(line) for line in self.batches]
        local = self.shape.experts // (ranks - attention)
        # An attention rank has none: nobody chooses an expert of a negative number.
        own = range((rank - attention) * local, (rank - attention + 1) * local)
        given = []
        for block in self.blocks:
            for i in range(len(self.batches[0])):
                parts = []
                for stream, wanted in zip(streams, (line[i] for line in self.wanted), strict=True):
                    chosen, rows = top_k(wanted, self.shape.top_k), block.prepare(stream[i])[1]
                    parts += [rows[(chosen == expert).any(1)] for expert in own]
                    block.moe.wanted = wanted
                    stream[i] = block(stream[i].unsqueeze(0)).squeeze(0)
                given.append(torch.cat(parts))
        return streams[rank] if rank < attention else given

    def first(self) -> Problem:
        """The same with one micro-batch."""
        batches, wanted = [one[:1] for one in self.batches], [one[:1] for one in self.wanted]
        return Problem(self.shape, self.blocks, batches, wanted, self.dtype)


def problem(
    ctx: Context,
    routing: str,
    shape: Shape,
    dtype: torch.dtype,
    *,
    layers: int,
    micro_batches: int,
    ranks: int,
) -> Problem:
    """Draw it, the same on every rank; `ranks` is the number of attention ranks."""
    if routing == "zero_tokens":
        raise ValueError("an attention rank without tokens has no attention: take another routing")
    with seeded(key(ctx.seed, _MODEL) >> 1):
        blocks = [Layer(shape) for _ in range(layers)]
    blocks = [block.to(torch.bfloat16).to(ctx.device, dtype) for block in blocks]
    numbers = [[rank * micro_batches + i for i in range(micro_batches)] for rank in range(ranks)]
    batches = [
        [drawn(ctx, _BATCHES, number, (shape.tokens, shape.hidden)).to(dtype) for number in line]
        for line in numbers
    ]
    wanted = [
        [decided(preference(routing, ctx.seed, number, shape)).to(ctx.device) for number in line]
        for line in numbers
    ]
    return Problem(shape, blocks, batches, wanted, dtype)
