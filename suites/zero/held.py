"""What a rank of data parallelism holds, and its peak in bytes, in the last of its steps.

Both the controller and the ranks compute here what they expect. The table of what is held, with its sources,
is in `suites.zero.steps`.

Psi are the bytes of all parameters, B = Psi/L those of a block, n d those of one tensor of n rows of d
features; w are the ranks. A block saves 9 n d for backward (derived in `suites.zero.recompute`), and frees it
when backward has left the block. So the peak of a step, with what is held throughout, is either when backward
enters its first block, with all that was saved, or in its last, with all the gradients that are left:

    peak = held + batch + max(9 n d L + first, 9 n d + last) + 12 n d

There is room for the batch of all ranks, 2 w n d. 12 n d are the loss (2) and what backward has in a block
(9, and the gradient of what passes it by).

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
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines
from fixtures.wire.held import PEAK, Held, Weighed
from suites.zero import issued
from suites.zero.issued import WIDE, Sizes, clipped, columns, replicas

SAVED_BY_BLOCK = 9
SAVED_WITH_MASK = SAVED_BY_BLOCK + 1
_WORKED_WITH = 12
Terms = Callable[[int, int], tuple[float, float, float]]


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


def owned(sizes: Sizes, item: int) -> Weighed:
    """DDP with the momentum of the weights that this rank owns."""
    psi, share = item * sizes.elements, sizes.dealt[sizes.rank]
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


def sharded(sizes: Sizes, item: int, *, kept: bool = False) -> Weighed:
    """fully_shard, whose blocks are freed after forward or kept; states are those after resharding."""

    def terms(psi: int, block: int) -> tuple[float, float, float]:
        share, moving = psi / sizes.shards, block / sizes.shards
        before, beside = (share, moving) if sizes.micro_batches > 1 else (0, 0)
        first = psi + 2 * block if kept else 4 * block
        return 2 * share, before + first + moving, share + 4 * block + moving + beside

    psi = item * sizes.elements
    live = {"live unsharded": psi if kept else 0}
    return _states(*[psi // sizes.shards] * 3) | live | _peak(sizes, item, terms)


def casting(sizes: Sizes, item: int) -> Weighed:
    """fully_shard that casts, Psi in bf16: 2 Psi/w each of parameters, momentum and first gradients.

    In bf16 3 B are gathered, in use, and gradients; in fp32 2 B are being reduced, and the result is 2 B/w.
    Gradients of micro-batches add up whole, in fp32: 2 Psi, of which 2 B are left when the last are reduced.
    """

    def terms(psi: int, block: int) -> tuple[float, float, float]:
        share, moving = 2 * psi / sizes.ranks, 5 * block + 2 * block / sizes.ranks
        if sizes.micro_batches == 1:
            return 3 * share, moving, share + moving
        return 3 * share, moving + 2 * psi, moving + max(share + 2 * block, 2 * psi)

    return sharded(sizes, WIDE) | _peak(sizes, item, terms)


def mixed(sizes: Sizes, item: int) -> Weighed:
    """Stage 1 with masters, Psi in bf16: 2 Psi, and Psi/w times masters (2), AdamW (4), first gradients (2).

    At the peak a block's gradients are widened (2 B) and reduced; or AdamW updates, with all of them reduced
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


# which step does what


class Kind(NamedTuple):
    """The closed forms of a way to train, each from sizes and the bytes of an item."""

    issues: Callable[[Sizes, int], Calls]
    holds: Callable[[Sizes, int], Weighed]

    def calls(self, sizes: Sizes, item: int) -> Calls:
        """What a step issues, with clipping."""
        return {**self.issues(sizes, item), **(clipped(item) if sizes.clip else {})}


