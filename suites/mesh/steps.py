"""What the ranks run for combinations of parallel axes on one device mesh.

The dense steps lay all ranks of their world out along named axes (`suites.mesh.layout.divide`), train
a small Llama that is divided along all of them, and compare it with the unsharded one on the same rank. In
small worlds some axes have one rank, and their technique has nothing to do:

    ranks         2          4          8          16         8 nodes x 8
    fsdp_tp       2 x 1      2 x 2      2 x 4      2 x 8      8 x 8           dp x tp
    pp_fsdp_tp    2 x 1 x 1  2 x 1 x 2  2 x 2 x 2  2 x 2 x 4  2 x 4 x 8       pp x dp x tp
    fsdp_cp       1 x 2      2 x 2      2 x 4      2 x 8      8 x 8           dp x cp
    fsdp_cp_tp               1 x 2 x 2  2 x 2 x 2  2 x 2 x 4  2 x 4 x 8       dp x cp x tp
    loss_curve    1 x 2      2 x 2      2 x 4      2 x 8      8 x 8           dp x tp

That is on one node, or on nodes that the innermost axis fits into. At the size of training `least_width` is
the least width of the model, and `least_channels` that of a head. What an axis exchanges is counted in its
own groups; the closed forms and their sources are in `suites.mesh.issued`. Gradients are clipped by the norm
of all (`clip`; 0: they are not), in which a weight that is whole along tp counts once. "placement" says for
every axis on which machines its ranks are (`suites.mesh.placement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fixtures.ranks.steps import Context, step
from fixtures.ranks.study.driver import EXACT, TRAINED
from suites.mesh.axes import laid_out, needs
from suites.mesh.issued import sizes_of
from suites.mesh.moe import run
from suites.mesh.moe.sharded import ShardedMixture
from suites.mesh.moe.zero import ZeroMixture
from suites.mesh.staged import Dense
from suites.mesh.task import Task
from suites.mesh.technique import told

_SHARDING = ("reduce_scatter", "all_gather")
PATTERNS = {
    "pp": ("send_recv",),
    "dp": _SHARDING,
    "cp": (*_SHARDING, "send_recv"),
    "tp": ("all_reduce", "all_gather"),
}


@step
def fsdp_tp(ctx: Context, **sizes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON's
    """fully_shard along dp of what tensor parallelism along tp leaves a rank: Psi/(dp tp) of each state.

    dp: 2 (L + 1) all-gathers and L + 1 reduce-scatters of Psi/tp in all. tp: 7 L + 2 all-reduces of X, one
    all-gather of the logits (arXiv:2304.11277, section 4; torch's parallelize_module with fully_shard).
    """
    return _dense(ctx, "fsdp_tp", **sizes)


@step
def loss_curve(ctx: Context, **sizes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON's
    """The loss of every one of many steps of `fsdp_tp`, in fp64 alone.

    Over many steps the rounding of bf16 adds up to as much as the difference looked for; `fsdp_tp` checks
    bf16 over a few steps. Traffic and memory are those of `fsdp_tp`.
    """
    return _dense(ctx, "loss_curve", dtypes=(EXACT,), **sizes)


@step
def fsdp_cp(ctx: Context, **sizes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON's
    """fully_shard along dp and cp together, of a model whose attention is a zig-zag ring along cp.

    dp and cp: 2 (L + 1) all-gathers and L + 1 reduce-scatters of Psi in all. cp: L (3 cp - 2) sends of K and
    V or of their gradients ("The Llama 3 Herd of Models", 2024, section 3.3.2; arXiv:2310.01889).
    """
    return _dense(ctx, "fsdp_cp", **sizes)


@step
def fsdp_cp_tp(ctx: Context, **sizes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON's
    """Tensor parallelism along tp, a ring along cp among ranks of the same heads, fully_shard on dp and cp.

    dp x cp: 2 (L + 1) all-gathers and L + 1 reduce-scatters of Psi/tp in all. cp: as in `fsdp_cp`, with 1/tp
    of K and V. tp: as in `fsdp_tp` ("The Llama 3 Herd of Models", 2024, section 3.3.2).
    """
    needs(ctx, 4, "context x tensor of two ranks each")
    return _dense(ctx, "fsdp_cp_tp", **sizes)


@step
def pp_fsdp_tp(ctx: Context, **sizes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON's
    """1F1B along pp; a stage of `layers` blocks is divided along dp and tp. Rows are those of a micro-batch.

    pp: m activations and m gradients per edge, m = `per_stage` pp. dp: a stage's parameters are gathered
    once and its gradients reduced once, with the last micro-batch. tp: as in `fsdp_tp`, for every
    micro-batch (Narayanan et al., arXiv:2104.04473; torch's Schedule1F1B, fully_shard kept until backward).
    """
    return _dense(ctx, "pp_fsdp_tp", **sizes)


@step
def ep_dp(ctx: Context, **dims: int) -> dict[str, Any]:
    """A mixture of experts: dense weights on all n ranks, experts over e ranks, in n / e copies.

    n / e is 2 where n is even and at least 4, else 1. Per block and micro-batch, among e ranks, 5 all_to_all:
    8 E bytes of counts, rows there and back and their gradients, 2 d (k T + R) numbers (T tokens of the rank,
    R rows to its experts). Once in a step an all_reduce of dense gradients among n, and one of experts' among
    n / e, both divided by n: an expert has seen the tokens of its whole set (arXiv:2504.14960, section 3).
    """
    return run.run(ctx, "ep_dp", dims)


@step
def five_axes(ctx: Context, **dims: int) -> dict[str, Any]:
    """A Llama of experts on stages x data x context x tensor, its experts over context x tensor together.

    2 ranks: 2 x 1 x 1 x 1. 4: 2 x 1 x 1 x 2, experts over 2. 8: 2 x 1 x 2 x 2, experts over 4. 16 and more: 2
    x n/8 x 2 x 2, experts over 4 (`moe.issued.combined`; the fold is that of arXiv:2504.14960). m activations
    over every edge and m gradients back. Per block and micro-batch 3 all_gather and 2 reduce_scatter of the
    sequence along tp, one of each of keys and values along cp, 5 all_to_all along ep; once in a step
    all_reduces along tp, dp x cp and edp. Bytes and sources: `moe.issued`.
    """
    return run.run(ctx, "five_axes", dims)


@step
def ep_fsdp(ctx: Context, **dims: int) -> dict[str, Any]:
    """Two copies of the experts, each over half of the ranks; fully_shard along edp, of the rest over all.

    ep: as in `ep_dp`. dp_cp and edp: 2 all-gathers and 1 reduce-scatter of every group of weights, for every
    micro-batch; a rank has 1/n of each state of dense weights and 1/2 of that of its experts (bytes and
    sources: `moe.sharded`).
    """
    needs(ctx, 4, "two sets of experts on two ranks each")
    return run.run(ctx, "ep_fsdp", dims, ShardedMixture)


@step
def zero1_pp_ep(ctx: Context, **dims: int) -> dict[str, Any]:
    """Stages of experts, trained with ZeRO-1, as DeepSeek-V3 is: two stages of n/2 ranks.

    4 ranks: experts over the 2 of a stage. 8 and more: two copies, each over half of them. pp and ep: as in
    `five_axes`. Once in a step dp_cp and edp reduce-scatter gradients in fp32 and all-gather weights; a rank
    has 1/(n/2) of the masters and optimizer state of dense weights, and 1/2 of those of its experts where
    there are two copies (arXiv:2412.19437, section 3.2; bytes: `moe.zero`).
    """
    needs(ctx, 4, "two stages of two ranks")
    return run.run(ctx, "zero1_pp_ep", dims, ZeroMixture)


def _dense(
    ctx: Context,
    name: str,
    dtypes: Sequence[torch.dtype] = (EXACT, TRAINED),
    **sizes: Any,  # noqa: ANN401 - JSON's
) -> dict[str, Any]:
    """Train the model on the mesh of its layout."""
    per_node = [ctx.hosts.count(host) for host in dict.fromkeys(ctx.hosts)]
    task = Task(**vars(sizes_of(name, per_node, ctx.rank, **sizes)), ctx=ctx)
    with laid_out(ctx, task.layout) as mesh:
        return told(ctx, Dense(task, mesh, dtypes), mesh.used, PATTERNS)
