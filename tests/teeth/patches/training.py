"""What a stack could do wrong before it trains, and before it updates: replacements of torch's calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor._ops._math_ops import _NormPartial

from tests.teeth.bug import Patch, instead_of, planted, replaced, replacing

Call = Callable[..., Any]
Optimizer = torch.optim.Optimizer


@instead_of(dist, "all_reduce")
def own_norm(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A single number is not added up: the norm is that of the local shard."""
    return original(tensor, *args, **kwargs) if tensor.dim() else None


def clipped_late() -> AbstractContextManager[Any]:
    """Gradients are clipped when they have been applied."""
    return replaced(Optimizer, "register_step_pre_hook", lambda _: Optimizer.register_step_post_hook)


@contextmanager
def clipped_before_reduced() -> Iterator[None]:
    """From the first time that anything is to be clipped, each rank clips its own gradients of a block."""
    seen = {"clips": False}

    @replacing
    def register(original: Call, self: Optimizer, hook: Call) -> Any:
        seen["clips"] = True
        return original(self, hook)

    @replacing
    def reduce(original: Call, *args: Any, **kwargs: Any) -> Any:
        whole = kwargs["input"] if "input" in kwargs else args[1]
        if seen["clips"] and whole.is_floating_point():
            whole.mul_((1 / whole.norm()).clamp(max=1))
        return original(*args, **kwargs)

    with ExitStack() as planted:
        planted.enter_context(replaced(Optimizer, "register_step_pre_hook", register))
        planted.enter_context(replaced(dist, "reduce_scatter_single", reduce))
        yield


def added(make: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Patch:
    """What is added to a tensor in place, as it is, becomes something else; optimizers add multiples."""

    @replacing
    def replace(original: Call, self: torch.Tensor, other: Any, **kwargs: Any) -> Any:
        if kwargs or not isinstance(other, torch.Tensor):
            return original(self, other, **kwargs)
        return self.copy_(make(self, other))

    return planted(torch.Tensor, "add_", replace)


def last_alone(_before: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    return last


def averaged(before: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Micro-batches, which are averaged as it is, are averaged again."""
    return (before + last) / 2


def added_in_bf16(before: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    return (before + last).to(torch.bfloat16).to(before.dtype)


@instead_of(torch.Tensor, "__iadd__")
def last_shard_alone(original: Call, self: torch.Tensor, other: Any) -> torch.Tensor:
    """fully_shard keeps the shard that was reduced last."""
    done: torch.Tensor = self.copy_(other) if self.dim() else original(self, other)
    return done


@instead_of(FSDPModule, "set_requires_gradient_sync")
def reduced_every_time(original: Call, self: Any, _asked: Any, **kwargs: Any) -> Any:
    """Gradients are exchanged with every micro-batch."""
    return original(self, True, **kwargs)


@instead_of(FSDPParam, "accumulate_unsharded_grad_if_needed")
def whole_added_in_bf16(original: Call, self: Any) -> None:
    """Whole gradients of micro-batches are added up in bf16."""
    original(self)
    if self.unsharded_accumulated_grad is not None:
        self.unsharded_accumulated_grad = self.unsharded_accumulated_grad.bfloat16().float()


def beyond_equal_shards(whole: torch.Tensor) -> torch.Tensor:
    """The rows that are left over where all ranks get equally many."""
    return whole[len(whole) // dist.get_world_size() * dist.get_world_size() :]


@instead_of(FSDPParam, "init_unsharded_param")
def rows_left_over_not_gathered(original: Call, self: Any) -> None:
    """Of what was gathered a weight gets no rows beyond equal shards."""
    original(self)
    beyond_equal_shards(self._unsharded_param.data).zero_()


@instead_of(_fsdp_collectives, "foreach_reduce_scatter_copy_in")
def rows_left_over_not_reduced(original: Call, grads: Any, *args: Any) -> None:
    """Of gradients no rows beyond equal shards are reduced."""
    for grad in grads:
        beyond_equal_shards(grad).zero_()
    original(grads, *args)


@instead_of(_NormPartial, "_reduce_value")
def torchs_own_norm(_original: Call, _self: Any, tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    """torch takes the norm of a rank's part for that of all."""
    return tensor


@instead_of(torch, "_fused_adamw_")
def undecayed_if_fused(original: Call, *args: Any, **kwargs: Any) -> Any:
    """The kernel of all of an update leaves the decay of weights out."""
    return original(*args, **{**kwargs, "weight_decay": 0.0})


@replacing
def last_rank(original: Call, group: Any, tensors: Any, size: int, _source: int) -> Any:
    """Those of the last rank win."""
    return original(group, tensors, size, dist.get_world_size() - 1)
