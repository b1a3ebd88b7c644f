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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from suites.context.layout import Layout, hidden

KEYS, GRADIENTS = 0, 1  # what is passed on: gloo tells the two apart by tag, NCCL by order
Blocks = Iterable["tuple[int, torch.Tensor]"]
Group = Any  # a process group; None is the default one


@dataclass
class Tally:
    """What was really done: visible (query, key) pairs per head, and the buffers that blocks arrived in."""

    pairs: int = 0
    masked: list[torch.Tensor] = field(default_factory=list)
    buffers: dict[int, int] = field(default_factory=dict)

    def work(self) -> int:
        """Pairs whose scores counted; masks are summed up here, so that a GPU need not stop for them."""
        return self.pairs + sum(int(mask.sum()) for mask in self.masked)

    def buffer_bytes(self) -> int:
        """Bytes of the distinct buffers that blocks of other ranks arrived in."""
        return sum(self.buffers.values())


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which statistics and sums are kept."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


class Pass:
    """One step of the ring under way: a block goes to the next rank, the one before sends its own."""

    def __init__(
        self, block: torch.Tensor, into: torch.Tensor, rank: int, size: int, what: int, *, group: Group = None
    ) -> None:
        """Post the receive first: a rank whose peers all send before they receive would wait for ever."""
        peers = range(size) if group is None else dist.get_process_group_ranks(group)
        after, before = peers[(rank + 1) % size], peers[(rank - 1) % size]
        self._sent, self._into = block, into  # both must outlive the transfer
        pair = [
            dist.P2POp(dist.irecv, into, before, group, tag=what),
            dist.P2POp(dist.isend, block, after, group, tag=what),
        ]
        self._works = dist.batch_isend_irecv(pair)

    def arrived(self) -> torch.Tensor:
        """Wait for both directions, and hand over what came."""
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


def visits(
    block: torch.Tensor, rank: int, size: int, tally: Tally | None = None, *, group: Group = None
) -> Iterator[Any]:
    """Yield (whose, block) for every rank, own first; the next one travels while the caller uses this one.

    A block is good until the next but one is asked for.
    """
    buffers = Buffers(block, tally)
    for number in range(size - 1):
        coming = Pass(block, buffers.next(), rank, size, KEYS, group=group)
        yield (rank - number) % size, block
        block = coming.arrived()
    yield (rank + 1) % size, block


