"""What the ranks run for tensor and sequence parallelism: n ranks, each with 1/n of the weights of a layer.

In the closed forms X is one activation: batch x length x width x item bytes. Calls and bytes are those of one
forward and backward, counted as nccl-tests does (an all_gather by its output, a reduce_scatter by its input).
What f, g and the others communicate is said in `suites.tensor.regions`; the division is that of Shoeybi et
al., "Megatron-LM", 2019, section 3, and for sequences that of Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022, section 4.2. Every step is compared with the unsharded model
on the same rank (`suites.tensor.technique`).
"""

from __future__ import annotations

from typing import Any

from fixtures.ranks.steps import Context, step
from suites.tensor import blocks, issued, layers, models, overlap
from suites.tensor import dropout as dropping
from suites.tensor.blocks import Split, Whole, kv_heads, shared_kv
from suites.tensor.dtensor import Planned, block_plan, head_plan, sequence_plan
from suites.tensor.issued import multiple
from suites.tensor.layers import columns, rows
from suites.tensor.models import activations
from suites.tensor.regions import Group
from suites.tensor.technique import Functional, told


@step
def column(
    ctx: Context, *, batch: int, length: int, width: int, features: int, gather: bool
) -> dict[str, Any]:
    """Y = XA + b, A = [A_1 ... A_n] split by output; Y stays split, or is gathered.

    Traffic: backward, one all_reduce of dX: X bytes. Gathering: one all_gather of Y; its backward is a slice.
    Memory: 1/n of A and b.
    """
    group = Group(ctx.rank, ctx.size)
    features = multiple(features, ctx.size)
    whole, x = models.linear(ctx, width, features), activations(ctx, batch, length, width)
    cuts = {"weight": rows(group), "bias": rows(group)}

    sizes = {"batch": batch, "length": length, "width": width, "features": features}
    layer = Functional(
        whole=whole,
        x=x,
        group=group,
        cuts=cuts if gather else {**cuts, "forward": columns(group)},
        forward=lambda w, x: layers.column_linear(x, w["weight"], w["bias"], group, gather),
        issued=lambda item: issued.column(ctx.size, item, **sizes, gather=gather),
        elements=issued.ELEMENTS["column"](ctx.size, **sizes),
        local=() if gather else ("forward",),
    )
    return told(ctx, layer)


@step
def row(ctx: Context, *, batch: int, length: int, width: int, features: int, split: bool) -> dict[str, Any]:
    """Y = sum over r of X_r A_r, plus b; A split by input. X comes split, or is split here.

    Traffic: forward, one all_reduce of Y. Splitting X: backward, one all_gather of dX: X bytes.
    Memory: 1/n of A, all of b.
    """
    group = Group(ctx.rank, ctx.size)
    width = multiple(width, ctx.size)
    whole, x = models.linear(ctx, width, features), activations(ctx, batch, length, width)
    cuts = {"weight": columns(group)}

    sizes = {"batch": batch, "length": length, "width": width, "features": features}
    layer = Functional(
        whole=whole,
        x=x,
        group=group,
        cuts=cuts if split else {**cuts, "input": columns(group)},
        forward=lambda w, x: layers.row_linear(x, w["weight"], w["bias"], group, split),
        issued=lambda item: issued.row(ctx.size, item, **sizes, split=split),
        elements=issued.ELEMENTS["row"](ctx.size, **sizes),
    )
    return told(ctx, layer)


