"""What a rank of data parallelism holds, and its peak in bytes, in the last of its steps.

Both the controller and the ranks compute here what they expect. The table of what is held, with its sources,
is in `suites.zero.steps`.

Psi are the bytes of all parameters, B = Psi/L those of a block, n d those of one tensor of n rows of d
features; w are the ranks. A block saves 9 n d for backward (derived in `suites.zero.recompute`), and frees it
when backward has left the block. So the peak of a step, with what is held throughout, is either when backward
enters its first block, with all that was saved, or in its last, with all the gradients that are left:

    peak = held + batch + max(9 n d L + first, 9 n d + last) + 11 n d

The batch is that of all ranks, 2 w n d. 11 n d are the loss (2) and what backward has in a block (9).

    technique           held            first               last
    ddp                 3 Psi           B                   Psi             parameters, momentum, buckets
    zero_redundancy     2 Psi + share   B                   Psi             the share is of the momentum
    zero1               2 Psi + Psi/w   0                   B/w             all gradients are there before
    zero2               Psi + Psi/w     B                   Psi/w + B
    zero3               2 Psi/w         2 B                 Psi/w + 2 B     a block gathered, its gradients
    fsdp, resharded     2 Psi/w         4 B + B/w           Psi/w + 4 B + B/w
    fsdp, kept          2 Psi/w         Psi + 2 B + B/w     Psi/w + 4 B + B/w

One weight's gradient, B/3, exists besides those that it is added to. The four blocks of fully_shard are the
one in use, the next one (one buffer; backward prefetches it), gradients, and those of the block before while
they are reduced (Zhao et al., "PyTorch FSDP", arXiv:2304.11277, sections 3.3 and 4.1). The stages are those
of Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 5.

With m micro-batches there are n/m rows, except in the batch. The reduced gradients of the first ones, Psi/w,
exist when the next begins, and so does what is reduced next, B/w. Clipping needs a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES
from fixtures.wire.held import PEAK, Held, Weighed
from suites.zero.issued import CAST, WIDE, block_elements, columns, dealt, replicas, tasks

SAVED_BY_BLOCK = 9
SAVED_WITH_MASK = SAVED_BY_BLOCK + 1
_WORKED_WITH = 11
Terms = Callable[[int, int], tuple[float, float, float]]


@dataclass(frozen=True)
class Sizes:
    """A model and its batch, on a number of ranks."""

    ranks: int
    columns: int
    layers: int
    rows: int
    micro_batches: int = 1
    on_gpu: bool = False

    @property
    def block_elements(self) -> int:
        """Psi of one block, in elements."""
        return block_elements(self.columns)

    @property
    def elements(self) -> int:
        """Psi, in elements."""
        return self.layers * self.block_elements


def _peak(sizes: Sizes, item: int, terms: Terms, saved: int = SAVED_BY_BLOCK) -> Weighed:
    """Add up the terms of a technique: `terms(psi, block)` gives held, first and last, in bytes."""
    psi, block = item * sizes.elements, item * sizes.block_elements
    held, first, last = terms(psi, block)
    batch = 2 * sizes.ranks * item * sizes.rows * sizes.columns
    row = batch / (2 * sizes.ranks * sizes.micro_batches)
    worst = max(saved * row * sizes.layers + first, saved * row + last)
    return {PEAK: round(held + batch + worst + _WORKED_WITH * row)}


def _states(params: int, grads: int, optimizer: int) -> Weighed:
    return {"params": params, "grads": grads, "optimizer": optimizer}


def replicated(sizes: Sizes, item: int, saved: int = SAVED_BY_BLOCK) -> Weighed:
    """DDP; gradients that are added up exist from the first micro-batch on."""
    added, states = sizes.micro_batches > 1, _states(*[item * sizes.elements] * 3)
    return states | _peak(
        sizes,
        item,
        lambda psi, block: (3 * psi, psi + block / 3 if added else block, psi + block / 3),
        saved,
    )


def recomputing(saved: int, sizes: Sizes, item: int) -> Weighed:
    """DDP with dropout, where each block saves `saved` numbers per element of a row; and the peak."""
    activations = (saved * sizes.layers + 1) * sizes.rows * sizes.columns * item
    return {"activations": activations, PEAK: replicated(sizes, item, saved)[PEAK]}


def owned(share: int, sizes: Sizes, item: int) -> Weighed:
    """DDP with `share` elements of the momentum."""
    psi = item * sizes.elements
    part = share / sizes.elements
    return _states(psi, psi, item * share) | _peak(
        sizes, item, lambda psi, block: ((2 + part) * psi, block, psi)
    )


def stage(number: int, sizes: Sizes, item: int) -> Weighed:
    """A stage of ZeRO on flat buffers: shares of Psi; "live unsharded" are whole parameters."""
    ranks, psi, block = sizes.ranks, item * sizes.elements, item * sizes.block_elements
    kept, live, live_most = (psi // ranks, 0, block) if number == 3 else (psi, psi, psi)
    return {
        **_states(kept, psi // ranks, psi // ranks),
        "grads before they are reduced": psi if number == 1 else block,
        "live unsharded": live,
        "live unsharded at most": live_most,
        **_peak(sizes, item, partial(_stage_terms, number, sizes)),
    }


def _stage_terms(number: int, sizes: Sizes, psi: int, block: int) -> tuple[float, float, float]:
    ranks = sizes.ranks
    share, one = psi / ranks, block / 3
    if number == 1:
        return 2 * psi + share, one, max(one, block / ranks)
    before, beside = (share, block / ranks) if sizes.micro_batches > 1 else (0, 0)
    if number == 2:
        return psi + share, before + block + one, share + block + one + beside
    return 2 * share, before + 2 * block + one, share + 2 * block + one + beside


def sharded(shards: int, sizes: Sizes, item: int, *, kept: bool = False) -> Weighed:
    """fully_shard, whose blocks are freed after forward or kept; states are those after resharding."""

    def terms(psi: int, block: int) -> tuple[float, float, float]:
        share, moving = psi / shards, block / shards
        before, beside = (share, moving) if sizes.micro_batches > 1 else (0, 0)
        first = psi + 2 * block if kept else 4 * block
        return 2 * share, before + first + moving, share + 4 * block + moving + beside

    psi = item * sizes.elements
    live = {"live unsharded": psi if kept else 0}
    return _states(*[psi // shards] * 3) | live | _peak(sizes, item, terms)


def casting(sizes: Sizes, item: int) -> Weighed:
    """fully_shard that casts, Psi in bf16: 2 Psi/w each of parameters, momentum and first gradients.

    In bf16 3 B are gathered, in use, and gradients; in fp32 2 B are being reduced, besides the result.
    """

    def terms(psi: int, block: int) -> tuple[float, float, float]:
        share, moving = 2 * psi / sizes.ranks, 5 * block + block / sizes.ranks
        return 3 * share, moving, share + moving

    return sharded(sizes.ranks, sizes, WIDE) | _peak(sizes, item, terms)


def mixed(sizes: Sizes, item: int) -> Weighed:
    """Stage 1 with masters, Psi in bf16: 2 Psi, and Psi/w times masters (2), Adam (4), first gradients (2).

    At the peak a block's gradients are widened (2 B) and reduced; or Adam updates, with all gradients reduced
    (2 Psi/w), the bf16 ones (Psi) freed, and two fp32 numbers for each element updated at once: one block's
    shard on a CPU, all of them on a GPU. Gradients of micro-batches add up and are reduced in fp32 (2 Psi).
    """
    ranks, at_once, several = sizes.ranks, sizes.layers if sizes.on_gpu else 1, sizes.micro_batches > 1

    def terms(psi: int, block: int) -> tuple[float, float, float]:
        added = 2 * psi if several else 0
        reducing = 2 * psi / ranks - psi if added else 2 * block + 2 * block / ranks
        updating = 2 * psi / ranks + at_once * 4 * block / ranks - psi - added
        return 2 * psi + 8 * psi / ranks + added, block / 3, max(block / 3, reducing, updating)

    psi, wide = item * sizes.elements, WIDE * sizes.elements
    return {
        **_states(psi, psi, 3 * wide // ranks),
        "grads added up": wide * several,
        "grads reduced": wide // ranks,
        **_peak(sizes, item, terms),
    }


def deepspeed(number: int, sizes: Sizes, item: int) -> Weighed:
    """A stage of DeepSpeed's: Psi or Psi/w of parameters, Psi/w of fp32 masters and of their state."""
    share = WIDE * sizes.elements // sizes.ranks
    params = item * sizes.elements // (sizes.ranks if number == 3 else 1)
    return {"params": params, "masters": share, "optimizer": share, "grads after the update": 0}