def attend(
    queries: torch.Tensor, blocks: Blocks, layout: Layout, tally: Tally
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fold the blocks into output and log-sum-exp; blocks that no query may see cost nothing."""
    out, total = torch.zeros_like(queries), queries.new_full(queries.shape[:-1], -math.inf)
    for source, block in blocks:
        if layout.blind(source):
            continue
        mask = _mask(queries, layout, source, tally)
        found, norm = _forward(queries, block.to(queries.dtype), mask)
        merged = torch.logaddexp(total, norm)
        out = out * share_of(total, merged) + found * share_of(norm, merged)
        total = merged
    return out, total


def _mask(queries: torch.Tensor, layout: Layout, source: int, tally: Tally) -> torch.Tensor | None:
    """Which scores to hide, None for none of them. A row of the fold is one query of one head."""
    ours, theirs = layout.queries, layout.keys[source]
    if layout.clear(source):
        tally.pairs += ours.count * theirs.count
        return None
    mask = hidden(ours, theirs)
    tally.masked.append(~mask)
    return mask.repeat(queries.shape[-2] // ours.count, 1)


def share_of(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """What weight a part has in the whole; nothing has none, also where the whole is nothing yet."""
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


@dataclass(frozen=True)
class Saved:
    """What backward needs of forward, folded and wide, with the gradient of the output."""

    queries: torch.Tensor
    norm: torch.Tensor
    delta: torch.Tensor
    gradient: torch.Tensor

    @classmethod
    def of(
        cls, queries: torch.Tensor, out: torch.Tensor, norm: torch.Tensor, gradient: torch.Tensor
    ) -> Saved:
        """Fold the gradient as the output is, and take the row sums D."""
        folded = gradient.to(out.dtype).reshape(out.shape)
        return cls(fold(queries, out.shape[1]), norm, (folded * out).sum(-1, keepdim=True), folded)


def block_gradients(
    saved: Saved, block: torch.Tensor, source: int, layout: Layout
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What one block adds to dQ, and its own dK and dV of these queries; None where nothing was visible."""
    if layout.blind(source):
        return None, None
    mask = _mask(saved.queries, layout, source, Tally())
    block = block.to(saved.queries.dtype)
    weights = torch.exp(_scores(saved.queries, block[0], mask) - saved.norm.unsqueeze(-1))
    inner = weights * (saved.gradient @ block[1].mT - saved.delta) / math.sqrt(saved.queries.shape[-1])
    return inner @ block[0], torch.stack((inner.mT @ saved.queries, weights.mT @ saved.gradient))


def fold(queries: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """(batch, heads, tokens, dim) to (batch, kv heads, group x tokens, dim), wide."""
    batch, heads, tokens, dim = queries.shape
    return queries.to(wide(queries.dtype)).reshape(batch, kv_heads, heads // kv_heads * tokens, dim)


def apply(function: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:  # noqa: ANN401
    """Apply one of the functions here, which all give one tensor; torch does not type `apply`."""
    result: torch.Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class RingAttention(torch.autograd.Function):
    """Attention of this rank's queries over every rank's keys and values.

    Forward passes K and V on w-1 times. Backward passes them on w-1 times again, and dK and dV w times: they
    travel with the block that they belong to, every rank adds its part, and the last pass brings them home.
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, kv: torch.Tensor, layout: Layout, tally: Tally) -> torch.Tensor:  # noqa: ANN401
        """`q` is (batch, heads, tokens, dim), `kv` keys and values stacked."""
        blocks = visits(kv, layout.rank, layout.size, tally, group=layout.group)
        out, norm = attend(fold(q, kv.shape[2]), blocks, layout, tally)
        ctx.save_for_backward(q, kv, out, norm)
        ctx.layout = layout
        return out.reshape(q.shape).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ANN401
        """Go round once more, with the gradients of the blocks on the way."""
        q, kv, out, norm = ctx.saved_tensors
        layout: Layout = ctx.layout
        saved = Saved.of(q, out, norm, gradients[0])
        dq, home = torch.zeros_like(saved.queries), torch.zeros_like(kv, dtype=out.dtype)
        buffers, coming = Buffers(home), None
        for source, block in visits(kv, layout.rank, layout.size, group=layout.group):
            more, mine = block_gradients(saved, block, source, layout)
            dq = dq if more is None else dq + more
            mine = home if mine is None else mine
            mine = mine if coming is None else coming.arrived() + mine
            into, group = buffers.next(), layout.group
            coming = Pass(mine, into, layout.rank, layout.size, GRADIENTS, group=group)
        if coming is None:
            raise ValueError("a ring without ranks has no gradient")
        return dq.reshape(q.shape).to(q.dtype), coming.arrived().to(kv.dtype), None, None


class BlockAttention(torch.autograd.Function):
    """Attention of this rank's queries over one block of keys and values, all of it here: nothing moves."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, kv: torch.Tensor, layout: Layout, tally: Tally) -> torch.Tensor:  # noqa: ANN401
        """As in the ring, with one block."""
        out, norm = attend(fold(q, kv.shape[2]), [(0, kv)], layout, tally)
        ctx.save_for_backward(q, kv, out, norm)
        ctx.layout = layout
        return out.reshape(q.shape).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ANN401
        """The formulas above, with one block."""
        q, kv, out, norm = ctx.saved_tensors
        saved = Saved.of(q, out, norm, gradients[0])
        dq, dkv = block_gradients(saved, kv, 0, ctx.layout)
        if dq is None or dkv is None:
            raise ValueError("a block that no query sees has no gradient")
        return dq.reshape(q.shape).to(q.dtype), dkv.to(kv.dtype), None, None