@step
def mlp(ctx: Context, *, batch: int, length: int, width: int, hidden: int) -> dict[str, Any]:
    """SwiGLU: gate and up by column, down by row, so that nothing moves between them.

    Traffic: g forward and f backward, two all_reduces of X. Memory: 1/n of the weights; of what is saved for
    backward, all of X and 1/n of the rest.
    """
    group = Group(ctx.rank, ctx.size)
    hidden = multiple(hidden, ctx.size)
    models.fits(ctx, batch * length, 3 * width * hidden, 4 * width + 6 * hidden)
    x = activations(ctx, batch, length, width)
    layer = Functional(
        whole=models.mlp(ctx, width, hidden),
        x=x,
        group=group,
        cuts=blocks.mlp_cuts(group),
        forward=lambda w, x: blocks.mlp(Whole(group), x, *w.values()),
        issued=lambda item: issued.mlp(ctx.size, item, batch=batch, length=length, width=width),
        elements=issued.mlp_elements(ctx.size, width=width, hidden=hidden),
        saved=lambda whole, item: issued.mlp_saved(whole, x.numel() * item, ctx.size),
        most=lambda whole, item: issued.mlp_most(whole, x.numel(), ctx.size, item),
    )
    return told(ctx, layer)


@step
def mlp_dropout(
    ctx: Context, *, batch: int, length: int, width: int, hidden: int, dropout: float
) -> dict[str, Any]:
    """`mlp` with dropout: of hidden features, where every rank draws its own mask, and of outputs, where all
    draw the same one (`suites.tensor.dropout`). Traffic and weights as in `mlp`; also saved are the whole
    mask of the outputs and 1/n of that of the hidden features.
    """
    group = Group(ctx.rank, ctx.size)
    hidden = multiple(hidden, ctx.size)
    whole, x = models.dropping_mlp(ctx, width, hidden, dropout), activations(ctx, batch, length, width)
    layer = Functional(
        whole=whole,
        x=x,
        group=group,
        cuts=blocks.mlp_cuts(group),
        forward=lambda w, x: dropping.mlp(Whole(group), whole, x, w.values()),
        issued=lambda item: issued.mlp(ctx.size, item, batch=batch, length=length, width=width),
        elements=issued.mlp_elements(ctx.size, width=width, hidden=hidden),
        saved=lambda whole, item: issued.mlp_saved(whole, 2 * x.numel() * item, ctx.size),
    )
    return told(ctx, layer)


@step
def attention(
    ctx: Context, *, batch: int, length: int, channels: int, heads: int, replicate: bool
) -> dict[str, Any]:
    """Causal attention, `heads` query heads per rank; a key-value head per rank, or per p ranks: replicated.

    p is the smallest divisor of n beyond 1. q, k, v by column, o by row.
    Traffic: g forward and f backward, two all_reduces of X; replicated: backward, two more of one key-value
    head's weight, among the p ranks that share it. Memory: 1/n of q and o, p/n (or 1/n) of k and v.
    """
    group = Group(ctx.rank, ctx.size)
    number, kv = ctx.size * heads, kv_heads(ctx.size, replicate)
    width = number * channels
    x = activations(ctx, batch, length, width)
    sizes = {"batch": batch, "length": length, "channels": channels, "heads": heads}
    with shared_kv(group, number, kv, channels) as mine:
        layer = Functional(
            whole=models.attention(ctx, width, number, kv),
            x=x,
            group=group,
            cuts=blocks.attention_cuts(group, mine),
            forward=lambda w, x: blocks.attention(Whole(group), mine, x, *w.values()),
            issued=lambda item: issued.attention(ctx.size, item, **sizes, replicate=replicate),
            elements=issued.attention_elements(ctx.size, channels=channels, heads=heads),
        )
        return told(ctx, layer)


