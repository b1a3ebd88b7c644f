"""Kernels of a device held to the same arithmetic written out, so that no kernel is compared with itself.

A step that is compared with the unsharded model on the same node uses the same kernels on both sides. Here
what is right is said by tables (`rounded.py`, `whole.py`): on the CPU, of the operands that the device
really had, in fp64 or whole numbers, element by element, without the kernel that is tried. Whole numbers
and bits must be equal. Otherwise the bound is made of how often a result may be rounded on its way:

    |found - right| <= 2 ((1 + u) w wide + u narrow) + s

`wide` is the number of roundings in fp32, each times the magnitude of what is rounded there, and `narrow`
the same in the result's dtype. A number that is rounded to the nearest is off by u = eps / 2 of it at most.
For fp32 w = 2^-23: tensor cores add up products of fp16 and bf16 in fp32, and cut off instead of rounding
(M. Fasi et al., "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021). A sum of
k terms, added in any order, takes k - 1 roundings of the sum of their magnitudes at most (N. J. Higham,
"Accuracy and Stability of Numerical Algorithms", 2nd ed., 2002, section 4.2). For fp64 w = 2^-51: what it
is compared with is rounded as often. s is the smallest normal number: what lies below it some processors
take for zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fixtures.ranks.exact.compare import keep, occasion
from fixtures.ranks.exact.dtypes import FORMATS
from fixtures.ranks.steps import Context, Unsupported
from fixtures.ranks.study.parity import fp32_products
from fixtures.ranks.unsupported import unsupported
from suites.nodes.compute.matmul import refuse
from suites.nodes.compute.series import Corruption

WIDE, WIDEST = 2.0**-23, 2.0**-51
# A library may round once more than it says; a wrong kernel is off by far more.
ROOM = 2.0
FLOATS = ("fp64", "fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Given:
    """Where a kernel runs, in which dtype, and what its operands are drawn from: the CPU's generator."""

    device: torch.device
    dtype: torch.dtype
    source: torch.Generator

    def normal(self, *shape: int, spread: float = 1.0) -> Tensor:
        """Draw normally distributed numbers."""
        drawn = torch.randn(shape, generator=self.source, dtype=torch.float64)
        return (drawn * spread).to(self.device, self.dtype)

    def numbers(self, low: int, high: int, *shape: int) -> Tensor:
        """Draw whole numbers from `low` to below `high`."""
        return torch.randint(low, high, shape, generator=self.source).to(self.device)


@dataclass(frozen=True)
class Right:
    """A right result, and how far it may be missed: by `most`, or by so many roundings, wide and narrow."""

    value: Tensor
    most: float = 0.0
    roundings: tuple[Tensor, Tensor] | None = None

    def bound(self, dtype: torch.dtype) -> Tensor:
        """Give the largest error of each element for what runs in this dtype."""
        bound = torch.full(self.value.shape, self.most, dtype=torch.float64)
        if self.roundings is None:
            return bound
        form, (wide, narrow) = torch.finfo(dtype), self.roundings
        unit, rounding = WIDEST if dtype == torch.float64 else WIDE, form.eps / 2
        return bound + ROOM * ((1 + rounding) * unit * wide + rounding * narrow) + form.smallest_normal


def rounded(value: Tensor, wide: Tensor, narrow: Tensor) -> Right:
    """Give a result that is rounded so often on its way."""
    return Right(value, roundings=(wide, narrow))


@dataclass(frozen=True)
class Kernel:
    """One kernel: `run` gives its results on the device, `right` what each must be, by name, in that order.

    `right` gets the operands as the CPU has them, floating-point numbers in fp64.
    """

    operands: Callable[[Given], Sequence[Tensor]]
    run: Callable[..., Sequence[Tensor]]
    right: Callable[..., Mapping[str, Right]]
    forms: Sequence[str] = FLOATS


def measured(ctx: Context, table: Mapping[str, Kernel], names: Sequence[str]) -> dict[str, Any]:
    """Hold these kernels in all of their dtypes: what was wrong, and how much of its bound each one took.

    In place of a share stands the reason where the device or its library lacks the dtype.
    """
    wrong: list[Corruption] = []
    said: dict[str, float | str] = {}
    with fp32_products(), sums_in_fp32():
        for name in names:
            ctx.progress.phase(name)
            for number, form in enumerate(table[name].forms, 1):
                try:
                    said[f"{name} {form}"] = _held(ctx, name, table[name], form, wrong)
                except Unsupported as lacks:
                    said[f"{name} {form}"] = str(lacks)
                ctx.progress.done(number)
    return {"wrong": wrong, "kernels": said}


@contextmanager
def sums_in_fp32() -> Iterator[None]:
    """Let cuBLAS add up in fp32 inside: where it splits a sum, it may round the parts to fp16 or bf16."""
    flags = torch.backends.cuda.matmul
    names = [f"allow_{form}_reduced_precision_reduction" for form in ("fp16", "bf16")]
    before = {name: getattr(flags, name) for name in names}
    try:
        for name in names:
            setattr(flags, name, False)
        yield
    finally:
        for name, allowed in before.items():
            setattr(flags, name, allowed)


def _held(ctx: Context, name: str, kernel: Kernel, form: str, wrong: list[Corruption]) -> float:
    """Run it once, and give the largest error as a share of its bound."""
    if ctx.device.type != "cpu":
        refuse(form, ctx.device)
    given = Given(ctx.device, FORMATS[form].dtype, torch.Generator().manual_seed(ctx.seed))
    operands = kernel.operands(given)
    try:
        found = kernel.run(*operands)
    except RuntimeError as error:
        lacks = unsupported(error)
        if lacks is None:
            raise
        raise lacks from error
    worst = [0.0]
    for (part, right), seen in zip(kernel.right(*map(plain, operands)).items(), found, strict=True):
        shares = _shares(seen, right, given.dtype)
        worst += shares
        about = occasion(ctx.rank, f"{name} {part}", form, seen.nbytes, 0)
        keep(wrong, _wrong(about, seen, right, shares))
    return float(f"{max(worst):.3g}")


def plain(tensor: Tensor) -> Tensor:
    """The same values on the CPU: in fp64, or as whole numbers."""
    here = tensor.detach().cpu()
    return here.double() if here.is_floating_point() else here.long()


def _shares(found: Tensor, right: Right, dtype: torch.dtype) -> list[float]:
    """Each element's error as a share of its bound, infinite for what is no number or of another shape."""
    if found.shape != right.value.shape:
        return [math.inf]
    error = (plain(found) - right.value).abs().double()
    shares = torch.where(error == 0, 0.0, error / right.bound(dtype)).flatten().tolist()
    return [math.inf if math.isnan(share) else share for share in shares]


def _wrong(about: Corruption, found: Tensor, right: Right, shares: Sequence[float]) -> Corruption | None:
    """Describe what is out of bounds; None if nothing is."""
    places = [place for place, share in enumerate(shares) if share > 1.0]
    if not places:
        return None
    first, worst = places[0], max(shares)
    times = f"an error of {worst:.3g} times its bound" if math.isfinite(worst) else ""
    seen, wanted = (
        f"{plain(one).flatten()[first].item():.7g}"
        if found.shape == right.value.shape
        else f"shape {list(one.shape)}"
        for one in (found, right.value)
    )
    return {
        **about,
        "source_rank": about["rank"],
        "first_offset": first,
        "count": len(places),
        "found": seen,
        "expected": wanted,
        "looks_like": times,
    }
