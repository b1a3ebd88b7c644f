"""The techniques of context parallelism: each rank has a part of the sequence and attends over all of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from fixtures.ranks.steps import Context
from fixtures.ranks.study.traffic import Expected
from suites.context import layout as context_layout
from suites.context.layout import Layout, Span
from suites.context.moves import ToHeads, ToSequence, WholeSequence, to_heads, whole_sequence
from suites.context.ring_attention import (
    BlockAttention,
    RingAttention,
    Tally,
    apply,
    attend,
    fold,
    visits,
    wide,
)


@dataclass(frozen=True)
class Shape:
    """What is attended: query heads share the key heads in equal groups."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    dim: int
    causal: bool

    def __post_init__(self) -> None:
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads do not share {self.kv_heads} key heads evenly")


@dataclass(frozen=True)
class Tensors:
    """Queries, keys, values, and the gradient of the output: (batch, heads, positions, dim)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    gradient: torch.Tensor

    def each(self, change: Any) -> Tensors:  # noqa: ANN401 - a function of tensors
        """The same four, changed."""
        return Tensors(*(change(tensor) for tensor in (self.q, self.k, self.v, self.gradient)))


class Technique(ABC):
    """One way to attend. `places` are the positions of every rank's part of the sequence."""

    def __init__(self, ctx: Context, shape: Shape) -> None:
        if ctx.size < 2:
            raise ValueError("context parallelism needs at least 2 ranks; this world has 1")
        self.ctx, self.shape = ctx, shape
        self.places = self.cut(shape.length, ctx.size)
        self.tokens = shape.length // ctx.size

    def cut(self, length: int, size: int) -> list[torch.Tensor]:
        """Divide the positions among the ranks."""
        return context_layout.contiguous(length, size)

    def mine(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole sequence."""
        return whole.index_select(2, self.places[self.ctx.rank].to(whole.device)).contiguous()

    def span(self, positions: torch.Tensor) -> Span:
        """Positions where the tensors are."""
        return Span.of(positions, self.ctx.device)

    def bytes_of(self, heads: int, dtype: torch.dtype, tokens: int | None = None) -> int:
        """Bytes of `heads` heads of this rank's part of the sequence."""
        each = self.tokens if tokens is None else tokens
        return self.shape.batch * heads * each * self.shape.dim * dtype.itemsize

    def kv_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of this rank's keys and values."""
        return 2 * self.bytes_of(self.shape.kv_heads, dtype)

    def norm_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the log-sum-exp of this rank's queries."""
        return self.bytes_of(self.shape.heads, dtype) // self.shape.dim

    @abstractmethod
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tally: Tally) -> torch.Tensor:
        """Attend with this rank's parts; can be differentiated."""

    @abstractmethod
    def forward_traffic(self, dtype: torch.dtype) -> Expected:
        """The closed form of what forward issues."""

    @abstractmethod
    def backward_traffic(self, dtype: torch.dtype) -> Expected:
        """The closed form of what backward issues."""

    @abstractmethod
    def saved_bytes(self, dtype: torch.dtype) -> int:
        """The closed form of what forward keeps for backward, in a dtype that is its own wide one."""

    @abstractmethod
    def pairs(self) -> int:
        """The closed form of this rank's work: visible (query, key) pairs per head that it computes."""

    @abstractmethod
    def move(self, part: Tensors) -> None:
        """Issue forward's communication alone, to be timed."""

    @abstractmethod
    def sent_bytes(self, dtype: torch.dtype) -> int:
        """What forward sends to other ranks."""


class AllGatherKV(Technique):
    """Every rank gathers all keys and values, and attends with its own queries."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tally: Tally) -> torch.Tensor:
        """Gather, then one block."""
        whole = self.span(torch.arange(self.shape.length))
        layout = Layout(0, self.span(self.places[self.ctx.rank]), (whole,), self.shape.causal)
        gathered = apply(WholeSequence, torch.stack((k, v)), self.ctx.size)
        return apply(BlockAttention, q, gathered, layout, tally)

    def forward_traffic(self, dtype: torch.dtype) -> Expected:
        """All ranks' K and V."""
        return {"all_gather": (1, self.ctx.size * self.kv_bytes(dtype))}

    def backward_traffic(self, dtype: torch.dtype) -> Expected:
        """The gradients of all ranks' K and V, wide."""
        return {"reduce_scatter": (1, self.ctx.size * self.kv_bytes(wide(dtype)))}

    def saved_bytes(self, dtype: torch.dtype) -> int:
        """Queries, output and its norm of this rank; K and V of all."""
        own = 2 * self.bytes_of(self.shape.heads, dtype) + self.norm_bytes(dtype)
        return own + self.ctx.size * self.kv_bytes(dtype)

    def pairs(self) -> int:
        """One piece of queries against everything before it."""
        return context_layout.contiguous_pairs(
            self.shape.length, self.ctx.size, self.ctx.rank, self.shape.causal
        )

    def move(self, part: Tensors) -> None:
        """Gather."""
        whole_sequence(torch.stack((part.k, part.v)), self.ctx.size)

    def sent_bytes(self, dtype: torch.dtype) -> int:
        """Own K and V to everybody else."""
        return (self.ctx.size - 1) * self.kv_bytes(dtype)


