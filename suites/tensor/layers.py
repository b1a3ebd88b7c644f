"""Linear layers, vocabulary and cross-entropy whose weights are split among ranks.

Weights are as torch stores them: Linear [out, in], Embedding [vocabulary, width].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from suites.tensor.regions import Group, all_reduce, copy_to, gather_from, reduce_from, scatter_to


def rows(group: Group) -> Callable[[Tensor], Tensor]:
    """Cut a Linear's outputs (or a vocabulary): dimension 0 of the weight."""
    return lambda whole: group.part(whole, 0)


def columns(group: Group) -> Callable[[Tensor], Tensor]:
    """Cut the last dimension: a Linear's inputs, or the features of an activation."""
    return lambda whole: group.part(whole, -1)


def column_linear(x: Tensor, weight: Tensor, bias: Tensor, group: Group, gather: bool) -> Tensor:
    """Y_r = X A_r + b_r, A split by output: backward all_reduce of dX; `gather` joins the Y_r."""
    part = functional.linear(copy_to(x, group), weight, bias)
    return gather_from(part, -1, group) if gather else part


def row_linear(x: Tensor, weight: Tensor, bias: Tensor, group: Group, split: bool) -> Tensor:
    """Y = sum of all X_r A_r, plus b once: all_reduce; `split` cuts X first: backward all_gather."""
    part = scatter_to(x, -1, group) if split else x
    return reduce_from(functional.linear(part, weight), group) + bias


def embedding(tokens: Tensor, table: Tensor, group: Group) -> Tensor:
    """Look up the tokens of this rank's part of the vocabulary, zero for others', and all_reduce."""
    index, inside = _own(tokens, table.shape[0], group)
    return reduce_from(functional.embedding(index, table).masked_fill(~inside.unsqueeze(-1), 0), group)


def vocabulary(tokens: Tensor, targets: Tensor, table: Tensor, head: Tensor, group: Group) -> Tensor:
    """Embedding, head and cross-entropy, on this rank's words; the loss of every token."""
    hidden = copy_to(embedding(tokens, table, group), group)
    logits = functional.linear(hidden, head)
    return _CrossEntropy.apply(logits, targets, group)  # type: ignore[no-any-return, no-untyped-call]


class _CrossEntropy(Function):
    """-log softmax at the target of logits z whose vocabulary is split, for each token.

    It is log(sum of exp(z - m)) - (z_target - m), where m is the largest logit of all ranks.

    Forward: three all_reduces of one number per token: max of m, sum of the target's logit (zero but on the
    rank that has it), sum of the exponentials. Backward: nothing, softmax - onehot is local. As Megatron-LM's
    `_VocabParallelCrossEntropy` (megatron/core/tensor_parallel/cross_entropy.py).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group) -> Tensor:  # noqa: ANN401
        z = logits.to(torch.promote_types(logits.dtype, torch.float32))
        z = z - all_reduce(z.max(-1).values, group, dist.ReduceOp.MAX).unsqueeze(-1)
        index, inside = _own(targets, z.shape[-1], group)
        own = z.gather(-1, index.unsqueeze(-1)).squeeze(-1).masked_fill(~inside, 0)
        chosen = all_reduce(own, group)
        powers = z.exp()
        total = all_reduce(powers.sum(-1), group)
        ctx.dtype = logits.dtype
        ctx.save_for_backward(powers / total.unsqueeze(-1), index, inside)
        return total.log() - chosen

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        softmax, index, inside = ctx.saved_tensors
        onehot = torch.zeros_like(softmax).scatter_(-1, index.unsqueeze(-1), inside.unsqueeze(-1).to(softmax))
        return ((softmax - onehot) * grads[0].unsqueeze(-1)).to(ctx.dtype), None, None


def _own(tokens: Tensor, held: int, group: Group) -> tuple[Tensor, Tensor]:
    """The tokens as indices of this rank's part (0 for another's), and which of them are its own."""
    index = tokens - group.rank * held
    inside = (index >= 0) & (index < held)
    return index.masked_fill(~inside, 0), inside
