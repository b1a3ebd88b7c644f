"""Products without a pause for some time: a device that cannot stay cool slows down."""

from __future__ import annotations

import statistics
import time

from fixtures.ranks import timing
from fixtures.ranks.steps import Context
from suites.nodes.compute.matmul import Product, half, normal
from suites.nodes.compute.series import Series, figure

SIDE = {"cpu": 192, "cuda": 8192}
WINDOW_S = {"cpu": 0.02, "cuda": 0.1}
FEWEST_WINDOWS = 12


def slope(seconds: list[float]) -> float:
    """1 - v_last / v_first, with the median speed v of the first and of the last quarter of equal windows.

    Below 0 the device became faster, 0.5 is half the speed. Quarters of the windows and not of the time: one
    long stall would be all of the last quarter of the time, and is no slope.
    """
    quarter = len(seconds) // 4
    return 1.0 - statistics.median(seconds[:quarter]) / statistics.median(seconds[-quarter:])


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
    series = figure("slope", f"{half(ctx.device)} products for {seconds:g} s", slope(windows), len(windows))
    return [{**series, "windows": windows, "products": count}]


def _window(ctx: Context, product: Product, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        product.run()
    timing.complete(ctx)
    return time.perf_counter() - began
