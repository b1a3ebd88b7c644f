"""The same attention by torch's fused kernels, which never have all scores at once.

A block of keys is cut into tiles of contiguous positions. The queries of a piece see all of a tile, none of
it or, where both have the same positions, its causal half. Forward, the tiles' outputs are merged by their
log-sum-exps, as in `ring_attention`. Backward, a kernel that is given the merged output and log-sum-exp
takes P = exp(S - l) of the whole row, so that tiles' gradients add up (as in zhuzilin/ring-flash-attention).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fixtures.ranks.steps import Unsupported
from fixtures.ranks.study.models import repeatable
from suites.context.layout import Layout
from suites.context.ring_attention import Blocks, Gradients, Kernel, share_of, wide

_AMPERE = (8, 0)


def refuse_without_kernel(device: torch.device) -> None:
    """Raise Unsupported where torch has no flash attention for the device."""
    if device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) < _AMPERE:
        name = torch.cuda.get_device_name(device)
        raise Unsupported(f"torch has flash attention for Ampere and later, and this is {name}")


@dataclass(frozen=True)
class Tile:
    """Slices of the queries in this rank's part and of the keys in the block."""

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
    """Cut what queries see of a block into tiles that do not overlap."""
    for ours, first, last in layout.queries.pieces:
        for theirs, begin, end in layout.keys[source].pieces:
            same = layout.causal and (first, last) == (begin, end)
            if same or not layout.causal or end <= first:
                yield Tile(ours, theirs, same)
            elif begin <= last:
                raise ValueError(f"positions {begin} to {end} are neither before {first} to {last} nor those")


class Fused(Kernel):
    """Torch's fused attention of (batch, heads, tokens, dim), on one kind of device."""

    _random: tuple[Any, ...] = ()  # other results of the forward kernel that the backward one takes

    def attend(self, q: Tensor, blocks: Blocks, kv_heads: int) -> tuple[Tensor, ...]:
        """Merge all tiles of all blocks in fp32; the output is kept for backward as it is returned."""
        out = torch.zeros_like(q, dtype=wide(q.dtype))
        total = torch.full(q.shape[:-1], -torch.inf, dtype=out.dtype, device=q.device)
        for source, block in blocks:
            for tile in tiles(self.layout, source):
                keys, values = _for_heads(block[:, :, :, tile.keys].to(q.dtype), q.shape[1])
                found, norm = self._forward(q[:, :, tile.queries].contiguous(), keys, values, tile.causal)
                here = total[:, :, tile.queries]
                merged = torch.logaddexp(here, norm)
                kept = out[:, :, tile.queries] * share_of(here, merged)
                out[:, :, tile.queries] = kept + found * share_of(norm, merged)
                total[:, :, tile.queries] = merged
                self.tally.pairs += tile.pairs
        low = out.to(q.dtype)
        return low, low, total

    def backward(self, q: Tensor, out: Tensor, norm: Tensor, gradient: Tensor) -> Gradients:
        """Call the kernel once per tile, with its queries and keys."""

        def gradients(block: Tensor, source: int) -> tuple[Tensor, Tensor]:
            dq = torch.zeros_like(q, dtype=wide(q.dtype))
            dkv = torch.zeros_like(block, dtype=dq.dtype)
            for tile in tiles(self.layout, source):
                grad, *rest = (one[:, :, tile.queries].contiguous() for one in (gradient, q, out, norm))
                keys, values = _for_heads(block[:, :, :, tile.keys].to(q.dtype), q.shape[1])
                found = self._backward(grad, (rest[0], keys, values), rest[1], rest[2], tile.causal)
                dq[:, :, tile.queries] += found[0]
                both = torch.stack(found[1:]).to(dq.dtype)
                dkv[:, :, :, tile.keys] += both.view(
                    *both.shape[:2], block.shape[2], -1, *both.shape[3:]
                ).sum(3)
            return dq, dkv

        return gradients

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """Output, and log-sum-exp in fp32."""
        if q.device.type == "cpu":
            out, norm = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
            return out, norm
        out, norm, *beside, _ = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, causal, False
        )
        self._random = (*beside[:2], *beside[4:])
        return out, norm

    def _backward(self, grad: Tensor, qkv: Sequence[Tensor], out: Tensor, norm: Tensor, causal: bool) -> Any:  # noqa: ANN401
        """Gradients of q, k and v of a tile, which is part of a larger row."""
        q, k, _ = qkv
        if q.device.type == "cpu":
            call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
            return call(grad, *qkv, out, norm, 0.0, causal)
        queries, keys, *random = self._random
        lengths = q.shape[2], k.shape[2]
        call = torch.ops.aten._scaled_dot_product_flash_attention_backward
        with repeatable(strictly=True):
            return call(grad, *qkv, out, norm, queries, keys, *lengths, 0.0, causal, *random)


def _for_heads(block: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Repeat keys and values for each query head; groups of query heads share one."""
    keys, values = block.repeat_interleave(heads // block.shape[2], 2)
    return keys, values
