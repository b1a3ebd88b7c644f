"""Attention over blocks of keys and values that pass from rank to rank, and its gradient.

With scores S = Q K_j^T / sqrt(d) of block j, their log-sum-exp l_j and o_j = softmax(S) V_j, blocks merge as

    l = log(exp(l) + exp(l_j))      o = exp(l_old - l) o + exp(l_j - l) o_j

(Milakov, Gimelshein: "Online normalizer calculation for softmax", 2018; Liu, Zaharia, Abbeel: "Ring Attention
with Blockwise Transformers", 2023). Backward, P = exp(S - l) and D = rowsum(dO o) (Dao et al.:
"FlashAttention", 2022, algorithm 4):

    dV_j = P^T dO     dS = P (dO V_j^T - D) / sqrt(d)     dQ = sum over j of dS K_j     dK_j = dS^T Q

The query heads that share a key head are folded into rows, (batch, kv heads, group x tokens, dim), so their
gradients add up in the product. Statistics and sums of 16-bit types are kept in fp32.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from suites.context.layout import Layout, hidden
from suites.tensor.regions import Group

KEYS, GRADIENTS = 0, 1  # what is passed on: gloo matches transfers by tag, NCCL by order
Blocks = Iterable["tuple[int, torch.Tensor]"]
Gradients = Callable[[torch.Tensor, int], "tuple[torch.Tensor, torch.Tensor]"]  # of a block from a rank


@dataclass
class Tally:
    """The work that was done: visible (query, key) pairs per head, and the buffers that blocks arrived in."""

    pairs: int = 0
    masked: list[torch.Tensor] = field(default_factory=list)
    buffers: dict[int, int] = field(default_factory=dict)

    def work(self) -> int:
        """Visible pairs; masks are summed only here, so that the GPU is not synchronised during the run."""
        return self.pairs + sum(int(mask.sum()) for mask in self.masked)

    def buffer_bytes(self) -> int:
        """Bytes of the distinct buffers that blocks of other ranks arrived in."""
        return sum(self.buffers.values())


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which statistics and sums are kept."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


class Pass:
    """One step of the ring in flight: a block goes to the next rank, and the previous one's arrives."""

    def __init__(self, block: torch.Tensor, into: torch.Tensor, group: Group, what: int) -> None:
        """Post the receive first: a rank whose peers all send before they receive would wait for ever."""
        peers = dist.get_process_group_ranks(group.handle)
        after, before = peers[(group.rank + 1) % group.size], peers[group.rank - 1]
        self._sent, self._into = block, into  # both must outlive the transfer
        pair = [
            dist.P2POp(dist.irecv, into, before, group.handle, tag=what),
            dist.P2POp(dist.isend, block, after, group.handle, tag=what),
        ]
        self._works = dist.batch_isend_irecv(pair)

    def arrived(self) -> torch.Tensor:
        """Wait for both directions, and return what arrived."""
        for work in self._works:
            work.wait()
        return self._into


class Buffers:
    """Two buffers that take turns: one block is in use while the next one arrives."""

    def __init__(self, like: torch.Tensor, tally: Tally | None = None) -> None:
        self._like, self._tally, self._turn = like, tally, 0
        self._made: list[torch.Tensor] = []

    def next(self) -> torch.Tensor:
        """The buffer that is not in use."""
        if len(self._made) < 2:
            self._made.append(torch.empty_like(self._like))
        buffer = self._made[self._turn % 2]
        self._turn += 1
        if self._tally is not None:
            self._tally.buffers[buffer.data_ptr()] = buffer.numel() * buffer.element_size()
        return buffer


def visits(block: torch.Tensor, group: Group, tally: Tally | None = None) -> Iterator[Any]:
    """Yield (rank, its block) for every rank, own first; the next one travels while the caller uses this one.

    A block is valid until the next but one is requested.
    """
    buffers = Buffers(block, tally)
    for number in range(group.size - 1):
        coming = Pass(block, buffers.next(), group, KEYS)
        yield (group.rank - number) % group.size, block
        block = coming.arrived()
    yield (group.rank + 1) % group.size, block


@dataclass
class Kernel(ABC):
    """Attention over blocks: queries are (batch, heads, tokens, dim), keys and values stacked."""

    layout: Layout
    tally: Tally

    @abstractmethod
    def attend(self, q: torch.Tensor, blocks: Blocks, kv_heads: int) -> tuple[torch.Tensor, ...]:
        """Give the output; and output and log-sum-exp as the kernel keeps them for backward."""

    @abstractmethod
    def backward(
        self, q: torch.Tensor, out: torch.Tensor, norm: torch.Tensor, gradient: torch.Tensor
    ) -> Gradients:
        """Give a function: a block's part of dQ, and its dK and dV of these queries; wide, 0 if unseen."""