@dataclass(frozen=True)
class _Run:
    """A requested step."""

    asked: Mapping[str, Any]
    per_node: Sequence[int]
    sizes: Sizes

    def tasks(self) -> dict[str, Sizes]:
        """The plain task, and the one like a real run."""
        return {
            name: replace(self.sizes, layers=layers, micro_batches=micro)
            for name, layers, micro in tasks(self.asked)
        }

    @property
    def accumulated(self) -> Sizes:
        return replace(self.sizes, micro_batches=int(self.asked["micro_batches"]))


Forms = dict[str, Callable[[int], Weighed]]  # by variant, from the bytes of an item


def _owned(run: _Run) -> list[Forms]:
    sizes = run.sizes
    shares = dealt(sizes.elements, sizes.layers, sizes.ranks)
    return [{"": partial(owned, share, sizes)} for share in shares]


_STEPS: dict[str, Callable[[_Run], Forms | list[Forms]]] = {  # the first variant also runs at size
    "ddp": lambda run: {
        "accumulated": partial(replicated, run.accumulated),
        "bucket per block": partial(replicated, run.sizes),
        "one bucket": partial(replicated, run.sizes),
    },
    **{
        f"zero{number}": lambda run, number=number: {  # type: ignore[misc]
            name: partial(stage, number, sizes) for name, sizes in run.tasks().items()
        }
        for number in (1, 2, 3)
    },
    "fsdp": lambda run: {
        f"{variant}, {name}".removesuffix(", "): partial(sharded, sizes.ranks, sizes, kept=variant == "kept")
        for name, sizes in run.tasks().items()
        for variant in ("resharded", "kept")
    },
    "fsdp_prefetch": lambda run: {"": partial(sharded, run.sizes.ranks, run.sizes)},
    "fsdp_mixed": lambda run: {"": partial(casting, run.sizes)},
    "hsdp": lambda run: {"": partial(sharded, replicas(run.per_node)[1], run.sizes)},
    "zero_redundancy": _owned,
    "mixed_precision": lambda run: {
        "": partial(mixed, run.sizes),
        "accumulated": partial(mixed, run.accumulated),
    },
    "recompute": lambda run: {
        "recomputed": partial(recomputing, 1, run.sizes),
        "kept": partial(recomputing, SAVED_WITH_MASK, run.sizes),
    },
    "deepspeed": lambda run: {"": partial(deepspeed, run.asked["stage"], run.sizes)},
}
_ITEMS = {key: {"bf16": TRAINED_BYTES} for key in CAST} | {"deepspeed": {"bf16": TRAINED_BYTES, "fp32": WIDE}}


def bytes_held(
    step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool
) -> Held | list[Held]:
    """Give what every rank of a planned case holds, from the ranks per node."""
    name, ranks = step.partition(".")[2], sum(per_node)
    features = columns(int(asked["width"]), ranks, on_gpu)
    sizes = Sizes(ranks, features, int(asked["layers"]), int(asked["rows"]), on_gpu=on_gpu)
    found = _STEPS[name](_Run(asked, per_node, sizes))

    def held(forms: Forms) -> Held:
        if asked.get("at_size"):
            return {("", ""): next(iter(forms.values()))(TRAINED_BYTES)}
        items = _ITEMS.get(name, STUDIED_BYTES)
        return {(key, dtype): form(item) for dtype, item in items.items() for key, form in forms.items()}

    return [held(one) for one in found] if isinstance(found, list) else held(found)
