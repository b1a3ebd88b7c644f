"""Memory that a real stack keeps too long: values are right, and a rank holds more than its share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import FunctionCtx

from tests.teeth.bug import Patch, instead_of, planted, replacing

Tensor = torch.Tensor
Choice = Callable[[Tensor], bool]


def behind_its_part(tensor: Tensor) -> Tensor:
    """The same values, as a view into a buffer that holds as much for every rank."""
    whole = torch.stack([tensor.detach()] * dist.get_world_size())
    return whole[dist.get_rank()]


def kept_whole(choice: Choice) -> Patch:
    """What is saved for backward is a part of a whole, which therefore stays."""

    @replacing
    def make(original: Any, self: Any, *tensors: Tensor) -> None:
        original(self, *(behind_its_part(one) if choice(one) else one for one in tensors))

    return planted(FunctionCtx, "save_for_backward", make)


def received_kept(name: str) -> Patch:
    """What the last exchanges brought is kept: four of them, as many as a layer has of its rows."""

    def make(original: Any) -> Callable[..., Any]:
        kept: deque[Tensor] = deque(maxlen=4)

        def call(received: Tensor, *args: Any, **kwargs: Any) -> Any:
            done = original(received, *args, **kwargs)
            kept.append(received.clone())
            return done

        return call

    return planted(dist, name, make)


def outputs_kept(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What it gave the last times is kept."""
    kept: deque[Tensor] = deque(maxlen=64)

    def call(*args: Any, **kwargs: Any) -> Tensor:
        done = original(*args, **kwargs)
        kept.append(done.detach().clone())
        return done

    return call


@instead_of(Tensor, "clone")
def weights_kept_whole(original: Any, self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A rank's part of a weight is a view of all of it, which therefore stays."""
    copy: Tensor = original(self, *args, **kwargs)
    # Activations have three dimensions, weights two.
    return behind_its_part(copy) if copy.dim() == 2 and copy.is_floating_point() else copy


@instead_of(torch.nn.functional, "linear")
def inputs_copied(original: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Every layer keeps a copy of the input that it shares with others."""
    return original(x.clone(), *args, **kwargs)
