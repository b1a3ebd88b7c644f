"""What a mesh issues and holds: how ranks lie along axes, and what the dense steps exchange along each.

Both the controller and the ranks compute here what they expect; for mixtures of experts it is in
`suites.mesh.moe.issued`.

Axes are named from the outermost to the innermost; neighbouring ranks differ in the innermost. Ranks are
numbered node by node, so the innermost axis, which sends most, stays inside a node and the outer ones cross
(the order of "The Llama 3 Herd of Models", 2024, section 3.3.2, with torchtitan's pipelines outermost).

A block of width d, H query and K key-value heads of c channels and h hidden features has 2 d in its norms
and 2 d H c + 2 d K c + 3 d h in its matrices; embedding and head have V d each, the last norm d. Tensor
parallelism over t leaves a rank all of the norms and 1/t of the rest, fully_shard over s then 1/s.

Payloads are counted as nccl-tests counts them, in numbers of `item` bytes; X is an activation: rows x
positions x d of them.

    fully_shard   per group (a block, or what is around the blocks), if resharded: 2 all-gathers and
                  1 reduce-scatter of its parameters; if not, 1 and 1 (arXiv:2304.11277)
    tensor        per block, forward 2 all-reduces of X; backward 5, one for each of q, k, v, gate and up;
                  embedding: 1 of X forward; head: 1 of X backward, and 1 all-gather of the logits
                  (Shoeybi et al., "Megatron-LM", 2019, section 3, as torch's parallelize_module does it)
    ring          per block 2w - 2 sends of K and V, 1/t of them, and w of their gradients, which are summed
                  in fp32 where the rest is bf16 (Liu et al., arXiv:2310.01889)
    norm          clipping: 1 all-reduce of one number among all ranks (`suites.zero.clipping`)
    pipeline      per edge m activations one way and m gradients the other, X / m each (arXiv:1811.06965)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines
from fixtures.wire.held import Held
from suites.mesh.layout import Layout, by_rank, divide, divisors, shard
from suites.mesh.moe import held
from suites.mesh.moe import issued as moe
from suites.zero.issued import WIDE, clipped

CHANNELS = 8  # of a head
GROUPED = 2  # query heads that share a key-value head
# The axes of each step, outermost first, and in which order they get more than one rank.
AXES = {
    "fsdp_tp": (("dp", "tp"), ("dp", "tp")),
    "loss_curve": (("dp", "tp"), ("tp", "dp")),
    "fsdp_cp": (("dp", "cp"), ("cp", "dp")),
    "fsdp_cp_tp": (("dp", "cp", "tp"), ("cp", "tp", "dp")),
    "pp_fsdp_tp": (("pp", "dp", "tp"), ("pp", "tp", "dp")),
}


@lru_cache
def _smallest(tp: int, shards: int, least_channels: int) -> tuple[int, int]:
    """Give key-value heads and channels of the smallest matrices whose rows every rank has equally many of.

    A rank's part by `tp` has whole heads, and `shards` divides its rows: one factor of it divides the heads,
    and the other their channels. By heads alone, matrices grow with the square of an odd number of nodes.
    Channels are even: rotary embeddings rotate pairs.
    """
    found = []
    for divisor in divisors(shards):
        step = math.lcm(divisor, 2)
        channels = -(-least_channels // step) * step
        heads = tp * shards // divisor
        found.append((heads * channels, channels, heads))
    _, channels, heads = min(found)
    return heads, channels


@dataclass(frozen=True)
class Sizes:
    """`rows` sequences per dp rank and step, of `tokens` positions per cp rank, through so many layers.

    Stages of a pipeline take the rows in `micro_batches`.

    Matrices are the smallest of which every rank has whole heads and whole rows; with `more_words` those of
    words are no multiple of the shards, and fully_shard pads them. Heads are at least `least_channels` wide.
    """

    rank: int
    layout: Layout
    rows: int
    tokens: int
    layers: int
    steps: int
    micro_batches: int = 1
    least_width: int = 0
    least_channels: int = CHANNELS
    clip: float = 0.0  # the largest norm of all gradients; 0: any
    more_words: int = 0

    @property
    def stages(self) -> int:
        """Parts of the layers."""
        return self.layout.size("pp")

    @property
    def stage(self) -> int:
        """Which of them this rank has."""
        return self.layout.place(self.rank, "pp")

    @property
    def blocks(self) -> int:
        """Layers of a stage."""
        return self.layers // self.stages

    @property
    def first(self) -> bool:
        """Whether this rank reads tokens."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether this rank has the logits, and the loss."""
        return self.stage == self.stages - 1

    @property
    def tp(self) -> int:
        """Parts of a matrix by tensor parallelism."""
        return self.layout.size("tp")

    @property
    def shards(self) -> int:
        """Parts of each of those parts by fully_shard."""
        return self.layout.size("dp") * self.layout.size("cp")

    @property
    def shard(self) -> int:
        """Which of them this rank has."""
        outer, inner = (self.layout.place(self.rank, axis) for axis in ("dp", "cp"))
        return outer * self.layout.size("cp") + inner

    @property
    def kv_heads(self) -> int:
        """Key-value heads: those of the smallest matrices, multiplied up to the least width."""
        heads, channels = _smallest(self.tp, self.shards, self.least_channels)
        return heads * max(self.least_width // (GROUPED * heads * channels), 1)

    @property
    def channels(self) -> int:
        """Channels of a head."""
        return _smallest(self.tp, self.shards, self.least_channels)[1]

    @property
    def width(self) -> int:
        """Width of the activations: the channels of all query heads."""
        return GROUPED * self.kv_heads * self.channels

    @property
    def hidden(self) -> int:
        """Features of the MLP."""
        return 2 * self.width

    @property
    def words(self) -> int:
        """Words of the vocabulary."""
        return self.hidden + self.more_words

    @property
    def length(self) -> int:
        """Positions of a sequence."""
        return self.tokens * self.layout.size("cp")


def sizes_of(
    name: str,
    per_node: Sequence[int],
    rank: int,
    *,
    rows: int,
    layers: int,
    per_stage: int = 1,
    **more: Any,  # noqa: ANN401 - JSON's
) -> Sizes:
    """Give the sizes of a requested step on a rank, from the ranks per node."""
    layout = divide(per_node, *AXES[name])
    stages = layout.size("pp")
    count = per_stage * stages  # 1F1B needs one micro-batch for each stage at least
    return Sizes(rank, layout, rows * count, layers=layers * stages, micro_batches=count, **more)


def lines(sizes: Sizes, item: int) -> dict[str, tuple[frozenset[str], Calls]]:
    """What is issued, and along which axes of several ranks: axes with the same ranks are one line."""
    layout = sizes.layout
    of_axis = {"pp": edges, "dp": sharding, "tp": tensor, "cp": ring}
    found: dict[str, tuple[Sequence[str], Calls]] = {}
    for name in layout.names:
        found[name] = (name,), of_axis[name](sizes, item)
    if "cp" in found:
        found["dp x cp"] = ("dp", "cp"), found.pop("dp")[1]
    if sizes.clip:
        found["norm"] = layout.names, clipped(item)
    merged: dict[frozenset[str], tuple[list[str], Calls]] = {}
    for name, (axes, calls) in found.items():
        several = frozenset(axis for axis in axes if layout.size(axis) > 1)
        names, before = merged.setdefault(several, ([], {}))
        names.append(name)
        before.update(both(before, calls))
    return {", ".join(names): (axes, calls) for axes, (names, calls) in merged.items()}


def both(one: Calls, other: Calls) -> Calls:
    """The sum of two patterns."""
    ops = dict.fromkeys((*one, *other))
    pairs = {op: (one.get(op, (0, 0)), other.get(op, (0, 0))) for op in ops}
    return {op: (a[0] + b[0], a[1] + b[1]) for op, (a, b) in pairs.items()}


def groups(sizes: Sizes, words: int) -> list[int]:
    """Elements of every group that fully_shard gathers, of so many words, after tensor parallelism."""
    d, h = sizes.width, sizes.hidden
    heads = GROUPED * sizes.kv_heads + sizes.kv_heads
    block = 2 * d + (2 * d * heads * sizes.channels + 3 * d * h) // sizes.tp
    table = d * words // sizes.tp
    around = sizes.first * table + sizes.last * (table + d)
    return [block] * sizes.blocks + [around] * (sizes.first or sizes.last)


def sharding(sizes: Sizes, item: int) -> Calls:
    """What fully_shard issues; a stage's parameters stay gathered between its micro-batches."""
    if sizes.shards == 1:
        return {}
    gathers = 1 if "pp" in sizes.layout.names else 2
    held = groups(sizes, sizes.shards * -(-sizes.words // sizes.shards))
    count, size = len(held), sum(held) * item
    return {"all_gather": (gathers * count, gathers * size), "reduce_scatter": (count, size)}


def tensor(sizes: Sizes, item: int) -> Calls:
    """What tensor parallelism issues."""
    if sizes.tp == 1:
        return {}
    x = activation_bytes(sizes, item)
    number = 7 * sizes.blocks + sizes.first + sizes.last
    found = {"all_reduce": (number * sizes.micro_batches, number * x)}
    if sizes.last:
        found["all_gather"] = (sizes.micro_batches, x // sizes.width * sizes.words)
    return found


def ring(sizes: Sizes, item: int) -> Calls:
    """What ring attention issues; its gradients are added up in fp32 at least."""
    ranks = sizes.layout.size("cp")
    keys, gradients = sizes.layers * 2 * (ranks - 1), sizes.layers * ranks
    # K and V have H / K times fewer channels than X, and a rank those of its heads.
    size = 2 * (activation_bytes(sizes, keys * item) + activation_bytes(sizes, gradients * max(item, WIDE)))
    size //= GROUPED * sizes.tp
    return dict.fromkeys(("send", "recv"), (keys + gradients, size))


def edges(sizes: Sizes, item: int) -> Calls:
    """What a rank of a pipeline sends to its neighbours, and receives from them."""
    neighbours = (not sizes.first) + (not sizes.last)
    calls = (neighbours * sizes.micro_batches, neighbours * activation_bytes(sizes, item))
    return dict.fromkeys(("send", "recv"), calls) if neighbours else {}


def activation_bytes(sizes: Sizes, item: int) -> int:
    """Bytes of X on one rank in a step."""
    return sizes.rows * sizes.tokens * sizes.width * item


def _items(name: str, asked: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of a number in each dtype that a step runs in."""
    if name == "loss_curve":
        return {"fp64": STUDIED_BYTES["fp64"]}
    return {"": TRAINED_BYTES} if asked.get("at_size") else STUDIED_BYTES


def issued(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> list[Lines]:
    """Give what each rank of a planned case issues, from the ranks per node."""
    name, dims = step.partition(".")[2], {key: one for key, one in asked.items() if key != "at_size"}
    dense = None if name in moe.STEPS else sizes_of(name, per_node, 0, **dims)

    def of(rank: int, item: int) -> dict[str, Calls]:
        if dense is None:
            return moe.lines(name, sum(per_node), rank, dims, item)
        return {label: calls for label, (_, calls) in lines(replace(dense, rank=rank), item).items()}

    return [
        {
            (label, dtype): calls
            for dtype, item in _items(name, asked).items()
            for label, calls in of(rank, item).items()
        }
        for rank in range(sum(per_node))
    ]


def axes_of(step: str, per_node: Sequence[int]) -> list[dict[str, list[int]]]:
    """Give each rank's group along every axis of several ranks in a planned case."""
    name, ranks = step.partition(".")[2], sum(per_node)
    if name in moe.STEPS:
        axes = moe.STEPS[name][0](ranks)
        return by_rank({line: axes.members(line) for line in moe.LINES}, ranks)
    return divide(per_node, *AXES[name]).by_rank()


def holds(sizes: Sizes, item: int) -> dict[str, int]:
    """A rank's part of each state; and the parameters that it holds between forward and backward."""
    rows = shard(sizes.words, sizes.shard, sizes.shards)
    share = sum(groups(sizes, sizes.shards * len(rows))) // sizes.shards * item
    between = share * (sizes.shards if "pp" in sizes.layout.names else 1)
    return {**held.states(share), "params between forward and backward": between}


def bytes_held(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> list[Held]:
    """Give what each rank of a planned case holds, from the ranks per node."""
    name, dims = step.partition(".")[2], {key: one for key, one in asked.items() if key != "at_size"}
    dense = None if name in moe.STEPS else sizes_of(name, per_node, 0, **dims)

    def of(rank: int, item: int) -> dict[str, int]:
        if dense is None:
            return held.holds(name, sum(per_node), rank, dims, item)
        return holds(replace(dense, rank=rank), item)

    return [
        {("", dtype): of(rank, item) for dtype, item in _items(name, asked).items()}
        for rank in range(sum(per_node))
    ]
