"""The most bytes that a rank of data parallelism has at once, in the last of its steps.

Psi are the bytes of all parameters, B = Psi/L those of a block, w the ranks. Of n rows of d features (a row
of one is n d) a block saves 9 n d for backward (derived in `recompute`), and lets go of it when backward has
left it. So with what is held throughout, a step has the most either when backward enters its first block,
with all that was saved, or in its last, with all the gradients that are left:

    most = held + batch + max(9 n d L + first, 9 n d + last) + 11 n d

The batch is that of all ranks, 2 w n d. 11 n d are the loss (2) and what backward has in a block (9).

    technique           held            first               last
    ddp                 3 Psi           B                   Psi             parameters, momentum, buckets
    zero_redundancy     2 Psi + share   B                   Psi             the share is of the momentum
    zero1               2 Psi + Psi/w   0                   B/w             all gradients are there before
    zero2               Psi + Psi/w     B                   Psi/w + B
    zero3               2 Psi/w         2 B                 Psi/w + 2 B     a block gathered, its gradients
    fsdp, resharded     2 Psi/w         4 B + B/w           Psi/w + 4 B + B/w
    fsdp, kept          2 Psi/w         Psi + 2 B + B/w     Psi/w + 4 B + B/w

One weight's gradient, B/3, is beside those that it is added to. The four blocks of fully_shard are one that
is used, the next that was gathered (one buffer; backward asks for it ahead), gradients, and those of the
block before while they are reduced (Zhao et al., "PyTorch FSDP", arXiv:2304.11277, sections 3.3 and 4.1). The
stages are those of Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 5.

With m micro-batches rows are n/m, but in the batch. What was reduced of the first ones, Psi/w, is there when
the next begins, and what is reduced next, B/w, beside it. Clipping needs a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from suites.zero.training import Task

SAVED_BY_BLOCK = 9
_WORKED_WITH = 11
Ceiling = Callable[[int], int]
Terms = Callable[[int, int], tuple[float, float, float]]


def ceiling(task: Task, terms: Terms, saved: int = SAVED_BY_BLOCK) -> Ceiling:
    """Add up the terms of a technique: `terms(psi, block)` gives held, first and last, in bytes."""

    def most(item: int) -> int:
        psi, block = item * task.elements, item * task.block_elements
        held, first, last = terms(psi, block)
        batch = 2 * task.ctx.size * item * task.rows * task.columns
        row = batch / (2 * task.ctx.size * task.micro_batches)
        return round(
            held + batch + max(saved * row * task.layers + first, saved * row + last) + _WORKED_WITH * row
        )

    return most


def replicated(task: Task, *, saved: int = SAVED_BY_BLOCK) -> Ceiling:
    """DDP; gradients that are added up are there from the first micro-batch on."""
    added = task.micro_batches > 1
    return ceiling(
        task, lambda psi, block: (3 * psi, psi + block / 3 if added else block, psi + block / 3), saved
    )


def owned(task: Task, share: int) -> Ceiling:
    """DDP with so many elements of the momentum."""
    return ceiling(task, lambda psi, block: ((2 + share / task.elements) * psi, block, psi))


def stage(task: Task, number: int) -> Ceiling:
    """A stage of ZeRO on flat buffers."""
    ranks = task.ctx.size

    def terms(psi: int, block: int) -> tuple[float, float, float]:
        share, one = psi / ranks, block / 3
        if number == 1:
            return 2 * psi + share, one, max(one, block / ranks)
        before, beside = (share, block / ranks) if task.micro_batches > 1 else (0, 0)
        if number == 2:
            return psi + share, before + block + one, share + block + one + beside
        return 2 * share, before + 2 * block + one, share + 2 * block + one + beside

    return ceiling(task, terms)


def sharded(task: Task, shards: int, *, kept: bool = False) -> Ceiling:
    """fully_shard, whose blocks are freed after forward or kept."""

    def terms(psi: int, block: int) -> tuple[float, float, float]:
        share, moving = psi / shards, block / shards
        before, beside = (share, moving) if task.micro_batches > 1 else (0, 0)
        first = psi + 2 * block if kept else 4 * block
        return 2 * share, before + first + moving, share + 4 * block + moving + beside

    return ceiling(task, terms)


def casting(task: Task) -> Ceiling:
    """fully_shard that casts: of bf16 bytes Psi, 2 Psi/w of each of parameters, momentum, first gradients.

    Gathered, used and found in bf16 are 3 B; reduced in fp32 are 2 B, and the gradients that come of it.
    """
    ranks = task.ctx.size

    def terms(psi: int, block: int) -> tuple[float, float, float]:
        share, moving = 2 * psi / ranks, 5 * block + block / ranks
        return 3 * share, moving, share + moving

    return ceiling(task, terms)


def mixed(task: Task) -> Ceiling:
    """Stage 1 with masters: of bf16 bytes Psi 2, and Psi/w of masters (2), Adam (4), first gradients (2).

    Then a block's gradients are widened (2 B) and reduced; or Adam updates, with all gradients reduced
    (2 Psi/w) and Psi of others gone, and two fp32 numbers for each of what it updates at once: one block's
    shard on a CPU, all of them on a GPU. Of micro-batches gradients add up in fp32 (2 Psi), and are as such
    reduced.
    """
    ranks, at_once = task.ctx.size, 1 if task.ctx.device.type == "cpu" else task.layers

    def terms(psi: int, block: int) -> tuple[float, float, float]:
        added = 2 * psi if task.micro_batches > 1 else 0
        reducing = 2 * psi / ranks - psi if added else 2 * block + 2 * block / ranks
        updating = 2 * psi / ranks + at_once * 4 * block / ranks - psi - added
        return 2 * psi + 8 * psi / ranks + added, block / 3, max(block / 3, reducing, updating)

    return ceiling(task, terms)
