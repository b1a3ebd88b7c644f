"""Unsharded models of the tensor parallel steps and their inputs: fp64, in sizes that n ranks can split."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from fixtures.ranks.steps import Context
from fixtures.ranks.study.models import Attention, Block, Mlp, seeded, tokens
from suites.tensor.technique import drawn

Tensor = torch.Tensor


class Vocabulary(nn.Module):
    """Both ends of a language model: tokens in, out the loss of predicting `targets` from them."""

    def __init__(self, vocabulary: int, width: int, targets: Tensor) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.targets: Tensor
        self.register_buffer("targets", targets)

    def forward(self, numbers: Tensor) -> Tensor:
        """The loss of every token."""
        logits: Tensor = self.head(self.table(numbers))
        losses = functional.cross_entropy(logits.flatten(0, 1), self.targets.flatten(), reduction="none")
        return losses.view(self.targets.shape)


def multiple(number: int, ranks: int) -> int:
    """The next multiple, so that any number of ranks can split it."""
    return -(-number // ranks) * ranks


def activations(ctx: Context, batch: int, length: int, width: int) -> Tensor:
    """An input, the same on every rank."""
    return drawn(ctx.seed + 1, batch, length, width).to(ctx.device)


def linear(ctx: Context, width: int, features: int) -> nn.Module:
    """A linear layer with a bias."""
    with seeded(ctx.seed):
        return nn.Linear(width, features).to(ctx.device).double()


def mlp(ctx: Context, width: int, hidden: int) -> nn.Module:
    """A SwiGLU."""
    with seeded(ctx.seed):
        return Mlp(width, hidden).to(ctx.device).double()


def attention(ctx: Context, width: int, heads: int, kv_heads: int) -> nn.Module:
    """Grouped-query attention."""
    with seeded(ctx.seed):
        return Attention(width, heads, kv_heads).to(ctx.device).double()


def block(ctx: Context, *, channels: int, heads: int, hidden: int) -> nn.Module:
    """A block with `heads` query heads, one key-value head and `hidden` features for each rank."""
    heads_in_all = ctx.size * heads
    with seeded(ctx.seed):
        whole = Block(heads_in_all * channels, heads_in_all, ctx.size, ctx.size * hidden)
    return whole.to(ctx.device).double()


def vocabulary(ctx: Context, batch: int, length: int, width: int, words: int) -> tuple[Vocabulary, Tensor]:
    """The model, which knows its targets, and its tokens: as many as all borders need, at least."""
    long = max(length, -(-2 * ctx.size // batch))
    numbers, targets = (tokens(ctx.seed + more, batch, long, words) for more in (1, 2))
    borders = _borders(words, ctx.size)
    numbers.view(-1)[: borders.numel()] = borders
    targets.view(-1)[: borders.numel()] = borders.flip(0)
    with seeded(ctx.seed):
        whole = Vocabulary(words, width, targets.to(ctx.device)).to(ctx.device).double()
    return whole, numbers.to(ctx.device)


def _borders(words: int, ranks: int) -> Tensor:
    """The first and the last word of every rank's part: a mask that is off by one goes wrong there alone."""
    first = torch.arange(ranks) * (words // ranks)
    return torch.stack((first, first + words // ranks - 1), 1).flatten()