@step
def vocabulary(ctx: Context, *, batch: int, length: int, width: int, words: int) -> dict[str, Any]:
    """Embedding, head and cross-entropy with the vocabulary split: no rank ever has all logits of a token.

    Traffic: all_reduce of the embeddings (X) and, backward, of the head's dX (X); three of one number
    per token, in fp32 at least: largest logit, the target's logit, sum of exponentials. Memory: 1/n of table
    and head.
    """
    group = Group(ctx.rank, ctx.size)
    words = multiple(words, ctx.size)
    whole, numbers = models.vocabulary(ctx, batch, length, width, words)
    targets = whole.targets
    layer = Functional(
        whole=whole,
        x=numbers,
        group=group,
        cuts={"table.weight": rows(group), "head.weight": rows(group)},
        forward=lambda w, x: layers.vocabulary(x, targets, w["table.weight"], w["head.weight"], group),
        issued=lambda item: issued.vocabulary(ctx.size, item, batch=batch, length=length, width=width),
        elements=issued.ELEMENTS["vocabulary"](ctx.size, width=width, words=words),
    )
    return told(ctx, layer)


@step
def block(ctx: Context, *, batch: int, length: int, channels: int, heads: int, hidden: int) -> dict[str, Any]:
    """A Llama block: norm, attention, norm, MLP; activations whole at the norms and residuals.

    Traffic: two all_reduces of X forward, two backward. Memory: 1/n of the matrices, all of the norms.
    """
    group = Group(ctx.rank, ctx.size)
    sizes = {"batch": batch, "length": length, "channels": channels, "heads": heads}
    whole = models.block(ctx, batch, length, channels=channels, heads=heads, hidden=hidden)
    x = activations(ctx, batch, length, ctx.size * heads * channels)
    layer = Functional(
        whole=whole,
        x=x,
        group=group,
        cuts=blocks.block_cuts(group, channels),
        forward=lambda w, x: blocks.block(Whole(group), blocks.KvHeads(channels), w, x),
        issued=lambda item: issued.block(ctx.size, item, **sizes),
        elements=issued.block_elements(ctx.size, channels=channels, heads=heads, hidden=hidden),
    )
    return told(ctx, layer)


@step
def sequence(
    ctx: Context, *, batch: int, length: int, channels: int, heads: int, hidden: int
) -> dict[str, Any]:
    """The same block with the sequence split wherever the activations were whole.

    Traffic: forward, two all_gathers and two reduce_scatters of X (as many bytes on the wire as two
    all_reduces); backward the same, and two all_gathers of what was not kept; all_reduces of the two norms'
    gradients. Memory: weights as in `block`; saved for backward 1/n of what the unsharded block saves, except
    the causal mask and the rotary tables, which every rank needs whole.
    """
    group = Group(ctx.rank, ctx.size)
    length = multiple(length, ctx.size)
    sizes = {"batch": batch, "length": length, "channels": channels, "heads": heads}
    whole = models.block(ctx, batch, length, channels=channels, heads=heads, hidden=hidden)
    x = activations(ctx, batch, length, ctx.size * heads * channels)

    layer = Functional(
        whole=whole,
        x=x,
        group=group,
        cuts=blocks.block_cuts(group, channels) | blocks.sequence_cuts(group),
        forward=lambda w, x: blocks.block(Split(group), blocks.KvHeads(channels), w, x),
        issued=lambda item: issued.sequence(ctx.size, item, **sizes),
        elements=issued.block_elements(ctx.size, channels=channels, heads=heads, hidden=hidden),
        saved=lambda whole, item: issued.sequence_saved(whole, length, channels, ctx.size, item),
        most=lambda whole, item: issued.sequence_most(whole, x.numel(), length, ctx.size, item),
    )
    return told(ctx, layer)


