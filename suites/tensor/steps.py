"""What the ranks run for tensor and sequence parallelism: n ranks, each with 1/n of the weights of a layer.

In the closed forms X is one activation: batch x length x width x item bytes. Calls and bytes are those of one
forward and backward, counted as nccl-tests does (an all_gather by its output, a reduce_scatter by its input).
What f, g and the others communicate is said in `suites.tensor.regions`; the division is that of Shoeybi et
al., "Megatron-LM", 2019, section 3, and for sequences that of Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022, section 4.2. Every step is compared with the unsharded model
on the same rank (`suites.tensor.technique`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fixtures.ranks.steps import Context, step
from suites.tensor import blocks, layers, models, overlap
from suites.tensor.blocks import Meeting, Split, Whole, kv_heads, shared_kv
from suites.tensor.issued import multiple
from suites.tensor.layers import columns, rows
from suites.tensor.regions import Group
from suites.tensor.technique import Functional, Planned, block_plan, head_plan, sequence_plan


@step
def column(ctx: Context, *, features: int, gather: bool, **sizes: int) -> dict[str, Any]:
    """Y = XA + b, A = [A_1 ... A_n] split by output; Y stays split, or is gathered.

    Traffic: backward, one all_reduce of dX: X bytes. Gathering: one all_gather of Y; its backward is a slice.
    Memory: 1/n of A and b.
    """
    group, features = Group(ctx.rank, ctx.size), multiple(features, ctx.size)
    cuts = {"weight": rows(group), "bias": rows(group)}
    return Functional(
        ctx,
        "column",
        {**sizes, "features": features, "gather": gather},
        models.linear(ctx, **sizes, features=features),
        cuts if gather else {**cuts, "forward": columns(group)},
        forward=lambda w, x: layers.column_linear(x, w["weight"], w["bias"], group, gather),
        local=() if gather else ("forward",),
    ).told()


@step
def row(ctx: Context, *, width: int, split: bool, **sizes: int) -> dict[str, Any]:
    """Y = sum over r of X_r A_r, plus b; A split by input. X comes split, or is split here.

    Traffic: forward, one all_reduce of Y. Splitting X: backward, one all_gather of dX: X bytes.
    Memory: 1/n of A, all of b.
    """
    group, width = Group(ctx.rank, ctx.size), multiple(width, ctx.size)
    cuts = {"weight": columns(group)}
    return Functional(
        ctx,
        "row",
        {**sizes, "width": width, "split": split},
        models.linear(ctx, **sizes, width=width),
        cuts if split else {**cuts, "input": columns(group)},
        forward=lambda w, x: layers.row_linear(x, w["weight"], w["bias"], group, split),
    ).told()


@step
def mlp(ctx: Context, **sizes: int) -> dict[str, Any]:
    """SwiGLU: gate and up by column, down by row, so that nothing moves between them.

    Traffic: g forward and f backward, two all_reduces of X. Memory: 1/n of the weights; of what is saved for
    backward, all of X and 1/n of the rest.
    """
    group = Group(ctx.rank, ctx.size)
    return Functional(
        ctx,
        "mlp",
        sizes,
        models.mlp(ctx, **sizes),
        blocks.mlp_cuts(group),
        forward=lambda w, x: blocks.mlp(Whole(group), x, *w.values()),
    ).told()


@step
def mlp_dropout(ctx: Context, *, dropout: float, **sizes: int) -> dict[str, Any]:
    """`mlp` with dropout: of hidden features, where every rank draws its own mask, and of outputs, where all
    draw the same one (`DroppingMlp`). Traffic and weights as in `mlp`; also saved are the whole
    mask of the outputs and 1/n of that of the hidden features.
    """
    group, (whole, x) = Group(ctx.rank, ctx.size), models.dropping_mlp(ctx, **sizes, dropout=dropout)
    return Functional(
        ctx,
        "mlp_dropout",
        {**sizes, "dropout": dropout},
        (whole, x),
        blocks.mlp_cuts(group),
        forward=lambda w, x: blocks.dropping_mlp(Whole(group), whole, x, *w.values()),
    ).told()


@step
def attention(ctx: Context, *, heads: int, replicate: bool, **sizes: int) -> dict[str, Any]:
    """Causal attention, `heads` query heads per rank; a key-value head per rank, or per p ranks: replicated.

    p is the smallest divisor of n beyond 1. q, k, v by column, o by row.
    Traffic: g forward and f backward, two all_reduces of X; replicated: backward, two more of one key-value
    head's weight, among the p ranks that share it. Memory: 1/n of q and o, p/n (or 1/n) of k and v.
    """
    group, number, kv = Group(ctx.rank, ctx.size), ctx.size * heads, kv_heads(ctx.size, replicate)
    with shared_kv(group, number, kv, sizes["channels"]) as mine:
        return Functional(
            ctx,
            "attention",
            {**sizes, "heads": heads, "replicate": replicate},
            models.attention(ctx, **sizes, heads=number, kv_heads=kv),
            blocks.attention_cuts(group, mine),
            forward=lambda w, x: blocks.attention(Whole(group), mine, x, *w.values()),
        ).told()


@step
def vocabulary(ctx: Context, **sizes: int) -> dict[str, Any]:
    """Embedding, head and cross-entropy with the vocabulary split: no rank ever has all logits of a token.

    Traffic: all_reduce of the embeddings (X) and, backward, of the head's dX (X); three of one number
    per token, in fp32 at least: largest logit, the target's logit, sum of exponentials. Memory: 1/n of table
    and head.
    """
    group, (whole, numbers) = Group(ctx.rank, ctx.size), models.vocabulary(ctx, **sizes)
    targets = whole.targets
    return Functional(
        ctx,
        "vocabulary",
        sizes,
        (whole, numbers),
        {"table.weight": rows(group), "head.weight": rows(group)},
        forward=lambda w, x: layers.vocabulary(x, targets, w["table.weight"], w["head.weight"], group),
    ).told()


@step
def block(ctx: Context, **sizes: int) -> dict[str, Any]:
    """A Llama block: norm, attention, norm, MLP; activations whole at the norms and residuals.

    Traffic: two all_reduces of X forward, two backward. Memory: 1/n of the matrices, all of the norms.
    """
    return _block(ctx, "block", Whole(Group(ctx.rank, ctx.size)), sizes)


@step
def sequence(ctx: Context, **sizes: int) -> dict[str, Any]:
    """The same block with the sequence split wherever the activations were whole.

    Traffic: forward, two all_gathers and two reduce_scatters of X (as many bytes on the wire as two
    all_reduces); backward the same, and two all_gathers of what was not kept; all_reduces of the two norms'
    gradients. Memory: weights as in `block`; saved for backward 1/n of what the unsharded block saves, except
    the causal mask and the rotary tables, which every rank needs whole.
    """
    return _block(ctx, "sequence", Split(Group(ctx.rank, ctx.size)), _in_parts(ctx, sizes))


def _block(ctx: Context, name: str, meet: Meeting, sizes: Mapping[str, int]) -> dict[str, Any]:
    """A block whose ranks communicate like this."""
    channels, cuts = sizes["channels"], blocks.block_cuts(meet.group, sizes["channels"])
    return Functional(
        ctx,
        name,
        sizes,
        models.block(ctx, **sizes),
        cuts | blocks.sequence_cuts(meet.group) if isinstance(meet, Split) else cuts,
        forward=lambda w, x: blocks.block(meet, blocks.KvHeads(channels), w, x),
    ).told()


@step
def async_tp(ctx: Context, **sizes: int) -> dict[str, Any]:
    """`mlp` with the sequence split, communication fused with the products: asynchronous tensor parallelism.

    Traffic: three all_gathers of X (x, x again for backward, the output's gradient), two reduce_scatters (the
    output, dX). Memory: 1/n of weights and of what is saved. Parity with the unfused layers as well.
    """
    group, sizes = Group(ctx.rank, ctx.size), _in_parts(ctx, sizes)
    model = models.mlp(ctx, **sizes)  # or a refusal, before anything is set up
    with overlap.fused(ctx, group) as ops:
        return overlap.FusedMlp(
            ctx,
            "async_tp",
            sizes,
            model,
            blocks.mlp_cuts(group) | blocks.sequence_cuts(group),
            forward=lambda w, x: overlap.mlp(ops, x, *w.values()),
            ops=ops,
        ).told()


@step
def dtensor(ctx: Context, **sizes: int) -> dict[str, Any]:
    """`block` by torch's parallelize_module with ColwiseParallel and RowwiseParallel.

    Traffic: two all_reduces of X forward; backward five, one for each of q, k, v, gate and up, which torch
    does not join although they share their input. Memory as in `block`.
    """
    return Planned(ctx, "dtensor", sizes, models.block(ctx, **sizes), plan=block_plan).told()


@step
def dtensor_sequence(ctx: Context, **sizes: int) -> dict[str, Any]:
    """`sequence` by torch's SequenceParallel and PrepareModuleInput.

    Traffic: two all_gathers and two reduce_scatters of X, forward and backward: the gathered input is kept.
    The norms' gradients stay summands until an optimizer reads them.
    """
    sizes, cuts = _in_parts(ctx, sizes), blocks.sequence_cuts(Group(ctx.rank, ctx.size))
    model = models.block(ctx, **sizes)
    return Planned(ctx, "dtensor_sequence", sizes, model, cuts, plan=sequence_plan).told()


@step
def loss_parallel(ctx: Context, **sizes: int) -> dict[str, Any]:
    """Head and cross-entropy of `vocabulary` by torch's loss_parallel: the logits are never gathered.

    Traffic: backward, one all_reduce of the head's dX: X bytes; of one number per token three, in fp32 at
    least. Memory: 1/n of the head; the table is whole. The loss is the mean over the tokens that count.
    """
    model = models.averaged(ctx, **sizes)
    return Planned(ctx, "loss_parallel", sizes, model, plan=head_plan, parallel_loss=True).told()


def _in_parts(ctx: Context, sizes: Mapping[str, int]) -> dict[str, int]:
    """The same with a length that the ranks can split."""
    return {**sizes, "length": multiple(sizes["length"], ctx.size)}
