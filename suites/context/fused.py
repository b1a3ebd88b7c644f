"""The same attention by torch's fused kernels, which never have all scores at once.

A block of keys is cut into tiles where positions jump: all queries of a piece see all of a tile, or none of
it, or, where both are the same positions, what is not after them. Forward, the tiles' outputs are merged by
their log-sum-exps, as in `ring_attention`. Backward, a kernel that is given the merged output and log-sum-exp
takes P = exp(S - l) of the whole row, so that tiles add up (as in zhuzilin/ring-flash-attention).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fixtures.ranks.steps import Unsupported
from fixtures.ranks.study.models import repeatable
from suites.context.layout import Layout
from suites.context.ring_attention import (
    GRADIENTS,
    Blocks,
    Buffers,
    Pass,
    Tally,
    share_of,
    visits,
    wide,
)

Tensor = torch.Tensor
_AMPERE = (8, 0)


def refuse_without_kernel(device: torch.device) -> None:
    """Raise Unsupported where torch has no flash attention for the device."""
    if device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) < _AMPERE:
        name = torch.cuda.get_device_name(device)
        raise Unsupported(f"torch has flash attention for Ampere and later, and this is {name}")


@dataclass(frozen=True)
class Tile:
    """Queries and keys by their places in this rank's part and in the block."""

    queries: slice
    keys: slice
    causal: bool

    @property
    def pairs(self) -> int:
        """Visible pairs per head."""
        rows: int = self.queries.stop - self.queries.start
        columns: int = self.keys.stop - self.keys.start
        return rows * (rows + 1) // 2 if self.causal else rows * columns


def tiles(layout: Layout, source: int) -> Iterator[Tile]:
    """Cut what queries see of a block; nothing of it is seen twice."""
    for ours, first, last in layout.queries.pieces:
        for theirs, begin, end in layout.keys[source].pieces:
            same = layout.causal and (first, last) == (begin, end)
            if same or not layout.causal or end <= first:
                yield Tile(ours, theirs, same)
            elif begin <= last:
                raise ValueError(f"positions {begin} to {end} are neither before {first} to {last} nor those")


@dataclass
class Kernel:
    """Torch's fused attention of (batch, heads, tokens, dim) on one kind of device; what it keeps beside."""

    beside: tuple[Any, ...] = ()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """Output, and log-sum-exp in fp32."""
        if q.device.type == "cpu":
            out, norm = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
            return out, norm
        out, norm, *beside, _ = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, causal, False
        )
        self.beside = (*beside[:2], *beside[4:])
        return out, norm

    def backward(self, grad: Tensor, qkv: Sequence[Tensor], out: Tensor, norm: Tensor, causal: bool) -> Any:  # noqa: ANN401
        """Gradients of the three, of what is part of a larger row."""
        q, k, _ = qkv
        if q.device.type == "cpu":
            call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
            return call(grad, *qkv, out, norm, 0.0, causal)
        queries, keys, *random = self.beside
        lengths = q.shape[2], k.shape[2]
        call = torch.ops.aten._scaled_dot_product_flash_attention_backward
        with repeatable():
            return call(grad, *qkv, out, norm, queries, keys, *lengths, 0.0, causal, *random)


