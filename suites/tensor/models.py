"""Unsharded models of the tensor parallel steps and their inputs: fp64, in sizes that n ranks can split."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study import at_size
from fixtures.ranks.study.driver import TRAINED
from fixtures.ranks.study.dropout import drawn_from, drop
from fixtures.ranks.study.fitting import fit
from fixtures.ranks.study.models import Attention, Block, Mlp, seeded, tokens
from suites.tensor.issued import enough, multiple
from suites.tensor.technique import drawn

_APART = 2718
_IGNORED = -100  # torch's word for a target that does not count
Module = TypeVar("Module", bound=nn.Module)
Model = tuple[nn.Module, Tensor]  # with its input


class DroppingMlp(Mlp):
    """The unsharded layer, which draws the masks of all ranks, on `drawn_on`.

    Between column and row a rank has its own part of the hidden features, so every rank draws its own mask
    there. After the sum all ranks have the same activations and must draw the same mask, so that they stay
    the same. So there are two seeds, one with the rank and one without, as in Megatron-Core's
    CudaRNGStatesTracker (`model_parallel_cuda_manual_seed`, whose 2718 it is; Shoeybi et al., "Megatron-LM",
    2019, appendix B.2).
    """

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


class Vocabulary(nn.Module):
    """Both ends of a language model: tokens in, out the loss of predicting `targets` from them.

    It is that of every token, or the `mean` of those that count: in fp32 at least, as one number in bf16
    would say little.
    """

    mean = False

    def __init__(self, vocabulary: int, width: int, targets: Tensor) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.targets: Tensor
        self.register_buffer("targets", targets)

    def forward(self, numbers: Tensor) -> Tensor:
        """The loss, of every token or of all."""
        logits, targets = self.head(self.table(numbers)).flatten(0, 1), self.targets.flatten()
        if self.mean:
            wide = torch.promote_types(logits.dtype, torch.float32)
            return functional.cross_entropy(logits.to(wide), targets)
        return functional.cross_entropy(logits, targets, reduction="none").view(self.targets.shape)


def activations(ctx: Context, batch: int, length: int, width: int) -> Tensor:
    """An input, the same on every rank."""
    if ctx.at_size:
        return at_size.drawn(key(ctx.seed, 1), (batch, length, width), ctx.device)
    return drawn(ctx.seed + 1, batch, length, width).to(ctx.device)


def linear(ctx: Context, batch: int, length: int, width: int, features: int) -> Model:
    """A linear layer with a bias."""
    return _whole(ctx, lambda: nn.Linear(width, features)), activations(ctx, batch, length, width)


def mlp(ctx: Context, *, batch: int, length: int, width: int, hidden: int) -> Model:
    """A SwiGLU."""
    hidden = multiple(hidden, ctx.size)
    fits(ctx, batch * length, 3 * width * hidden, 4 * width + 6 * hidden)
    return _whole(ctx, lambda: Mlp(width, hidden)), activations(ctx, batch, length, width)


def dropping_mlp(
    ctx: Context, *, batch: int, length: int, width: int, hidden: int, dropout: float
) -> tuple[DroppingMlp, Tensor]:
    """A SwiGLU that drops a share of its hidden features and of its outputs."""
    hidden = multiple(hidden, ctx.size)
    whole = _whole(ctx, lambda: DroppingMlp(width, hidden, dropout, ranks=ctx.size, seed=ctx.seed))
    whole.drawn_on = ctx.device
    return whole, activations(ctx, batch, length, width)


def attention(ctx: Context, *, batch: int, length: int, channels: int, heads: int, kv_heads: int) -> Model:
    """Grouped-query attention with so many heads in all."""
    width = heads * channels
    return _whole(ctx, lambda: Attention(width, heads, kv_heads)), activations(ctx, batch, length, width)


def block(ctx: Context, *, batch: int, length: int, channels: int, heads: int, hidden: int) -> Model:
    """A block with `heads` query heads, one key-value head and `hidden` features for each rank."""
    heads_in_all = ctx.size * heads
    width, features = heads_in_all * channels, ctx.size * hidden
    elements = width * (2 * width + 2 * ctx.size * channels + 3 * features)
    fits(ctx, batch * length, elements, 16 * width + 6 * features, batch * heads_in_all * length**2)
    sizes = width, heads_in_all, ctx.size, features
    return _whole(ctx, lambda: Block(*sizes)), activations(ctx, batch, length, width)


def _whole(ctx: Context, build: Callable[[], Module]) -> Module:
    """Make a model, the same on every rank; at the size of training its weights are bf16."""
    if ctx.at_size:
        return at_size.made(build, ctx.seed, ctx.device, TRAINED)
    with seeded(ctx.seed):
        return build().to(ctx.device).double()


def vocabulary(ctx: Context, batch: int, length: int, width: int, words: int) -> tuple[Vocabulary, Tensor]:
    """The model with its targets, and its tokens: at least as many as there are borders."""
    words = multiple(words, ctx.size)
    long = enough(batch, length, ctx.size)
    numbers, targets = (tokens(ctx.seed + more, batch, long, words) for more in (1, 2))
    borders = _borders(words, ctx.size)
    numbers.view(-1)[: borders.numel()] = borders
    targets.view(-1)[: borders.numel()] = borders.flip(0)
    return _whole(ctx, lambda: Vocabulary(words, width, targets)), numbers.to(ctx.device)


def averaged(ctx: Context, **sizes: int) -> tuple[Vocabulary, Tensor]:
    """The same with the mean for a loss; a target is to be ignored, as those of prompts and padding are."""
    whole, numbers = vocabulary(ctx, **sizes)
    whole.mean = True
    whole.targets[-1, -1] = _IGNORED
    return whole, numbers


def _borders(words: int, ranks: int) -> Tensor:
    """The first and the last word of every rank's part: a mask that is off by one goes wrong there alone."""
    first = torch.arange(ranks) * (words // ranks)
    return torch.stack((first, first + words // ranks - 1), 1).flatten()


def fits(ctx: Context, tokens: int, elements: int, width: int, scores: int = 0) -> None:
    """Refuse a whole layer that does not fit: `elements` weights, `width` numbers per token, and scores.

    A weight takes 20 bytes: 2 itself, 8 with its gradient in a run in fp32, 4 in one in bf16, and 6 for the
    gradients that are compared. Backward has the scores five times in fp32. Both runs of the whole layer take
    6 operations per weight and token, and 12 per score and channel, at most 128 of them.
    """
    fit(ctx, 20 * elements + 4 * tokens * width + 20 * scores, 18 * elements * tokens + 3072 * scores)