class Ring(Technique):
    """Keys and values pass from rank to rank, each rank holding one block at a time."""

    @cached_property
    def layout(self) -> Layout:
        """Every rank's block; made once, because positions are copied to the device."""
        spans = tuple(self.span(places) for places in self.places)
        return Layout(self.ctx.rank, spans[self.ctx.rank], spans, self.shape.causal)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tally: Tally) -> torch.Tensor:
        """Once round."""
        return apply(RingAttention, q, torch.stack((k, v)), self.layout, tally)

    def forward_traffic(self, dtype: torch.dtype) -> Expected:
        """w-1 rounds of K and V."""
        rounds = (self.ctx.size - 1, (self.ctx.size - 1) * self.kv_bytes(dtype))
        return {"send": rounds, "recv": rounds}

    def backward_traffic(self, dtype: torch.dtype) -> Expected:
        """w-1 rounds of K and V, and w of their gradients, wide."""
        size = self.ctx.size
        sent = (size - 1) * self.kv_bytes(dtype) + size * self.kv_bytes(wide(dtype))
        return {"send": (2 * size - 1, sent), "recv": (2 * size - 1, sent)}

    def saved_bytes(self, dtype: torch.dtype) -> int:
        """Queries, output, norm, K and V of this rank alone: no block that came by is kept."""
        own = 2 * self.bytes_of(self.shape.heads, dtype) + self.norm_bytes(dtype)
        return own + self.kv_bytes(dtype)

    def buffer_bytes(self, dtype: torch.dtype) -> int:
        """Other ranks' K and V at a time: the block in use and the one that is coming."""
        return min(2, self.ctx.size - 1) * self.kv_bytes(dtype)

    def pairs(self) -> int:
        """One piece of queries against everything before it: unequal when nobody looks ahead."""
        return context_layout.contiguous_pairs(
            self.shape.length, self.ctx.size, self.ctx.rank, self.shape.causal
        )

    def move(self, part: Tensors) -> None:
        """Once round, without looking at the blocks."""
        for _ in visits(torch.stack((part.k, part.v)), self.ctx.rank, self.ctx.size):
            pass

    def compute(self, part: Tensors) -> None:
        """What forward computes, on this rank's own block in the place of everybody's."""
        block = torch.stack((part.k, part.v))
        blocks = [(source, block) for source in range(self.ctx.size)]
        attend(fold(part.q, self.shape.kv_heads), blocks, self.layout, Tally())

    def sent_bytes(self, dtype: torch.dtype) -> int:
        """w-1 blocks."""
        return (self.ctx.size - 1) * self.kv_bytes(dtype)


class ZigZag(Ring):
    """The ring, with a piece from the front and one from the back of the sequence on every rank."""

    def cut(self, length: int, size: int) -> list[torch.Tensor]:
        """Two chunks each."""
        return context_layout.zigzag(length, size)

    def pairs(self) -> int:
        """The same on every rank."""
        return context_layout.zigzag_pairs(self.shape.length, self.ctx.size)


class Ulysses(Technique):
    """All-to-all from parts of the sequence to parts of the heads, and back for the output.

    Fewer key heads than ranks are repeated until each rank has one (Jacobs et al.: DeepSpeed Ulysses, 2023).
    """

    def __init__(self, ctx: Context, shape: Shape) -> None:
        super().__init__(ctx, shape)
        self.repeats = _repeats(shape, ctx.size)
        self.kv_heads = shape.kv_heads * self.repeats

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tally: Tally) -> torch.Tensor:
        """All of the sequence with some of the heads."""
        size, whole = self.ctx.size, self.span(torch.arange(self.shape.length))
        heads, keys, values = (
            apply(ToHeads, part, size) for part in (q, self._repeated(k), self._repeated(v))
        )
        layout = Layout(0, whole, (whole,), self.shape.causal)
        out = apply(BlockAttention, heads, torch.stack((keys, values)), layout, tally)
        return apply(ToSequence, out, size)

    def _repeated(self, part: torch.Tensor) -> torch.Tensor:
        batch, heads, tokens, dim = part.shape
        wider = part.unsqueeze(2).expand(batch, heads, self.repeats, tokens, dim)
        return wider.reshape(batch, heads * self.repeats, tokens, dim)

    def forward_traffic(self, dtype: torch.dtype) -> Expected:
        """Q, K, V and the output."""
        heads = 2 * self.shape.heads + 2 * self.kv_heads
        return {"all_to_all": (4, self.bytes_of(heads, dtype))}

    def backward_traffic(self, dtype: torch.dtype) -> Expected:
        """The gradients of the same four."""
        return self.forward_traffic(dtype)

    def saved_bytes(self, dtype: torch.dtype) -> int:
        """Queries, output, norm, K and V of 1/w of the heads: as much as 1/w of the sequence."""
        own = 2 * self.bytes_of(self.shape.heads, dtype) + self.norm_bytes(dtype)
        return own + 2 * self.bytes_of(self.kv_heads, dtype)

    def pairs(self) -> int:
        """All of the sequence, per head; each rank has the same number of heads."""
        return context_layout.contiguous_pairs(self.shape.length, 1, 0, self.shape.causal)

    def move(self, part: Tensors) -> None:
        """Four exchanges; the output goes back the way that the queries come."""
        for tensor in (part.q, self._repeated(part.k), self._repeated(part.v), part.gradient):
            to_heads(tensor, self.ctx.size)

    def sent_bytes(self, dtype: torch.dtype) -> int:
        """All but the own part of four exchanges."""
        return self.forward_traffic(dtype)["all_to_all"][1] * (self.ctx.size - 1) // self.ctx.size


def _repeats(shape: Shape, size: int) -> int:
    """How often key heads are repeated so that they divide over the ranks; all that is wrong at once."""
    refused = []
    if shape.heads % size:
        refused.append(f"{shape.heads} query heads do not divide over {size} ranks")
    if shape.kv_heads % size and size % shape.kv_heads:
        refused.append(f"{shape.kv_heads} key heads neither divide over {size} ranks nor repeat to {size}")
    if refused:
        raise ValueError("; ".join(refused))
    return max(size // shape.kv_heads, 1) if shape.kv_heads < size else 1
