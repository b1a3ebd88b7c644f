"""Products without a pause for some time: a device that cannot stay cool slows down."""

from __future__ import annotations

import time

from fixtures.ranks import timing
from fixtures.ranks.steps import Context
from suites.nodes.compute.matmul import Product, half, normal
from suites.nodes.compute.series import Series

SIDE = {"cpu": 192, "cuda": 8192}
WINDOW_S = {"cpu": 0.02, "cuda": 0.1}
FEWEST_WINDOWS = 12


def measured(ctx: Context, seconds: float) -> list[Series]:
    """Multiply for `seconds`, in windows of equally many products; all devices at once."""
    kind = ctx.device.type
    product = Product(half(ctx.device), *normal(SIDE[kind], ctx.device, ctx.seed))
    _window(ctx, product, 1)  # loads what products need
    count = max(round(WINDOW_S[kind] / _window(ctx, product, 4) * 4), 1)
    windows: list[float] = []
    timing.barrier(ctx)
    ctx.progress.phase("slope")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(windows) < FEWEST_WINDOWS:
        windows.append(_window(ctx, product, count))
        ctx.progress.done(len(windows))
    timing.barrier(ctx)
    what = f"{half(ctx.device)} products for {seconds:g} s"
    about = {"metric": "slope", "what": what, "load": "all at once"}
    return [{**about, "windows": windows, "products": count}]


def _window(ctx: Context, product: Product, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        product.run()
    timing.complete(ctx)
    return time.perf_counter() - began
