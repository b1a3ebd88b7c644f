"""Collectives between a part of the sequence and the whole, with their gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist

from suites.context.ring_attention import wide
from suites.tensor.regions import Group, all_gather, met, reduce_scatter

_SEQUENCE = 3  # the dimension of stacked keys and values


def whole_sequence(block: torch.Tensor, group: Group) -> torch.Tensor:
    """All-gather (2, batch, heads, tokens, dim) of every rank into (2, batch, heads, ranks x tokens, dim).

    The result is wide, so that gradients are summed wide: reduce-scatter backward.
    """
    return met(
        block,
        lambda own: all_gather(own, _SEQUENCE, group).to(wide(own.dtype)),
        lambda gradient: reduce_scatter(gradient, _SEQUENCE, group).to(block.dtype),
    )


def to_heads(part: torch.Tensor, size: int) -> torch.Tensor:
    """(batch, heads, tokens, dim) to (batch, heads / ranks, ranks x tokens, dim)."""
    return met(part, lambda own: _to_heads(own, size), lambda gradient: _to_sequence(gradient, size))


def to_sequence(part: torch.Tensor, size: int) -> torch.Tensor:
    """(batch, heads / ranks, ranks x tokens, dim) to (batch, heads, tokens, dim)."""
    return met(part, lambda own: _to_sequence(own, size), lambda gradient: _to_heads(gradient, size))


def _to_heads(part: torch.Tensor, size: int) -> torch.Tensor:
    received = _exchange(_divided(part, 1, size).movedim(1, 0))
    return received.movedim(0, 2).flatten(2, 3)


def _to_sequence(part: torch.Tensor, size: int) -> torch.Tensor:
    received = _exchange(_divided(part, 2, size).movedim(2, 0))
    return received.movedim(0, 1).flatten(1, 2)


def _divided(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Split one dimension into two: the parts, and the index within a part."""
    each = tensor.shape[axis] // size
    return tensor.reshape(*tensor.shape[:axis], size, each, *tensor.shape[axis + 1 :])


def _exchange(parts: torch.Tensor) -> torch.Tensor:
    """Row r goes to rank r, row r comes from rank r."""
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received
