"""Matrix products while an all_reduce runs: some faults need both, through power, heat or a shared bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks import timing
from fixtures.ranks.collectives.collectives import Collective
from fixtures.ranks.exact.compare import keep
from fixtures.ranks.steps import Context
from fixtures.ranks.study.models import repeatable
from fixtures.ranks.study.overlap import hidden_share
from suites.nodes.compute.matmul import Product, half, normal
from suites.nodes.compute.series import ITERATIONS, Corruption, figure, median_s, unlike

SIDE = {"cpu": 128, "cuda": 8192}
REDUCED_BYTES = {"cpu": 1 << 18, "cuda": 256 << 20}
_FORM = "int32"
_MOST_PRODUCTS = 1000


class Both:
    """An all_reduce of an exact payload, and `products` products beside it."""

    def __init__(self, ctx: Context) -> None:
        kind = ctx.device.type
        self.product = Product(half(ctx.device), *normal(SIDE[kind], ctx.device, ctx.seed))
        size_bytes = REDUCED_BYTES[kind]
        self.exchange = Collective(ctx, "all_reduce", _FORM, "sum", size_bytes // 4, size_bytes=size_bytes)
        self.products = 1

    def compute(self) -> None:
        """Multiply."""
        for _ in range(self.products):
            self.product.run()

    def reduce(self, i: int) -> Any:  # noqa: ANN401 - torch's work
        """Begin the all_reduce; on a GPU it runs on a stream of its own."""
        return dist.all_reduce(self.exchange.output(i), async_op=True)

    def at_once(self, i: int) -> None:
        """Multiply while it runs."""
        work = self.reduce(i)
        self.compute()
        work.wait()


def measured(ctx: Context, repeats: int) -> dict[str, Any]:
    """Check both while they run together, then time them apart and together."""
    both = Both(ctx)
    wrong = _checked(ctx, both, repeats)

    def seconds(run: Callable[[], object]) -> float:
        return median_s(ctx, run, "together")

    reduce_s = timing.agree(ctx, seconds(lambda: both.reduce(0).wait()))
    product_s = timing.agree(ctx, seconds(both.compute))
    both.products = min(max(round(reduce_s / max(product_s, 1e-6)), 1), _MOST_PRODUCTS)
    compute_s = seconds(both.compute)
    communicate_s = seconds(lambda: both.reduce(0).wait())
    both_s = seconds(lambda: both.at_once(0))
    hidden = hidden_share(compute_s, communicate_s, both_s)
    slowdown = both_s / max(compute_s, communicate_s) - 1.0
    samples = ITERATIONS[ctx.device.type]
    what = f"{both.products} products beside an all_reduce"
    series = [figure("overlap", what, hidden, samples), figure("slowdown", what, slowdown, samples)]
    return {"series": series, "wrong": wrong}


@repeatable()
def _checked(ctx: Context, both: Both, repeats: int) -> list[Corruption]:
    """Compare every all_reduce with its closed form, and every product with the one that ran alone."""
    wrong: list[Corruption] = []
    both.product.run()
    timing.complete(ctx)
    right = both.product.out.clone()
    ctx.progress.phase("together")
    for i in range(repeats):
        both.product.out.fill_(torch.nan)
        both.exchange.prepare(i)
        both.at_once(i)
        timing.complete(ctx)
        keep(wrong, both.exchange.check(i))
        keep(wrong, unlike(ctx, "matmul beside an all_reduce", both.product.out, right, i))
        ctx.progress.done(i + 1)
    return wrong
