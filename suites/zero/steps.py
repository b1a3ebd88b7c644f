"""What the ranks run for data parallelism and ZeRO.

Psi is the bytes of all parameters, L the number of blocks, w the ranks. Payload per rank and step (what a
call's tensor holds; on the wire each all-gather and reduce-scatter sends (w-1)/w of it, an all-reduce twice
that), and what a rank holds, with an optimizer of one state:

    step              all_reduce   reduce_scatter   all_gather   broadcast   params  grads  state
    ddp               Psi                                                    Psi     Psi    Psi
    zero1                          Psi              Psi                      Psi     Psi    Psi/w
    zero2                          Psi              Psi                      Psi     Psi/w  Psi/w
    zero3                          Psi              2 Psi                    Psi/w   Psi/w  Psi/w
    zero_redundancy   Psi                                        Psi         Psi     Psi    Psi/w
    fsdp, kept                     Psi              Psi                      Psi/w   Psi/w  Psi/w
    fsdp, resharded                Psi              2 Psi                    Psi/w   Psi/w  Psi/w

From Rajbhandari et al., "ZeRO", arXiv:1910.02054, sections 5 and 7; Zhao et al., "PyTorch FSDP",
arXiv:2304.11277; Li et al., "PyTorch Distributed", arXiv:2006.15704.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fixtures.ranks.engines import engine
from fixtures.ranks.exact.dtypes import NAMES
from fixtures.ranks.steps import Context, step
from fixtures.ranks.study.at_size import at_size
from fixtures.ranks.study.driver import TRAINED, WIDE, alike, answer, same, study
from fixtures.ranks.study.pattern import Move, sent
from suites.zero import deepspeed as deepspeed_engine
from suites.zero.answers import (
    ITEM,
    flat,
    fully_sharded,
    hybrid,
    moves_of,
    replicas,
    replicated,
    told,
    variants,
)
from suites.zero.held import AT_ONCE, OWNED
from suites.zero.mixed import mixed_zero1
from suites.zero.overlap import Backward
from suites.zero.policies import casts, prefetched
from suites.zero.recompute import Dropping, recomputed
from suites.zero.training import Task
from suites.zero.wrapped import ShardedOptimizer, on_mesh


@step
def ddp(ctx: Context, *, micro_batches: int, **sizes: int) -> dict[str, Any]:
    """DistributedDataParallel: L all-reduces of Psi/L with a bucket per block, 1 of Psi with one bucket.

    With `no_sync` the gradients of m micro-batches add up and are exchanged once: L calls and Psi, not m
    times that. All three equal the big batch, and one bucket equals many (arXiv:2006.15704, section 4).
    """
    task = Task(ctx, **sizes)
    accumulating = replace(task, micro_batches=micro_batches)
    if ctx.at_size:
        return at_size(ctx, replicated(accumulating))
    many, one, added = (
        study(ctx, technique)
        for technique in (
            replicated(task, variant="bucket per block"),
            replicated(task, kind=AT_ONCE, variant="one bucket"),
            replicated(accumulating, variant="accumulated"),
        )
    )
    said = answer(many, one, added)
    said["parity"] += alike(many, one, "one bucket against many")
    return {**said, **sent(ctx, [Move("all_reduce", ITEM * task.block_elements)] * task.layers)}


@step
def zero1(ctx: Context, **training: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever `variants` takes
    """ZeRO stage 1, flat: all gradients are there after backward (Psi), then L reduce-scatters of Psi/L, an
    update of Psi/w, and L all-gathers of Psi/L, once for all m micro-batches (arXiv:1910.02054, sections
    5.1 and 7.2). Clipping adds one number among all ranks, here and in the other stages.
    """
    return flat(variants(ctx, **training), 1)


@step
def zero2(ctx: Context, **training: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever `variants` takes
    """ZeRO stage 2, flat: as stage 1, but a block is reduce-scattered as soon as its gradients are there, so
    that at most Psi/L of whole gradients ever live; m Psi with m micro-batches, which add up in the shards
    (arXiv:1910.02054, sections 5.2 and 7.2.1).
    """
    return flat(variants(ctx, **training), 2)


@step
def zero3(ctx: Context, **training: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever `variants` takes
    """ZeRO stage 3, flat: a block's parameters are gathered before its forward and again before its backward
    and freed after each: 2 L all-gathers of Psi/L and L reduce-scatters; Psi/L of whole parameters live at
    most, and none after forward; all of it m times with m micro-batches (arXiv:1910.02054, sections 5.3
    and 7.2.2).
    """
    return flat(variants(ctx, **training), 3)


@step
def fsdp(ctx: Context, **training: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever `variants` takes
    """fully_shard per block. Resharded after forward: 2 L all-gathers, 2 Psi; kept until backward: L, Psi,
    and Psi of whole parameters live after forward. L reduce-scatters of Psi/L in both, and all of it m times
    with m micro-batches (arXiv:2304.11277).
    """
    tasks = variants(ctx, **training)
    return on_mesh(ctx, (ctx.size,), lambda mesh: fully_sharded(tasks, mesh))


@step
def fsdp_prefetch(ctx: Context, **sizes: int) -> dict[str, Any]:
    """fully_shard that gathers the next block while this one computes, forward and backward: the calls, the
    bytes and the bits are those of fully_shard without it (2 Psi gathered, Psi reduced; arXiv:2304.11277,
    section 3.3). How much of the exchange hides is measured on GPUs, at the size of training: gloo on CPUs
    has no streams, and small blocks compute for less time than their host takes.
    """
    task = Task(ctx, **sizes)
    return on_mesh(ctx, (ctx.size,), lambda mesh: prefetched(task, mesh))


@step
def fsdp_mixed(ctx: Context, **sizes: int) -> dict[str, Any]:
    """fully_shard with MixedPrecisionPolicy(bf16, reduce in fp32): of P parameters 2 P bytes gathered twice
    and 4 P reduced, 4 P/w held of parameters, of gradients and of state (arXiv:2304.11277, section 4.4).
    """
    task = Task(ctx, **sizes)
    moves = moves_of(task, 2, WIDE.itemsize, TRAINED.itemsize)
    return on_mesh(ctx, (ctx.size,), lambda mesh: told(ctx, moves, casts(task, mesh)))


@step
def hsdp(ctx: Context, **sizes: int) -> dict[str, Any]:
    """fully_shard on a mesh of r replicas x s shards: all-gathers (2 Psi) and reduce-scatters (Psi) among the
    s, all-reduces of Psi/s among the r (arXiv:2304.11277, section 3.2.2). A node is a replica where there are
    several nodes of one size; else there are two replicas, or one where the ranks are few or odd.
    """
    task = Task(ctx, **sizes)
    return on_mesh(ctx, replicas(ctx), lambda mesh: hybrid(task, mesh))


@step
def zero_redundancy(ctx: Context, **sizes: int) -> dict[str, Any]:
    """ZeroRedundancyOptimizer with DDP: L all-reduces of Psi/L, then each rank broadcasts what it updated.
    It assigns whole weights, three of one size per block, in turn: rank r owns every w-th of the 3 L from the
    r-th on (torch's `_partition_parameters`: largest first, to the lightest). A rank that owns none
    broadcasts one number of 4 bytes.
    """
    task = Task(ctx, **sizes)
    shares = task.sizes.dealt
    technique = replicated(task, ShardedOptimizer, OWNED)
    moves = [Move("all_reduce", ITEM * task.block_elements)] * task.layers
    moves += [Move("broadcast", ITEM * share) for share in shares if share]
    return told(ctx, moves, technique)


@step
def mixed_precision(ctx: Context, *, micro_batches: int, **sizes: int) -> dict[str, Any]:
    """bf16 parameters and gradients, fp32 masters and AdamW on this rank's shard: per parameter 2 + 2 + 12/w
    bytes held, 4 bytes reduce-scattered (in fp32) and 2 all-gathered (arXiv:1910.02054, section 3.1).
    Micro-batches add up in fp32: 4 bytes more held, and the same exchanged once.
    """
    task = Task(ctx, **sizes)
    added = mixed_zero1(replace(task, micro_batches=micro_batches), "accumulated")
    return told(ctx, moves_of(task, 1, WIDE.itemsize, TRAINED.itemsize), mixed_zero1(task), added)


@step
def deepspeed(ctx: Context, *, stage: int, module: str, **sizes: int) -> dict[str, Any]:
    """DeepSpeed's stage 1, 2 or 3: Psi reduced, Psi gathered (stage 3: 2 Psi); Psi of params held (stage 3:
    Psi/w), Psi/w of masters and of state (arXiv:1910.02054, sections 5 and 7). n/a where nodes lack it.
    """
    deepspeed_engine.build_in_job()
    task, has = Task(ctx, **sizes), engine(ctx, module, deepspeed_engine.NEEDS)
    moves = moves_of(task, 2 if stage == 3 else 1, WIDE.itemsize, WIDE.itemsize)
    return told(ctx, moves, deepspeed_engine.Stage(task, has, stage))


@step
def recompute(ctx: Context, *, dropout: float, **sizes: int) -> dict[str, Any]:
    """DDP with activation checkpointing of blocks with dropout: the same traffic as DDP, gradients equal to
    those without checkpointing, bit for bit, so the masks are the same when they are drawn again, and per
    block n d saved elements in place of 10 n d (arXiv:1604.06174; derived in `recompute`).
    """
    task = Dropping(ctx, **sizes, dropout=dropout)
    less, kept = (study(ctx, technique) for technique in recomputed(task))
    said = answer(less, kept)
    for dtype, run in less.runs.items():
        said["parity"] += same(kept.runs[dtype], run, f" (recomputed against kept, {NAMES[dtype]})")
    return {**said, **sent(ctx, [Move("all_reduce", ITEM * task.block_elements)] * task.layers)}


@step
def overlap(ctx: Context, *, layers: int, bucket_bytes: dict[str, int]) -> dict[str, Any]:
    """DDP's exchange behind a backward of L stages, which last longer where the link is slow. With a bucket
    per stage 1 - 1/L of it hides, with one bucket none (arXiv:2006.15704, section 3.2; derived in
    suites.zero.overlap). `bucket_bytes` are by kind of device.
    """
    bucket = bucket_bytes[ctx.device.type]
    psi = layers * bucket
    many = Backward(ctx, layers, bucket // ITEM, bucket)
    one = Backward(ctx, layers, bucket // ITEM, 2 * psi)
    stage_s = many.stage_s()
    at_the_end = one.figures_at_the_end(stage_s)
    figures = {"stage_seconds": stage_s, **many.figures(stage_s)}
    figures |= {f"{name}_one_bucket": value for name, value in at_the_end.items()}
    said = {
        "parity": many.parity("bucket per stage") + one.parity("one bucket"),
        "repeat": many.repeat("bucket per stage") + one.repeat("one bucket"),
        "traffic": [
            *many.seen().table({"all_reduce": (layers, psi)}, "bucket per stage"),
            *one.seen().table({"all_reduce": (1, psi)}, "one bucket"),
        ],
    }
    moved = sent(ctx, [Move("all_reduce", bucket)] * layers)
    return {**said, **moved, "figures": {**moved["figures"], **figures}}
