"""How tensor parallel ranks communicate: each function forward, and its adjoint backward.

n ranks hold x (the same on all) or x_0 ... x_{n-1} (a part, or a summand, of each):

    function                    forward                              backward
    copy_to                     x                                    all_reduce (sum) of the gradients      f
    reduce_from                 all_reduce: sum of x_r               the gradient                           g
    gather_from                 all_gather: the parts in a row       this rank's part of the gradient
    scatter_to                  this rank's part of x                all_gather of the gradients
    gather_from_sequence        all_gather                           reduce_scatter of the gradients    g-bar
    reduce_scatter_to_sequence  reduce_scatter: this rank's part     all_gather of the gradients        f-bar
                                of the sum of x_r

The names are those of Megatron-LM's regions (megatron/core/tensor_parallel/mappings.py, without "region").
f and g: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, figure 3; g-bar and f-bar: Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", 2022, figure 5. An adjoint follows from the forward: where every rank reads the same x,
the gradient of x is the sum of all ranks' gradients; where a rank's x becomes a summand, it is the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from fixtures.ranks.collectives.calls import renamed

Meet = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Group:
    """The ranks among which tensors are split; `handle` None is the default group."""

    rank: int
    size: int
    handle: Any = None

    def part(self, whole: Tensor, dim: int) -> Tensor:
        """This rank's slice of what is split evenly along `dim`; what does not divide is refused."""
        length = whole.shape[dim]
        if length % self.size:
            raise ValueError(f"dimension {dim} of {length} elements does not divide among {self.size} ranks")
        return whole.narrow(dim, self.rank * (length // self.size), length // self.size)


def all_reduce(x: Tensor, group: Group, op: Any = None) -> Tensor:  # noqa: ANN401 - ReduceOp is untyped
    """A new tensor: the sum (or `op`) of what all ranks of the group have."""
    y = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, op=dist.ReduceOp.SUM if op is None else op, group=group.handle)
    return y


def all_gather(x: Tensor, dim: int, group: Group) -> Tensor:
    """A new tensor: what all ranks have, joined along `dim`."""
    sent = x.detach().movedim(dim, 0).contiguous()
    received = sent.new_empty((group.size * sent.shape[0], *sent.shape[1:]))
    renamed("all_gather_single", "all_gather_into_tensor")(received, sent, group=group.handle)
    return received.movedim(0, dim).contiguous()


def reduce_scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    """A new tensor: this rank's slice along `dim` of the sum of what all ranks have."""
    sent = x.detach().movedim(dim, 0).contiguous()
    received = sent.new_empty((sent.shape[0] // group.size, *sent.shape[1:]))
    renamed("reduce_scatter_single", "reduce_scatter_tensor")(received, sent, group=group.handle)
    return received.movedim(0, dim).contiguous()


class _Met(Function):
    """A function of one tensor, and its adjoint for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Meet, back: Meet) -> Tensor:  # noqa: ANN401 - autograd's context
        ctx.back = back
        return forth(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        return ctx.back(grads[0]), None, None


def met(x: Tensor, forth: Meet, back: Meet) -> Tensor:
    """Give `forth(x)`; on the way back `back` takes the gradient."""
    return _Met.apply(x, forth, back)  # type: ignore[no-any-return, no-untyped-call]


class _GatheredLinear(Function):
    """Several linear layers on one sequence that is split: x is gathered, used and dropped.

    Forward: all_gather of x. Backward: all_gather of x again, for the weights' gradients, and reduce_scatter
    of the sum of the layers' gradients. What is kept between is 1/n of x, which is why it is gathered twice
    (Korthikanti et al. 2022, section 4.2.2).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group, *weights: Tensor) -> Any:  # noqa: ANN401
        ctx.save_for_backward(x, *weights)
        ctx.dim, ctx.group = dim, group
        whole = all_gather(x, dim, group)
        return tuple(torch.nn.functional.linear(whole, weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        x, *weights = ctx.saved_tensors
        whole = all_gather(x, ctx.dim, ctx.group).flatten(0, -2)
        summand = sum(grad @ weight for grad, weight in zip(grads, weights, strict=True))
        found = reduce_scatter(summand, ctx.dim, ctx.group)
        return (found, None, None, *(grad.flatten(0, -2).t() @ whole for grad in grads))


def copy_to(x: Tensor, group: Group) -> Tensor:
    """f: x unchanged; backward all_reduce. Also for a replicated weight that ranks use on different data."""
    return met(x, lambda same: same.view_as(same), lambda grad: all_reduce(grad, group))


def reduce_from(x: Tensor, group: Group) -> Tensor:
    """g: the sum by all_reduce; backward nothing."""
    return met(x, lambda summand: all_reduce(summand, group), lambda grad: grad)


def gather_from(x: Tensor, dim: int, group: Group) -> Tensor:
    """The parts joined by all_gather, for ranks that then compute the same; backward a slice."""
    return met(x, lambda part: all_gather(part, dim, group), lambda grad: group.part(grad, dim).contiguous())


def scatter_to(x: Tensor, dim: int, group: Group) -> Tensor:
    """This rank's slice; backward all_gather."""
    return met(
        x, lambda whole: group.part(whole, dim).contiguous(), lambda grad: all_gather(grad, dim, group)
    )


def gather_from_sequence(x: Tensor, dim: int, group: Group) -> Tensor:
    """The parts joined by all_gather, for ranks that then compute differently; backward reduce_scatter."""
    return met(x, lambda part: all_gather(part, dim, group), lambda grad: reduce_scatter(grad, dim, group))


def reduce_scatter_to_sequence(x: Tensor, dim: int, group: Group) -> Tensor:
    """This rank's slice of the sum by reduce_scatter; backward all_gather."""
    return met(
        x, lambda summand: reduce_scatter(summand, dim, group), lambda grad: all_gather(grad, dim, group)
    )


def gathered_linear(x: Tensor, dim: int, group: Group, *weights: Tensor) -> tuple[Tensor, ...]:
    """Column-parallel layers on a split sequence: all_gather; backward all_gather and reduce_scatter."""
    return _GatheredLinear.apply(x, dim, group, *weights)  # type: ignore[no-any-return, no-untyped-call]
