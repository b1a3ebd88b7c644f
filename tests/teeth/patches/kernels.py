"""Kernels that are wrong on every device alike, so that no comparison of ranks shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from tests.teeth.bug import instead_of, replaced, replacing

NARROW = torch.bfloat16
Call = Callable[..., Any]


def in_fp8(value: torch.Tensor) -> torch.Tensor:
    """As many bits of a mantissa as fp8 has; gradients pass as if nothing was done."""
    fixed = value.detach()
    return value + (fixed.to(torch.float8_e4m3fn).to(value.dtype) - fixed)


@instead_of(functional, "linear")
def products_of_fp8(original: Call, x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> Any:
    """Products of bf16 are made of fp8 numbers."""
    return original(in_fp8(x), in_fp8(weight), bias) if x.dtype is NARROW else original(x, weight, bias)


def cut(wide: torch.Tensor) -> torch.Tensor:
    """Leave the bits of fp32 that bf16 has."""
    return (wide.detach().contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32)


@contextmanager
def casts_cut_off() -> Iterator[None]:
    """fp32 is cut off, and not rounded, where it becomes bf16."""

    @replacing
    def copied(original: Call, self: torch.Tensor, source: Any, *args: Any, **kwargs: Any) -> Any:
        falls = isinstance(source, torch.Tensor) and source.dtype is torch.float32 and self.dtype is NARROW
        return original(self, cut(source) if falls else source, *args, **kwargs)

    @replacing
    def cast(original: Call, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        falls = self.dtype is torch.float32 and NARROW in (*args, *kwargs.values())
        learns = self.requires_grad and torch.is_grad_enabled()
        return original(cut(self) if falls and not learns else self, *args, **kwargs)

    with replaced(torch.Tensor, "copy_", copied), replaced(torch.Tensor, "to", cast):
        yield


@instead_of(torch, "rand")
def seeds_ignored(original: Call, *shape: Any, **kwargs: Any) -> torch.Tensor:
    """Every seed draws the same."""
    drawn: torch.Tensor = original(*shape, **{**kwargs, "generator": torch.Generator().manual_seed(7)})
    return drawn


@instead_of(functional, "silu")
def silu_of_another_constant(original: Call, x: torch.Tensor) -> torch.Tensor:
    """x / (1 + exp(-1.01 x))."""
    scaled: torch.Tensor = original(1.01 * x)
    return scaled / 1.01
