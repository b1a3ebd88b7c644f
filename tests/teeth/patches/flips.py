"""Bits that flip from outside: in the memory of a delivered buffer, unseen by torch."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tests.teeth.bug import planted

Call = Callable[..., Any]
OUTPUTS = ("output_tensor", "output", "tensor")


def flip(tensor: torch.Tensor, element: int = 0, bit: int = 0) -> None:
    """Flip a bit (0 is the lowest of the mantissa) of an element, past torch: no operation is dispatched."""
    if not tensor.is_contiguous():
        raise ValueError("the elements of this buffer do not lie side by side")
    address = tensor.data_ptr() + element * tensor.element_size() + bit // 8
    ctypes.c_ubyte.from_address(address).value ^= 1 << bit % 8


@dataclass
class Late:
    """Work after which something is done when it is waited for."""

    work: Any
    then: Callable[[], None]

    def wait(self) -> None:
        """Wait, then do it."""
        self.work.wait()
        self.then()


def flipped_in_call(number: int | None, element: int = 0, bit: int = 0) -> Callable[[Call], Call]:
    """Let one bit flip once on rank 1: in what the so-manyth call, from 1, delivers; None is every call."""

    def make(original: Call) -> Call:
        count = itertools.count(1)

        def call(*args: Any, **kwargs: Any) -> Any:
            work = original(*args, **kwargs)
            if number in (None, next(count)) and dist.get_rank() == 1:
                if work is not None:
                    work.wait()
                flip(
                    args[0] if args else next(kwargs[name] for name in OUTPUTS if name in kwargs),
                    element,
                    bit,
                )
            return work

        return call

    return make


def transient(name: str, number: int, element: int = 0) -> Callable[[], AbstractContextManager[Any]]:
    """Plant it in a call of torch.distributed."""
    return planted(dist, name, flipped_in_call(number, element))
