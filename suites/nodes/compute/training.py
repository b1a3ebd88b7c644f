"""A transformer that is trained on one batch: its loss must fall, and its model FLOPs are counted.

A token costs 6 N + 12 L H Q T operations: N parameters, L layers, H heads of Q channels, T tokens in a
sequence (A. Chowdhery et al., "PaLM", 2022, appendix B). Recomputation does not count. MFU is here the rate
of these operations over the rate of a large matrix product in the same run: a share of what this device
really can do, unlike a nominal peak.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fixtures.ranks import timing
from fixtures.ranks.steps import Context
from fixtures.ranks.study.models import Llama, loss, seeded, tokens
from suites.nodes.compute.matmul import DTYPES, Product, half, normal, side_for
from suites.nodes.compute.series import BUDGET_S, figure, median_s

STEP = 0.1  # the length of a step of all weights together, which lowers the loss of small and large models
Size = Mapping[str, int]


def flops_per_token(parameters: int, layers: int, width: int, length: int) -> float:
    """6 N + 12 L H Q T, where H Q is the width of the model."""
    return 6.0 * parameters + 12.0 * layers * width * length


def measured(ctx: Context, size: Size, steps: int) -> dict[str, Any]:
    """Train so many steps, each timed: losses and figures."""
    with seeded(ctx.seed):
        heads, width = size["heads"], size["width"]
        model = Llama(size["vocab"], width, size["layers"], heads, heads, size["hidden"])
    weights = list(model.to(ctx.device).parameters())
    batch = tokens(ctx.seed, size["batch"], size["length"] + 1, size["vocab"]).to(ctx.device)
    losses: list[torch.Tensor] = []

    def train() -> None:
        model.zero_grad(set_to_none=True)
        with _precision(ctx):
            found = loss(model(batch[:, :-1]), batch[:, 1:])
        found.backward()  # type: ignore[no-untyped-call]
        descend(weights)
        losses.append(found.detach())

    # Each step changes the model, so warming up is training too: all losses count.
    samples = timing.measure(ctx, timing.Kernel(train), steps, 4 * BUDGET_S[ctx.device.type], "training")
    seconds = statistics.median(samples.seconds)
    parameters, count = sum(one.numel() for one in weights), size["batch"] * size["length"]
    operations = count * flops_per_token(parameters, size["layers"], width, size["length"])
    peak = _peak(ctx)
    said = {
        "mfu": operations / seconds / peak,
        "model_tflops": operations / seconds / 1e12,
        "tokens_per_s": count / seconds,
        "peak_tflops": peak / 1e12,
    }
    what = f"{parameters} parameters, {size['batch']} x {size['length']} tokens"
    series = [figure(name, what, value, len(samples.seconds)) for name, value in said.items()]
    return {"losses": [float(one) for one in losses], "series": series}


@torch.no_grad()
def descend(weights: Sequence[torch.Tensor]) -> None:
    """Go down the gradient by a length that does not depend on how steep it is."""
    gradients = [one.grad for one in weights if one.grad is not None]
    steepness = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, STEP / steepness)
    torch._foreach_sub_(list(weights), gradients)


def _precision(ctx: Context) -> AbstractContextManager[Any]:
    """Mixed precision on a GPU: in bf16 where the device has it."""
    if ctx.device.type == "cpu":
        return nullcontext()
    return torch.autocast("cuda", DTYPES[half(ctx.device)])


def _peak(ctx: Context) -> float:
    """Operations per second of a large product, on all devices at once."""
    dtype = half(ctx.device)
    side = side_for(dtype, ctx.device)
    product = Product(dtype, *normal(side, ctx.device, ctx.seed))
    return 2.0 * side**3 / median_s(ctx, product.run, "peak")
