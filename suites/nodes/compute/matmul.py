"""Matrix products: how fast, and whether they are right.

An n x n product takes 2 n^3 operations. It is timed on normally distributed numbers, because a device draws
less power, and so runs faster, on numbers whose bits hardly change. It is checked on signs: with u, w and v
of +1 and -1 the product of u w^T and w v^T is n u v^T. Every partial sum is a whole number that fp32, in
which devices add, holds exactly in any order; a sum of 2^k (equal) terms, the dtype itself holds exactly too.
"""

from __future__ import annotations

from typing import Any

import torch

from fixtures.ranks.exact.compare import keep
from fixtures.ranks.steps import Context, Unsupported
from fixtures.ranks.study.parity import fp32_products
from suites.nodes import amounts
from suites.nodes.compute.series import Corruption, timed, unlike

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
_AMPERE = (8, 0)  # the compute capability from which on there are tf32 and bf16 tensor cores
_WITH_FP8 = (8, 9)
_CHECKS = 3


def measured(ctx: Context, dtype: str, brief: bool = False) -> dict[str, Any]:
    """Give the series and the corruption of one dtype."""
    refuse(dtype, ctx.device)
    side = side_for(dtype, ctx.device)
    with fp32_products("high" if dtype == "tf32" else "highest"):  # "high" is tf32
        product = Product(dtype, *normal(side, ctx.device, ctx.seed))
        what = f"{dtype} {side} x {side} x {side}"
        series = timed(ctx, product.run, "tflops", what, amount=amounts.product(side), brief=brief)
        ctx.progress.phase("check")
        return {"series": series, "wrong": check(ctx, dtype, side)}


def refuse(dtype: str, device: torch.device) -> None:
    """Raise Unsupported where the device has no such arithmetic of its own."""
    if device.type == "cpu":
        if dtype not in amounts.SIDES["cpu"]:
            raise Unsupported(f"a CPU has no {dtype} of its own")
        return
    if torch.version.hip:
        if dtype in ("tf32", "fp8_e4m3"):
            raise Unsupported(f"{dtype} is only multiplied on NVIDIA's devices here")
        return
    capability = torch.cuda.get_device_capability(device)
    least = {"tf32": _AMPERE, "bf16": _AMPERE, "fp8_e4m3": _WITH_FP8}.get(dtype, (0, 0))
    if capability < least:
        name = torch.cuda.get_device_name(device)
        raise Unsupported(f"{name} (sm{capability[0]}{capability[1]}) has no {dtype} of its own")


def half(device: torch.device) -> str:
    """The dtype that models are trained in on this device: bf16 where it has that, and fp32 on a CPU."""
    if device.type == "cpu":
        return "fp32"
    modern = torch.version.hip or torch.cuda.get_device_capability(device) >= _AMPERE
    return "bf16" if modern else "fp16"


def side_for(dtype: str, device: torch.device) -> int:
    """The largest side that leaves half of the free memory to others."""
    side = amounts.SIDES[device.type][dtype]
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        while 3 * side * side * 4 > free / 2:
            side //= 2
    return side


class Product:
    """The product a b in a dtype, of matrices given in fp32; `out` holds the last product."""

    def __init__(self, dtype: str, a: torch.Tensor, b: torch.Tensor) -> None:
        form = DTYPES[dtype]
        self._eight_bits = dtype == "fp8_e4m3"
        if self._eight_bits:  # the library takes the right factor in column order, and scales beside both
            self._scale = torch.ones((), device=a.device)
            self._a, self._b = a.to(form), b.t().contiguous().to(form).t()
            self.out = torch.empty(0)
        else:
            self._a, self._b = a.to(form), b.to(form)
            self.out = torch.empty_like(self._a)

    def run(self) -> None:
        """Multiply once."""
        if self._eight_bits:
            scale = self._scale
            self.out = torch._scaled_mm(
                self._a, self._b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
            )
        else:
            torch.mm(self._a, self._b, out=self.out)


def check(ctx: Context, dtype: str, side: int) -> list[Corruption]:
    """Compare products of signs with their closed form, of other signs each time."""
    wrong: list[Corruption] = []
    for number in range(_CHECKS):
        u, w, v = signs(side, ctx.device, 1000 * ctx.seed + number)
        product = Product(dtype, torch.outer(u, w), torch.outer(w, v))
        if product.out.numel():
            product.out.fill_(torch.nan)  # so that what was never written is seen
        product.run()
        right = torch.outer(u, v).mul_(side).to(product.out.dtype)
        keep(wrong, unlike(ctx, f"matmul {dtype}", product.out, right, number))
        ctx.progress.done(number + 1)
    return wrong


def signs(length: int, device: torch.device, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three rows of +1 and -1."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(2, (3, length), generator=generator).mul_(2).sub_(1)
    u, w, v = rows.to(device, torch.float32)
    return u, w, v


def normal(side: int, device: torch.device, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices of normally distributed numbers."""
    generator = torch.Generator(device).manual_seed(seed + 1)
    a, b = (torch.randn(side, side, device=device, generator=generator) for _ in range(2))
    return a, b
