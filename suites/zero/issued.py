"""What data parallelism and ZeRO issue: calls and bytes, from the sizes of a model and its world alone.

Both the controller and the ranks compute here what they expect. Psi is the bytes of all parameters, L the
number of blocks; sources are in `suites.zero.steps`. Which step issues what is in `suites.zero.held`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fixtures.wire.collectives import Calls

WIDE = 4  # bytes of fp32
_ALIGNED = 8  # elements of bf16 in 16 bytes


def columns(width: int, ranks: int, on_gpu: bool) -> int:
    """Round features up so that a shard of a matrix is a whole number of its rows."""
    multiple = math.lcm(ranks, _ALIGNED if on_gpu else 1)
    return -(-width // multiple) * multiple


@dataclass(frozen=True)
class Sizes:
    """A model and its batch, on one of so many ranks, of which `shards` share the parameters."""

    ranks: int
    columns: int
    layers: int
    rows: int
    shards: int
    rank: int = 0
    micro_batches: int = 1
    clip: bool = False  # by the norm of all gradients
    on_gpu: bool = False

    @property
    def block_elements(self) -> int:
        """Psi of one block, in elements: gate and up of d x 2 d, down of 2 d x d."""
        return 6 * self.columns**2

    @property
    def elements(self) -> int:
        """Psi, in elements."""
        return self.layers * self.block_elements

    @property
    def dealt(self) -> list[int]:
        """Each rank's elements if whole weights, three per block, are assigned in turn."""
        weights = [self.block_elements // 3] * 3 * self.layers
        return [sum(weights[rank :: self.ranks]) for rank in range(self.ranks)]


def replicas(per_node: Sequence[int]) -> tuple[int, int]:
    """Replicas and shards, from the ranks per node."""
    size, nodes = sum(per_node), len(per_node)
    if nodes > 1 and len(set(per_node)) == 1 and per_node[0] > 1:
        return nodes, size // nodes
    return (2, size // 2) if size >= 4 and size % 2 == 0 else (1, size)


def clipped(item: int) -> Calls:
    """One number among all ranks, in fp32 at least."""
    return {"all_reduce": (1, max(item, WIDE))}


def reduced(sizes: Sizes, item: int) -> Calls:
    """All gradients, with a bucket for each block."""
    return {"all_reduce": (sizes.layers, item * sizes.elements)}


def reduced_at_once(sizes: Sizes, item: int) -> Calls:
    """All gradients in one bucket."""
    return {"all_reduce": (1, item * sizes.elements)}


def owned(sizes: Sizes, item: int) -> Calls:
    """All gradients are reduced, and each rank broadcasts what it updated: one fp32 number if nothing."""
    broadcast = sum(item * share or WIDE for share in sizes.dealt)
    return {**reduced(sizes, item), "broadcast": (sizes.ranks, broadcast)}


def gathered_and_reduced(gathers: int, reductions: int, sizes: Sizes, item: int) -> Calls:
    """Every block gathered and reduced so often."""
    layers, psi = sizes.layers, item * sizes.elements
    return {
        "reduce_scatter": (reductions * layers, reductions * psi),
        "all_gather": (gathers * layers, gathers * psi),
    }


def of_stage(number: int, sizes: Sizes, item: int) -> Calls:
    """A stage of ZeRO: the first reduces once for all micro-batches, and the third alone gathers in each."""
    each = sizes.micro_batches
    return gathered_and_reduced(2 * each if number == 3 else 1, 1 if number == 1 else each, sizes, item)


def of_shards(gathers: int, sizes: Sizes, item: int) -> Calls:
    """fully_shard, which gathers so often in each micro-batch."""
    return gathered_and_reduced(gathers * sizes.micro_batches, sizes.micro_batches, sizes, item)


def cast_shards(sizes: Sizes, item: int) -> Calls:
    """fully_shard that casts: gathered twice in each micro-batch, and reduced once."""
    return cast(2 * sizes.micro_batches, sizes, item)


def cast(gathers: int, sizes: Sizes, item: int) -> Calls:
    """Reduced in fp32, and gathered in the dtype of the run."""
    wide = gathered_and_reduced(gathers, 1, sizes, WIDE)["reduce_scatter"]
    return {**gathered_and_reduced(gathers, 1, sizes, item), "reduce_scatter": wide}


def hybrid(sizes: Sizes, item: int) -> dict[str, Calls]:
    """By axis of a mesh: gathered and reduced among the shards, and a shard reduced among the replicas.

    The latter once, however many micro-batches there are.
    """
    across = {"all_reduce": (sizes.layers, item * sizes.elements // sizes.shards)}
    return {"shard": of_shards(2, sizes, item), "replicate": across}