def attend(q: Tensor, blocks: Blocks, layout: Layout, tally: Tally, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """Merge all tiles of all blocks into output and log-sum-exp, both in fp32."""
    out = torch.zeros_like(q, dtype=wide(q.dtype))
    total = torch.full(q.shape[:-1], -torch.inf, dtype=out.dtype, device=q.device)
    for source, block in blocks:
        for tile in tiles(layout, source):
            keys, values = _for_heads(block[:, :, :, tile.keys], q.shape[1])
            found, norm = kernel.forward(q[:, :, tile.queries].contiguous(), keys, values, tile.causal)
            here = total[:, :, tile.queries]
            merged = torch.logaddexp(here, norm)
            kept = out[:, :, tile.queries] * share_of(here, merged)
            out[:, :, tile.queries] = kept + found * share_of(norm, merged)
            total[:, :, tile.queries] = merged
            tally.pairs += tile.pairs
    return out, total


def _for_heads(block: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values for each query head; groups of those share one."""
    keys, values = block.repeat_interleave(heads // block.shape[2], 2)
    return keys, values


@dataclass(frozen=True)
class Saved:
    """What backward needs of forward, and the gradient of the output."""

    q: Tensor
    out: Tensor
    norm: Tensor
    gradient: Tensor
    layout: Layout
    kernel: Kernel

    def gradients(self, block: Tensor, source: int) -> tuple[Tensor, Tensor]:
        """What a block adds to dQ, and its own dK and dV of these queries; zeros if it is not seen."""
        dq = torch.zeros_like(self.q, dtype=wide(self.q.dtype))
        dkv = torch.zeros_like(block, dtype=dq.dtype)
        heads, kv_heads = self.q.shape[1], block.shape[2]
        for tile in tiles(self.layout, source):
            part = [
                one[:, :, tile.queries].contiguous() for one in (self.gradient, self.q, self.out, self.norm)
            ]
            keys, values = _for_heads(block[:, :, :, tile.keys], heads)
            grad, q, out, norm = part
            found = self.kernel.backward(grad, (q, keys, values), out, norm, tile.causal)
            dq[:, :, tile.queries] += found[0]
            both = torch.stack(found[1:]).to(dq.dtype)
            dkv[:, :, :, tile.keys] += both.view(*both.shape[:2], kv_heads, -1, *both.shape[3:]).sum(3)
        return dq, dkv


class FusedRing(torch.autograd.Function):
    """`RingAttention`, with fused kernels."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, layout: Layout, tally: Tally) -> Tensor:  # noqa: ANN401
        """`q` is (batch, heads, tokens, dim), `kv` keys and values stacked."""
        blocks = visits(kv, layout.rank, layout.size, tally, group=layout.group)
        return _kept(ctx, (q, kv), blocks, layout, tally)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401
        """Go round once more, with the gradients of the blocks on the way."""
        kv, saved = _saved(ctx, gradients[0])
        layout: Layout = ctx.layout
        dq = torch.zeros_like(saved.q, dtype=wide(kv.dtype))
        buffers, coming = Buffers(torch.empty_like(kv, dtype=dq.dtype)), None
        for source, block in visits(kv, layout.rank, layout.size, group=layout.group):
            more, mine = saved.gradients(block, source)
            dq += more
            mine = mine if coming is None else coming.arrived() + mine
            coming = Pass(mine, buffers.next(), layout.rank, layout.size, GRADIENTS, group=layout.group)
        if coming is None:
            raise ValueError("a ring without ranks has no gradient")
        return dq.to(kv.dtype), coming.arrived().to(kv.dtype), None, None


class FusedBlocks(torch.autograd.Function):
    """`BlockAttention`, with fused kernels; `kv` may be the blocks of several ranks, one after the other."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, layout: Layout, tally: Tally) -> Tensor:  # noqa: ANN401
        """As in the ring, with all blocks here."""
        low = kv.to(q.dtype)
        return _kept(ctx, (q, kv), enumerate(low.chunk(layout.size, 3)), layout, tally)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401
        """Block by block."""
        kv, saved = _saved(ctx, gradients[0])
        parts = [
            saved.gradients(block, source)
            for source, block in enumerate(kv.to(saved.q.dtype).chunk(ctx.layout.size, 3))
        ]
        dq = torch.stack([more for more, _ in parts]).sum(0)
        return dq.to(saved.q.dtype), torch.cat([mine for _, mine in parts], 3).to(kv.dtype), None, None


def _kept(ctx: Any, inputs: tuple[Tensor, Tensor], blocks: Blocks, layout: Layout, tally: Tally) -> Tensor:  # noqa: ANN401
    """Attend, and keep what backward needs."""
    (q, kv), kernel = inputs, Kernel()
    out, norm = attend(q, blocks, layout, tally, kernel)
    low = out.to(q.dtype)
    ctx.save_for_backward(q, kv, low, norm)
    ctx.layout, ctx.kernel = layout, kernel
    return low


def _saved(ctx: Any, gradient: Tensor) -> tuple[Tensor, Saved]:  # noqa: ANN401
    q, kv, out, norm = ctx.saved_tensors
    return kv, Saved(q, out, norm, gradient, ctx.layout, ctx.kernel)