@step
def async_tp(ctx: Context, *, batch: int, length: int, width: int, hidden: int) -> dict[str, Any]:
    """`mlp` with the sequence split, communication fused with the products: asynchronous tensor parallelism.

    Traffic: three all_gathers of X (x, x again for backward, the output's gradient), two reduce_scatters (the
    output, dX). Memory: 1/n of weights and of what is saved. Parity with the unfused layers as well.
    """
    group = Group(ctx.rank, ctx.size)
    length, hidden = multiple(length, ctx.size), multiple(hidden, ctx.size)
    models.fits(ctx, batch * length, 3 * width * hidden, 4 * width + 6 * hidden)
    whole, x = models.mlp(ctx, width, hidden), activations(ctx, batch, length, width)
    with overlap.fused(ctx, group) as ops:
        layer = overlap.FusedMlp(
            whole=whole,
            x=x,
            group=group,
            cuts=blocks.mlp_cuts(group) | blocks.sequence_cuts(group),
            forward=lambda w, x: overlap.mlp(ops, x, *w.values()),
            issued=lambda item: issued.async_tp(ctx.size, item, batch=batch, length=length, width=width),
            elements=issued.mlp_elements(ctx.size, width=width, hidden=hidden),
            saved=lambda whole, _: whole // ctx.size,
            ops=ops,
        )
        return told(ctx, layer)


@step
def dtensor(
    ctx: Context, *, batch: int, length: int, channels: int, heads: int, hidden: int
) -> dict[str, Any]:
    """`block` by torch's parallelize_module with ColwiseParallel and RowwiseParallel.

    Traffic: two all_reduces of X forward; backward five, one for each of q, k, v, gate and up, which torch
    does not join although they share their input. Memory as in `block`.
    """
    sizes = {"batch": batch, "length": length, "channels": channels, "heads": heads}
    whole = models.block(ctx, batch, length, channels=channels, heads=heads, hidden=hidden)
    x = activations(ctx, batch, length, ctx.size * heads * channels)
    layer = Planned(
        ctx=ctx,
        whole=whole,
        x=x,
        group=Group(ctx.rank, ctx.size),
        plan=block_plan,
        issued=lambda item: issued.dtensor(ctx.size, item, **sizes),
        elements=issued.block_elements(ctx.size, channels=channels, heads=heads, hidden=hidden),
    )
    return told(ctx, layer)


@step
def dtensor_sequence(
    ctx: Context, *, batch: int, length: int, channels: int, heads: int, hidden: int
) -> dict[str, Any]:
    """`sequence` by torch's SequenceParallel and PrepareModuleInput.

    Traffic: two all_gathers and two reduce_scatters of X, forward and backward: the gathered input is kept.
    The norms' gradients stay summands until an optimizer reads them.
    """
    group = Group(ctx.rank, ctx.size)
    length = multiple(length, ctx.size)
    sizes = {"batch": batch, "length": length, "channels": channels, "heads": heads}
    whole = models.block(ctx, batch, length, channels=channels, heads=heads, hidden=hidden)
    x = activations(ctx, batch, length, ctx.size * heads * channels)
    layer = Planned(
        ctx=ctx,
        whole=whole,
        x=x,
        group=group,
        cuts=blocks.sequence_cuts(group),
        plan=sequence_plan,
        issued=lambda item: issued.dtensor_sequence(ctx.size, item, **sizes),
        elements=issued.block_elements(ctx.size, channels=channels, heads=heads, hidden=hidden),
    )
    return told(ctx, layer)


@step
def loss_parallel(ctx: Context, *, batch: int, length: int, width: int, words: int) -> dict[str, Any]:
    """Head and cross-entropy of `vocabulary` by torch's loss_parallel: the logits are never gathered.

    Traffic: backward, one all_reduce of the head's dX: X bytes; of one number per token three: largest logit
    and sum of exponentials in fp32 at least, the target's in the dtype of the logits. Memory: 1/n of the
    head; the table is whole.
    """
    words = multiple(words, ctx.size)
    whole, numbers = models.vocabulary(ctx, batch, length, width, words)
    layer = Planned(
        ctx=ctx,
        whole=whole,
        x=numbers,
        group=Group(ctx.rank, ctx.size),
        plan=head_plan,
        parallel_loss=True,
        issued=lambda item: issued.loss_parallel(ctx.size, item, batch=batch, length=length, width=width),
        elements=issued.ELEMENTS["loss_parallel"](ctx.size, width=width, words=words),
    )
    return told(ctx, layer)
