"""What the ranks run for the checks of single nodes: who they are, and what each device can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fixtures.node.facts import rank_facts
from fixtures.ranks import timing
from fixtures.ranks.exact.compare import MOST_REPORTED
from fixtures.ranks.steps import Context, Unsupported, step
from suites.nodes.amounts import COPIED_BYTES
from suites.nodes.compute import kernels as held
from suites.nodes.compute import lasting, links, pcie, together
from suites.nodes.compute import matmul as products
from suites.nodes.compute import memory as arrays
from suites.nodes.compute import repeats as again
from suites.nodes.compute import training as trained
from suites.nodes.compute.rounded import ROUNDED
from suites.nodes.compute.whole import WHOLE


@step
def present(ctx: Context) -> dict[str, Any]:
    """Say who this rank is and what it runs with."""
    return {
        "size": ctx.size,
        "backend": ctx.backend,
        "local_rank": ctx.local_ranks[ctx.rank],
        "device": str(ctx.device),
        "facts": rank_facts(),
    }


@step
def matmul(ctx: Context, *, dtype: str) -> dict[str, Any]:
    """Time large products in one dtype, and compare others with their closed form."""
    return products.measured(ctx, dtype)


@step
def memory(ctx: Context) -> dict[str, Any]:
    """Time copy and triad in the device's memory, and compare what they left there."""
    return arrays.bandwidth(ctx)


@step
def pattern(ctx: Context) -> dict[str, Any]:
    """Write a pattern into nearly all of the device's memory, and read it back."""
    return arrays.pattern(ctx)


@step
def host_links(ctx: Context) -> dict[str, Any]:
    """Time pinned copies to and from the device, and read its PCIe link while they run."""
    links.refuse_cpu(ctx, "link between it and the host")
    count = COPIED_BYTES // 8
    with pcie.beside(pcie.place_of(ctx.device)) as memory_at:
        near = torch.empty(count, dtype=torch.int64, pin_memory=True)
        far = torch.empty(count, dtype=torch.int64, device=ctx.device)
        series, wrong = links.host(ctx, near, far)

        def load() -> None:
            far.copy_(near, non_blocking=True)
            timing.complete(ctx)

        ctx.progress.phase("link under load")
        link = pcie.under_load(ctx.device, load)
    return {"series": series, "wrong": wrong, "pcie": link | memory_at}


@step
def peer_links(ctx: Context) -> dict[str, Any]:
    """Time copies between every two devices of the node, both ways; the first rank measures for all."""
    links.refuse_cpu(ctx, "link between two of them")
    if ctx.size < 2:
        raise Unsupported("this node has one accelerator, and so no link between two of them")
    if torch.cuda.device_count() < ctx.size:
        raise RuntimeError(f"this rank sees {torch.cuda.device_count()} of the node's {ctx.size} devices")
    devices = [torch.device("cuda", local) for local in ctx.local_ranks]

    def measured(alone: Context) -> dict[str, Any]:
        links.touch(devices)
        pairs, wrong = links.peers(alone, devices)
        return {"pairs": pairs, "wrong": wrong, "access": links.access(devices)}

    return timing.first_alone(ctx, measured) or {"wrong": []}


@step
def repeatability(ctx: Context, *, repeats: dict[str, int]) -> dict[str, Any]:
    """Run the same kernels `repeats` times, by kind of device, and compare every bit of every result."""
    return again.repeated(ctx, repeats[ctx.device.type])


@step
def kernels(ctx: Context, *, kernels: Sequence[str]) -> dict[str, Any]:
    """Hold these kernels to the same arithmetic written out, each in every dtype that it is used in."""
    return held.measured(ctx, {**ROUNDED, **WHOLE}, kernels)


@step
def overlap(ctx: Context, *, repeats: int) -> dict[str, Any]:
    """Multiply while an all_reduce runs: both must be right; report how long they take together."""
    return together.measured(ctx, repeats)


@step
def slope(ctx: Context, *, seconds: dict[str, float]) -> dict[str, Any]:
    """Multiply for `seconds`, by kind of device, and report whether it became slower."""
    return {"series": lasting.measured(ctx, seconds[ctx.device.type])}


@step
def training(ctx: Context, *, sizes: dict[str, dict[str, int]], steps: int) -> dict[str, Any]:
    """Train a transformer of the size for this kind of device: losses, and the share of the device used."""
    return trained.measured(ctx, sizes[ctx.device.type], steps)


@step
def probe(ctx: Context, *, repeats: dict[str, int]) -> dict[str, Any]:
    """Multiply, copy and repeat for a moment, so that a node can be compared with others of its kind."""
    multiplied = products.measured(ctx, products.half(ctx.device), brief=True)
    copied = arrays.bandwidth(ctx, brief=True)
    same = again.repeated(ctx, repeats[ctx.device.type])
    wrong = multiplied["wrong"] + copied["wrong"] + same["wrong"]
    return {**same, "series": multiplied["series"] + copied["series"], "wrong": wrong[:MOST_REPORTED]}
