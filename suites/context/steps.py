"""What the ranks run for the context-parallel suite.

w ranks, each with S = L/w of L positions; K and V of one rank are B = 2 x batch x kv heads x S x dim
elements, Q and the output q = batch x heads x S x dim elements each. With 16-bit types, gradients are sent
and summed in fp32. Also in fp32, forward saves the output, its log-sum-exp, and K and V where they were
gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fixtures.ranks.steps import Context, step
from fixtures.ranks.study.at_size import at_size
from fixtures.ranks.study.driver import TRAINED, answer, study
from fixtures.ranks.study.fitting import fit
from fixtures.ranks.study.pattern import sent
from suites.context.issued import Shape, shape_of
from suites.context.techniques import AllGatherKV, ContextParallel, Ring, Ulysses, ZigZag
from suites.context.torch_ring import MODULE, TorchRing


@step
def all_gather_kv(ctx: Context, **sizes: int) -> dict[str, Any]:
    """Forward gathers all K and V: 1 all_gather of w B. Backward: 1 reduce_scatter of their gradients, w B.

    A rank keeps w B + 2 q and the log-sum-exp. ("The Llama 3 Herd of Models", 2024, section 3.3.2.)
    `tokens` are the positions of one rank, here and below; the other sizes are those of `Shape`.
    """
    return _told(ctx, AllGatherKV, shape_of(ctx.size, **sizes))


@step
def ring(ctx: Context, **sizes: int) -> dict[str, Any]:
    """Forward passes K and V on w-1 times: w-1 sends, (w-1) B. Backward: w-1 sends of B and w of dK and dV.

    So 3w-2 sends in all. A rank keeps B + 2 q and the log-sum-exp, and has at most two blocks of other ranks.
    (Liu, Zaharia, Abbeel: "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.)
    """
    return _told(ctx, Ring, shape_of(ctx.size, **sizes))


@step
def zigzag(ctx: Context, **sizes: int) -> dict[str, Any]:
    """The traffic of the ring, and equal work: L(L+1)/2w visible pairs per head on every rank.

    The plain ring's busiest rank has (w-1) S^2 pairs more than its idlest.
    (Zhu: ring-flash-attention, zigzag_ring_flash_attn; "The Llama 3 Herd of Models", 2024, section 3.3.2.)
    """
    return _told(ctx, ZigZag, shape_of(ctx.size, **sizes))


@step
def ulysses(ctx: Context, **sizes: int) -> dict[str, Any]:
    """Forward exchanges Q, K, V and the output: 4 all_to_all of 2 q + B. Backward: their gradients, the same.

    A rank keeps the whole sequence for 1/w of the heads: B + 2 q and the log-sum-exp. `kv_heads` are repeated
    to w where there are fewer; 0 stands for one per rank.
    (Jacobs et al.: "DeepSpeed Ulysses", 2023.)
    """
    return _told(ctx, Ulysses, shape_of(ctx.size, **sizes))


@step
def torch_ring(ctx: Context, *, rotation: str, module: str = MODULE, **sizes: int) -> dict[str, Any]:
    """Forward gathers all K and V, w B, or passes them on w-1 times. Backward: again, and dK and dV w times.

    `rotation` is torch's name for either; a pass is an all_to_all in which a rank sends only to the next.
    A rank keeps B + 2 q and the log-sum-exp. Torch has no such attention for CPUs.
    (torch 2.13: torch/distributed/tensor/experimental/_context_parallel/_attention.py.)
    """
    shape = shape_of(ctx.size, rotation=rotation, **sizes)
    return _told(ctx, partial(TorchRing, module=module), shape)


def _told(ctx: Context, technique: Callable[..., ContextParallel], shape: Shape) -> dict[str, Any]:
    """Study it with inputs of each dtype, and send exact payloads through its collectives."""
    if ctx.at_size:
        _fit(ctx, shape)
        return at_size(ctx, technique(ctx, shape, TRAINED))
    plain = technique(ctx, shape)
    first, *others = (study(ctx, technique(ctx, shape, dtype)) for dtype in plain.studied)
    moved = sent(ctx, plain.moves())
    figures = {**moved["figures"], **plain.figures(first.runs[plain.studied[0]].kept)}
    return {**answer(first, *others), **moved, "figures": figures}


def _fit(ctx: Context, shape: Shape) -> None:
    """Refuse a sequence that does not fit.

    Each number of 4 tensors of all heads takes at most 12 bytes: two runs' parts, both unsharded results.
    Scores take 4 operations per pair and channel forward and 10 backward, in both unsharded runs.
    """
    heads = shape.batch * shape.heads
    pairs = shape.length**2 / (2 if shape.causal else 1)
    fit(ctx, 12 * 4 * heads * shape.length * shape.dim, 28 * heads * pairs * shape.dim)
