"""One technique beside its unsharded self: what it is made of, and how either is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fixtures.ranks.study import memory
from suites.tensor.pattern import Through

Tensor = torch.Tensor
Cut = Callable[[Tensor], Tensor]  # a view: what of a whole tensor a rank holds
Weights = dict[str, Tensor]
Forward = Callable[[Weights, Tensor], Tensor]

EXACT, TRAINED = torch.float64, torch.bfloat16
ITEM_BYTES = TRAINED.itemsize


@dataclass(frozen=True)
class Ran:
    """What forward and backward left on this rank; `weights` are the parameters that it holds."""

    found: Mapping[str, Tensor]
    weights: Sequence[Tensor]


@dataclass(frozen=True)
class Trial:
    """A technique. The loss is half the squared distance of output and `direction`: nothing cancels.

    `ready` makes this rank's part of the model, which is no part of the technique, and gives what runs it.
    `cuts`: what a rank holds of "input", "forward" and every weight; what is not named is whole everywhere.
    `traffic`: (calls, bytes) of every kind of collective in one forward and backward of the training dtype.
    `elements`: of weights that one rank holds. `saved`: bytes that a forward keeps for backward (found,
    expected), where that is judged. `alone`: results that owe nothing to another rank. `figures`: what is
    measured of this technique alone. `through`: what carries the exact payload.
    """

    whole: nn.Module
    x: Tensor
    direction: Tensor
    ready: Callable[[torch.dtype], Callable[[], Ran]]
    traffic: Mapping[str, tuple[int, int]]
    elements: int
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    saved: Callable[[], tuple[int, int]] | None = None
    alone: tuple[str, ...] = ()
    figures: Callable[[], Mapping[str, float]] = dict
    through: Through = field(default_factory=Through)

    def cut(self, what: str, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor, as a view."""
        return self.cuts[what](whole) if what in self.cuts else whole


def split_trial(
    whole: nn.Module,
    x: Tensor,
    cuts: Mapping[str, Cut],
    forward: Forward,
    *,
    traffic: Mapping[str, tuple[int, int]],
    elements: int,
    kept: Callable[[int], int] | None = None,
    alone: tuple[str, ...] = (),
) -> Trial:
    """A technique as a function of this rank's weights and input.

    `kept`: of the bytes that the unsharded model saves for backward, those that one rank is to save.
    """
    direction = direction_for(whole, x)
    ready = partial(ready_local, whole=whole, x=x, direction=direction, cuts=cuts, forward=forward)
    saved = partial(_saved, whole, x, cuts, forward, kept) if kept else None
    return Trial(whole, x, direction, ready, traffic, elements, cuts, saved, alone)


def direction_for(whole: nn.Module, x: Tensor) -> Tensor:
    """A fixed direction of the output's shape, the same on every rank; the shape costs no computation."""
    with torch.no_grad():
        shape = deepcopy(whole).to("meta")(x.to("meta")).shape
    return drawn(0, *shape).to(x.device)


def drawn(seed: int, *shape: int) -> Tensor:
    """Normal numbers in fp64, on the CPU, the same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=EXACT)


def _saved(
    whole: nn.Module, x: Tensor, cuts: Mapping[str, Cut], forward: Forward, kept: Callable[[int], int]
) -> tuple[int, int]:
    model, given = deepcopy(whole).to(TRAINED), as_input(x, TRAINED)
    unsharded_bytes = memory.saved_activation_bytes(lambda: model(given), model.parameters())
    weights = local_weights(whole, cuts, TRAINED)
    mine = as_input(cuts["input"](x) if "input" in cuts else x, TRAINED)
    found_bytes = memory.saved_activation_bytes(lambda: forward(weights, mine), weights.values())
    return found_bytes, kept(unsharded_bytes)


def as_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A leaf in this dtype; tokens stay tokens."""
    return x.to(dtype).detach().clone().requires_grad_() if x.is_floating_point() else x


def settle(out: Tensor, direction: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Go backward from |out - direction|^2 / 2 in at least fp32; what is then known of outputs and input."""
    wide = torch.promote_types(out.dtype, torch.float32)
    loss = (out.to(wide) - direction.to(wide)).square().sum() / 2
    loss.backward()  # type: ignore[no-untyped-call]
    found = {"forward": out.detach(), "loss": loss.detach()}
    if x.grad is not None:
        found["grad:input"] = x.grad
    return found


def unsharded(trial: Trial, dtype: torch.dtype) -> dict[str, Tensor]:
    """The reference: the whole model on the whole input, on this rank alone."""
    model = deepcopy(trial.whole).to(dtype)
    x = as_input(trial.x, dtype)
    found = settle(model(x), trial.direction, x)
    for name, weight in model.named_parameters():
        if weight.grad is None:
            raise ValueError(f"the reference has no gradient for {name}: the trial does not reach it")
        found[f"grad:{name}"] = weight.grad
    return found


def local_weights(whole: nn.Module, cuts: Mapping[str, Cut], dtype: torch.dtype) -> Weights:
    """This rank's part of every parameter, as leaves."""
    held = {}
    for name, weight in whole.named_parameters():
        part = cuts[name](weight.detach()) if name in cuts else weight.detach()
        held[name] = part.to(dtype).clone(memory_format=torch.contiguous_format).requires_grad_()
    return held


def ready_local(
    dtype: torch.dtype,
    *,
    whole: nn.Module,
    x: Tensor,
    direction: Tensor,
    cuts: Mapping[str, Cut],
    forward: Forward,
) -> Callable[[], Ran]:
    """Take this rank's parts of input and weights, for one forward and backward."""
    weights = local_weights(whole, cuts, dtype)
    mine = as_input(cuts["input"](x) if "input" in cuts else x, dtype)
    goal = cuts["forward"](direction) if "forward" in cuts else direction
    return lambda: settled(lambda: settle(forward(weights, mine), goal, mine), weights.items())


def settled(run: Callable[[], dict[str, Tensor]], weights: Iterable[tuple[str, Tensor]]) -> Ran:
    """Run forward and backward, and add the gradients of the weights."""
    found, held = run(), []
    for name, weight in weights:
        if weight.grad is None:
            raise ValueError(f"no gradient reached {name}")
        found[f"grad:{name}"] = weight.grad
        held.append(weight)
    return Ran(found, held)


def full(tensor: Tensor) -> Tensor:
    """A distributed tensor put together; a plain one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