REPLICATED = Kind(issued.reduced, replicated)
AT_ONCE = Kind(issued.reduced_at_once, replicated)
RESHARDED = Kind(partial(issued.of_shards, 2), sharded)
STAGES = {number: Kind(partial(issued.of_stage, number), partial(stage, number)) for number in (1, 2, 3)}
OWNED = Kind(issued.owned, owned)
CAST = Kind(issued.cast_shards, casting)
MIXED = Kind(partial(issued.cast, 1), mixed)
KINDS: dict[str, dict[str, Kind]] = {  # by step and variant; the first variant also runs at size
    "ddp": {
        "accumulated": REPLICATED,
        "bucket per block": REPLICATED,
        "one bucket": AT_ONCE,
    },
    **{f"zero{number}": {"": kind} for number, kind in STAGES.items()},
    # It chooses its calls itself.
    **{f"deepspeed{n}": {"": Kind(lambda _sizes, _item: {}, partial(deepspeed, n))} for n in STAGES},
    "fsdp": {
        "resharded": RESHARDED,
        "kept": Kind(partial(issued.of_shards, 1), partial(sharded, kept=True)),
    },
    "fsdp_prefetch": {"": RESHARDED},
    "fsdp_mixed": {"": CAST},
    "hsdp": {"": RESHARDED},
    "zero_redundancy": {"": OWNED},
    "mixed_precision": {"": MIXED, "accumulated": MIXED},
    "recompute": {
        "recomputed": Kind(issued.reduced, partial(recomputing, 1)),
        "kept": Kind(issued.reduced, partial(recomputing, SAVED_WITH_MASK)),
    },
}
_REAL = "accumulated, clipped"
_BF16 = {"bf16": TRAINED_BYTES}
_ITEMS = {"fsdp_mixed": _BF16, "mixed_precision": _BF16, "deepspeed": {**_BF16, "fp32": WIDE}}


def _items(name: str, asked: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of an item in each dtype that a step runs in."""
    return {"": TRAINED_BYTES} if asked.get("at_size") else _ITEMS.get(name, STUDIED_BYTES)


def _runs(
    name: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool
) -> dict[str, tuple[Kind, Sizes]]:
    """Everything that a planned case trains, by variant."""
    ranks, micro, clip = sum(per_node), int(asked.get("micro_batches", 1)), bool(asked.get("clip"))
    features, layers = columns(int(asked["width"]), ranks, on_gpu), int(asked["layers"])
    shards = replicas(per_node)[1] if name == "hsdp" else ranks
    plain = Sizes(ranks, features, layers, int(asked["rows"]), shards, on_gpu=on_gpu)
    added = replace(plain, micro_batches=micro)
    kinds = KINDS[f"{name}{asked.get('stage', '')}"]
    if name in ("ddp", "mixed_precision"):
        found = {key: (kind, added if key == "accumulated" else plain) for key, kind in kinds.items()}
    elif name in ("fsdp_mixed", "hsdp"):
        found = {key: (kind, added) for key, kind in kinds.items()}
    else:
        found = {key: (kind, plain) for key, kind in kinds.items()}
        if micro > 1 or clip:
            real = replace(added, layers=min(layers, 2), clip=clip)
            found |= {f"{key}, {_REAL}".removeprefix(", "): (kind, real) for key, kind in kinds.items()}
    if asked.get("at_size"):
        key = next(iter(found))
        return {"" if name == "ddp" else key: found[key]}
    return found


def issued_by(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> Lines:
    """Give what every rank of a planned case issues, from the ranks per node."""
    name = step.partition(".")[2]
    if name == "overlap":
        layers = int(asked["layers"])
        psi = layers * int(asked["bucket_bytes"]["cuda" if on_gpu else "cpu"])
        many, one = {"all_reduce": (layers, psi)}, {"all_reduce": (1, psi)}
        return {("bucket per stage", ""): many, ("one bucket", ""): one}
    found = _runs(name, asked, per_node, on_gpu)
    items = _items(name, asked)
    if name == "hsdp":
        sizes = found[""][1]
        return {
            (axis, dtype): calls
            for dtype, item in items.items()
            for axis, calls in issued.hybrid(sizes, item).items()
        }
    return {
        (key, dtype): kind.calls(sizes, item)
        for dtype, item in items.items()
        for key, (kind, sizes) in found.items()
    }


def bytes_held(
    step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool
) -> Held | list[Held]:
    """Give what every rank of a planned case holds, from the ranks per node."""
    name = step.partition(".")[2]
    found = _runs(name, asked, per_node, on_gpu)

    def held(rank: int) -> Held:
        return {
            ("" if asked.get("at_size") else key, dtype): kind.holds(replace(sizes, rank=rank), item)
            for dtype, item in _items(name, asked).items()
            for key, (kind, sizes) in found.items()
        }

    return [held(rank) for rank in range(sum(per_node))] if name == "zero_redundancy" else held(0)