class WrittenOut(Kernel):
    """The formulas above, with all scores of a block at once."""

    def attend(self, q: torch.Tensor, blocks: Blocks, kv_heads: int) -> tuple[torch.Tensor, ...]:
        """Fold the blocks into output and log-sum-exp; blocks that no query may see cost nothing."""
        queries = fold(q, kv_heads)
        out, total = torch.zeros_like(queries), queries.new_full(queries.shape[:-1], -math.inf)
        for source, block in blocks:
            if self.layout.blind(source):
                continue
            mask = self._mask(queries, source, self.tally)
            found, norm = _forward(queries, block.to(queries.dtype), mask)
            merged = torch.logaddexp(total, norm)
            out = out * share_of(total, merged) + found * share_of(norm, merged)
            total = merged
        return out.reshape(q.shape).to(q.dtype), out, total

    def backward(
        self, q: torch.Tensor, out: torch.Tensor, norm: torch.Tensor, gradient: torch.Tensor
    ) -> Gradients:
        """Fold the gradient like the output, and take the row sums D."""
        queries, folded = fold(q, out.shape[1]), gradient.to(out.dtype).reshape(out.shape)
        delta = (folded * out).sum(-1, keepdim=True)

        def gradients(block: torch.Tensor, source: int) -> tuple[torch.Tensor, torch.Tensor]:
            if self.layout.blind(source):
                return torch.zeros_like(q, dtype=out.dtype), torch.zeros_like(block, dtype=out.dtype)
            mask, block = self._mask(queries, source, Tally()), block.to(out.dtype)
            weights = torch.exp(_scores(queries, block[0], mask) - norm.unsqueeze(-1))
            inner = weights * (folded @ block[1].mT - delta) / math.sqrt(queries.shape[-1])
            dkv = torch.stack((inner.mT @ queries, weights.mT @ folded))
            return (inner @ block[0]).reshape(q.shape), dkv

        return gradients

    def _mask(self, queries: torch.Tensor, source: int, tally: Tally) -> torch.Tensor | None:
        """Which scores to hide, None for none. A row of the fold is one query of one head."""
        ours, theirs = self.layout.queries, self.layout.keys[source]
        if self.layout.clear(source):
            tally.pairs += ours.count * theirs.count
            return None
        mask = hidden(ours, theirs)
        tally.masked.append(~mask)
        return mask.repeat(queries.shape[-2] // ours.count, 1)


def share_of(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """The weight of a part in the whole, by log-sum-exp; -inf has weight 0, even in a whole of -inf."""
    return torch.exp(part - whole.clamp_min(torch.finfo(whole.dtype).min)).unsqueeze(-1)


def _scores(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
    return scores if mask is None else scores.masked_fill_(mask, -math.inf)


def _forward(
    queries: torch.Tensor, block: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = _scores(queries, block[0], mask)
    norm = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - norm.clamp_min(torch.finfo(norm.dtype).min).unsqueeze(-1))
    return weights @ block[1], norm


def fold(queries: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """(batch, heads, tokens, dim) to (batch, kv heads, group x tokens, dim), wide."""
    batch, heads, tokens, dim = queries.shape
    return queries.to(wide(queries.dtype)).reshape(batch, kv_heads, heads // kv_heads * tokens, dim)


def ring_attention(q: torch.Tensor, kv: torch.Tensor, kernel: Kernel, group: Group) -> torch.Tensor:
    """Attention of this rank's queries over every rank's keys and values, which `kv` has stacked.

    Forward passes K and V on w-1 times. Backward passes them on w-1 times again, and dK and dV w times: they
    travel with the block that they belong to, every rank adds its part, and the last pass brings them home.
    """
    found: torch.Tensor = _Ring.apply(q, kv, kernel, group)  # type: ignore[no-untyped-call]
    return found


def block_attention(q: torch.Tensor, kv: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """The same over blocks that are all on this rank, concatenated in `kv`: nothing is sent."""
    found: torch.Tensor = _Here.apply(q, kv, kernel)  # type: ignore[no-untyped-call]
    return found


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        q: torch.Tensor,
        kv: torch.Tensor,
        kernel: Kernel,
        group: Group,
    ) -> torch.Tensor:
        ctx.group = group
        return _kept(ctx, q, kv, kernel, visits(kv, group, kernel.tally))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ANN401
        """Pass the blocks round once more, with their gradients."""
        q, kv, out, norm = ctx.saved_tensors
        of_block = ctx.kernel.backward(q, out, norm, gradients[0])
        dq = torch.zeros_like(q, dtype=wide(q.dtype))
        buffers, coming = Buffers(torch.empty_like(kv, dtype=dq.dtype)), None
        for source, block in visits(kv, ctx.group):
            more, mine = of_block(block, source)
            dq += more
            mine = mine if coming is None else coming.arrived() + mine
            coming = Pass(mine, buffers.next(), ctx.group, GRADIENTS)
        if coming is None:
            raise ValueError("a ring without ranks has no gradient")
        return dq.to(q.dtype), coming.arrived().to(kv.dtype), None, None


class _Here(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, kv: torch.Tensor, kernel: Kernel) -> torch.Tensor:  # noqa: ANN401
        return _kept(ctx, q, kv, kernel, enumerate(torch.split(kv, kernel.layout.counts, 3)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ANN401
        """Block by block."""
        q, kv, out, norm = ctx.saved_tensors
        of_block = ctx.kernel.backward(q, out, norm, gradients[0])
        first, *others = torch.split(kv, ctx.kernel.layout.counts, 3)
        dq, dkv = of_block(first, 0)
        parts = [dkv]
        for source, block in enumerate(others, 1):
            more, mine = of_block(block, source)
            dq += more
            parts.append(mine)
        return dq.to(q.dtype), torch.cat(parts, 3).to(kv.dtype), None


def _kept(ctx: Any, q: torch.Tensor, kv: torch.Tensor, kernel: Kernel, blocks: Blocks) -> torch.Tensor:  # noqa: ANN401
    """Attend, and keep what backward needs."""
    found, out, norm = kernel.attend(q, blocks, kv.shape[2])
    ctx.save_for_backward(q, kv, out, norm)
    ctx.kernel = kernel
    return found
