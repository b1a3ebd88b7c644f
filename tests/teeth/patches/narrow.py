"""What only a run in the dtype of training shows: updates that are lost, sums and bits that are cut off."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from suites.expert import layer
from tests.teeth.bug import Patch, instead_of, planted, replaced, replacing, where
from tests.teeth.patches.flips import OUTPUTS

Call = Callable[..., Any]
Maker = Callable[[Call], Call]
NARROW = torch.bfloat16
LAYER_TOKENS = 16  # of one rank
_NEAR = 0.2  # updates are smaller, blocks are farther apart
_LOW_HALF = ~0xFFFF  # bf16 is the upper half of fp32


# optimizers


def step_of(optimizer: type[torch.optim.Optimizer], make: Maker) -> Patch:
    """Replace the step of an optimizer; torch would call the hooks of an unmarked one twice."""

    def marked(original: Call) -> Call:
        step = make(original)
        step.hooked = getattr(original, "hooked", False)  # type: ignore[attr-defined]
        return step

    return planted(optimizer, "step", marked)


def of_bf16_weights(make: Maker) -> Maker:
    """Plant it where the weights are bf16 alone."""
    return where(lambda optimizer, *_, **__: optimizer.param_groups[0]["params"][0].dtype is NARROW, make)


@replacing
def all_but_the_first(original: Call, self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    """What comes first among the parameters is never updated."""
    first = self.param_groups[0]["params"][0]
    before = first.detach().clone()
    original(self, *args, **kwargs)
    first.data.copy_(before)


@replacing
def second_lost_on_rank_1(original: Call, self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    """Of every run rank 1 loses its second update: it takes part in all that a step exchanges."""
    # Counted on the optimizer itself: another one may have its id when it is gone.
    number = next(vars(self).setdefault("counted_steps", itertools.count(1)))
    weights = [weight for group in self.param_groups for weight in group["params"]]
    before = [weight.detach().clone() for weight in weights]
    original(self, *args, **kwargs)
    if number == 2 and dist.get_rank() == 1:
        for weight, old in zip(weights, before, strict=True):
            weight.data.copy_(old)


@replacing
def count_stuck(original: Call, self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    """Adam takes every step for the first one."""
    for state in self.state.values():
        state["step"].zero_()
    original(self, *args, **kwargs)


@replacing
def count_stops(original: Call, self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    """Adam takes every later step for the fourth."""
    for state in self.state.values():
        state["step"].clamp_(max=3)
    original(self, *args, **kwargs)


@replacing
def undecayed(original: Call, self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    """Weight decay is lost, as where masters are put into groups of their own."""
    for group in self.param_groups:
        group["weight_decay"] = 0.0
    original(self, *args, **kwargs)


def stale_copies() -> AbstractContextManager[Any]:
    """Where fp32 masters are rounded into a share, those of the step before are."""
    before: dict[int, torch.Tensor] = {}

    @replacing
    def make(original: Call, self: torch.Tensor, source: Any, *args: Any, **kwargs: Any) -> Any:
        masters = isinstance(source, torch.nn.Parameter) and source.dim() == 1 and self.dtype is NARROW
        if not masters:
            return original(self, source, *args, **kwargs)
        stale = before.get(id(source), source.detach())
        before[id(source)] = source.detach().clone()
        return original(self, stale, *args, **kwargs)

    return replaced(torch.Tensor, "copy_", make)


# collectives of bf16


def on_bf16(*args: Any, **kwargs: Any) -> bool:
    """Whether a call has a tensor in bf16."""
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
    return any(tensor.dtype is NARROW for tensor in tensors)


def of(name: str, make: Maker) -> Patch:
    """Plant it in a call of torch.distributed, where that is on bf16."""
    return planted(dist, name, where(on_bf16, make))


@replacing
def truncated(original: Call, *args: Any, **kwargs: Any) -> Any:
    """A sum is cut off where it is to be rounded."""
    found, *others = _delivered_first(args, kwargs)
    wide = [value.float() for value in (found, *others)]
    kept = {name: value for name, value in kwargs.items() if not isinstance(value, torch.Tensor)}
    rest = [value for value in args if not isinstance(value, torch.Tensor)]
    work = original(*wide, *rest, **kept)
    if work is not None:
        work.wait()
    found.copy_((wide[0].view(torch.int32) & _LOW_HALF).view(torch.float32))
    return work


def _delivered_first(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors of a call, the one that is delivered first."""
    named = sorted(kwargs, key=lambda name: name not in OUTPUTS)
    return [value for value in (*args, *map(kwargs.get, named)) if isinstance(value, torch.Tensor)]


@replacing
def without_last_bit(original: Call, *args: Any, **kwargs: Any) -> Any:
    """What is delivered has lost its lowest bit, everywhere."""
    work = original(*args, **kwargs)
    if work is not None:
        work.wait()
    _delivered_first(args, kwargs)[0].detach().view(torch.int16).bitwise_and_(~1)
    return work


def stale(original: Call) -> Call:
    """A model's share is gathered as it was before its last update: near what it is, and not the same."""
    before: list[torch.Tensor] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        whole, part = _delivered_first(args, kwargs)
        current = part.detach().clone()
        older = (old for old in reversed(before) if 0 < _distance(old, current) < _NEAR)
        part.data.copy_(next(older, current))
        before.append(current)
        work = original(*args, **kwargs)
        if work is not None:
            work.wait()
        if part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
            part.data.copy_(current)
        return work

    return call


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return 1.0
    return float((one - other).float().norm() / other.float().norm())


# what is computed


@instead_of(layer, "route")
def narrow_router(
    original: Call, logits: torch.Tensor, wanted: torch.Tensor, slots: int, dtype: torch.dtype
) -> Any:
    """In the runs in bf16 the sharded layer's router computes in it too."""
    own = dtype is NARROW and len(logits) <= LAYER_TOKENS
    return original(logits.bfloat16().to(logits.dtype) if own else logits, wanted, slots, dtype)


def narrow_sum(received: torch.Tensor, _sent: torch.Tensor) -> None:
    """The sum that is passed on in fp32 was added up in bf16."""
    if received.dtype is torch.float32:
        received.copy_(received.bfloat16())


@replacing
def added_up_narrow(
    original: Call, received: torch.Tensor, sent: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Summands in fp32 lose what bf16 does not hold, and so does their sum."""
    narrow = sent.bfloat16().float() if sent.dtype is torch.float32 else sent
    done = original(received, narrow, *args, **kwargs)
    narrow_sum(received, sent)
    return done
