"""One forward and backward of an expert-parallel layer and of the unsharded one, on the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.deliveries import Deliveries, record_deliveries
from fixtures.ranks.study.models import seeded
from suites.expert.layer import Sharded, Unsharded
from suites.expert.routing import Shape, preference, tokens_on, uniform

_TOKENS, _TARGETS, _WEIGHTS = 710, 711, 712
DECIDES = 1e3  # more than any logit
Results = dict[str, Tensor]


@dataclass(frozen=True)
class Layer:
    """The same problem on every rank: everybody's tokens, the gradients of their outputs, preferences."""

    shape: Shape
    tokens: list[Tensor]
    targets: list[Tensor]
    wanted: list[Tensor]


def layer(ctx: Context, routing: str, shape: Shape) -> Layer:
    """Draw it: everything is representable in bf16, so that every dtype starts from the same numbers."""
    rows = [tokens_on(routing, rank, shape.tokens) for rank in range(ctx.size)]
    return Layer(
        shape,
        [drawn(ctx, _TOKENS, rank, (count, shape.hidden)) for rank, count in enumerate(rows)],
        [drawn(ctx, _TARGETS, rank, (count, shape.hidden)) for rank, count in enumerate(rows)],
        [decided(preference(routing, ctx.seed, rank, shape)).to(ctx.device) for rank in range(ctx.size)],
    )


def decided(preferred: Tensor) -> Tensor:
    """The same order of preference, in steps so large that no logit comes between two of them."""
    return DECIDES * torch.argsort(torch.argsort(preferred, dim=-1), dim=-1).double()


def whole(ctx: Context, made: Layer, dtype: torch.dtype) -> Unsharded:
    """The unsharded model: experts in `dtype`, the router at least in fp32."""
    with seeded(key(ctx.seed, _WEIGHTS) >> 1):
        model = Unsharded(made.shape, torch.cat(made.wanted))
    model = model.to(torch.bfloat16).to(ctx.device, dtype)
    model.router.to(torch.float32 if dtype == torch.bfloat16 else dtype)
    return model


def run_unsharded(ctx: Context, made: Layer, dtype: torch.dtype) -> Results:
    """All tokens through all experts, on this rank alone; then this rank's part of the results."""
    model = whole(ctx, made, dtype)
    x = torch.cat(made.tokens).to(dtype).detach().requires_grad_()
    out = model(x)
    out.backward(torch.cat(made.targets).to(dtype))
    begin = sum(len(rows) for rows in made.tokens[: ctx.rank])
    own = slice(begin, begin + len(made.tokens[ctx.rank]))
    local = len(model.experts) // ctx.size
    mine = model.experts[ctx.rank * local : (ctx.rank + 1) * local]
    return results(out[own], gradient(x)[own], model.router, mine)


def run_sharded(ctx: Context, made: Layer, dtype: torch.dtype) -> tuple[Results, Sharded]:
    """This rank's tokens, through everybody's experts."""
    own = made.wanted[ctx.rank]
    model = Sharded(whole(ctx, made, dtype), own, ctx.rank, ctx.size)
    x = made.tokens[ctx.rank].to(dtype).detach().requires_grad_()
    out = model(x)
    out.backward(made.targets[ctx.rank].to(dtype))
    model.synchronise()
    return results(out, gradient(x), model.router, model.experts), model


def run_recorded(ctx: Context, made: Layer, dtype: torch.dtype) -> tuple[Results, Sharded, Deliveries]:
    """Do the same, and note what every exchange brought: a flipped lowest bit need not reach the results."""
    with record_deliveries() as deliveries:
        found, model = run_sharded(ctx, made, dtype)
    return found, model, deliveries


def repeated(
    ctx: Context, made: Layer, dtype: torch.dtype, found: Results, deliveries: Deliveries
) -> list[dict[str, Any]]:
    """Run again: results, gradients and all rows that were moved have the same bits."""
    again, _, delivered = run_recorded(ctx, made, dtype)
    label = "" if dtype == torch.float64 else f" in {str(dtype).removeprefix('torch.')}"
    same = [parity.equal(f"{name}{label}", again[name], found[name]) for name in found]
    return same + deliveries.entries(delivered, label)


def memory_table(model: Sharded, shape: Shape, ranks: int) -> list[dict[str, Any]]:
    """A router (hidden x E), E/n experts of 3 matrices (hidden x inner), and as many gradients: fp64."""
    numbers = shape.hidden * shape.experts + shape.experts // ranks * 3 * shape.hidden * shape.inner
    expected = 8 * numbers
    return [
        memory.entry("params", memory.parameter_bytes(model), expected),
        memory.entry("grads", memory.gradient_bytes(model), expected),
    ]


def compared(found: Results, right: Results) -> list[dict[str, Any]]:
    """Compare in fp64."""
    return [parity.entry(name, found[name], right[name]) for name in right]


def compared_bf16(found: Results, unsharded: Results, right: Results, ranks: int) -> list[dict[str, Any]]:
    """Compare in bf16 by what the unsharded run is off; all ranks add up the router's gradient."""
    summands = {"grad:router": ranks}
    return [
        parity.bf16_entry(name, found[name], unsharded[name], right[name], summands=summands.get(name, 2))
        for name in right
    ]


def results(out: Tensor, dx: Tensor, router: nn.Module, experts: nn.Module) -> Results:
    """What is compared: the output, and every gradient."""
    return {
        "forward": out.detach(),
        "grad:x": dx,
        "grad:router": torch.cat([gradient(one).flatten() for one in router.parameters()]),
        "grad:experts": torch.cat([gradient(one).flatten() for one in experts.parameters()]),
    }


def gradient(tensor: Tensor) -> Tensor:
    """The gradient that a backward pass must have left."""
    if tensor.grad is None:
        raise ValueError("a backward pass left no gradient")
    return tensor.grad


def drawn(ctx: Context, kind: int, rank: int, shape: tuple[int, int]) -> Tensor:
    """Numbers between -1 and 1 that bf16 can represent, in fp64."""
    return (uniform(ctx.seed, kind, rank, shape=shape) * 2 - 1).bfloat16().double().to(ctx.device)
