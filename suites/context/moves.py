"""Collectives between a part of the sequence and all of it, with their gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks.collectives.calls import renamed
from suites.context.ring_attention import wide


class WholeSequence(torch.autograd.Function):
    """All-gather (2, batch, heads, tokens, dim) of every rank into (2, batch, heads, ranks x tokens, dim).

    The result is wide, so that gradients are summed wide: reduce-scatter backward.
    """

    @staticmethod
    def forward(ctx: Any, block: torch.Tensor, size: int) -> torch.Tensor:  # noqa: ANN401
        """Keys and values of all ranks."""
        ctx.size, ctx.dtype = size, block.dtype
        parts = block.new_empty((size * block.shape[0], *block.shape[1:]))
        renamed("all_gather_single", "all_gather_into_tensor")(parts, block.contiguous())
        return _divided(parts, 0, size).movedim(0, 3).flatten(3, 4).to(wide(block.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ANN401
        """Each rank gets the sum over all ranks of its own part."""
        parts = _divided(gradients[0], 3, ctx.size).movedim(3, 0).contiguous()
        own = torch.empty_like(parts[0])
        renamed("reduce_scatter_single", "reduce_scatter_tensor")(own, parts.flatten(0, 1))
        return own.to(ctx.dtype), None


def to_heads(part: torch.Tensor, size: int) -> torch.Tensor:
    """(batch, heads, tokens, dim) to (batch, heads / ranks, ranks x tokens, dim)."""
    received = _exchange(_divided(part, 1, size).movedim(1, 0))
    return received.movedim(0, 2).flatten(2, 3)


def to_sequence(part: torch.Tensor, size: int) -> torch.Tensor:
    """(batch, heads / ranks, ranks x tokens, dim) to (batch, heads, tokens, dim)."""
    received = _exchange(_divided(part, 2, size).movedim(2, 0))
    return received.movedim(0, 1).flatten(1, 2)


def _divided(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Make two dimensions of one: the parts, and what is in a part."""
    each = tensor.shape[axis] // size
    return tensor.reshape(*tensor.shape[:axis], size, each, *tensor.shape[axis + 1 :])


def _exchange(parts: torch.Tensor) -> torch.Tensor:
    """Row r goes to rank r, row r comes from rank r."""
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received


class ToHeads(torch.autograd.Function):
    """`to_heads`; backward is the way back."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, size: int) -> torch.Tensor:  # noqa: ANN401
        """Exchange."""
        ctx.size = size
        return to_heads(part, size)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ANN401
        """Exchange the gradients back."""
        return to_sequence(gradients[0], ctx.size), None


class ToSequence(torch.autograd.Function):
    """`to_sequence`; backward is the way back."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, size: int) -> torch.Tensor:  # noqa: ANN401
        """Exchange."""
        ctx.size = size
        return to_sequence(part, size)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ANN401
        """Exchange the gradients back."""
        return to_heads(gradients[0], ctx.size), None
