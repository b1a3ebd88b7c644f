"""What the ranks of a pipeline issue: over every edge m activations one way and m gradients the other.

The controller computes here what it expects of each rank, and the ranks what they expect of themselves. Each
is rows x width numbers; sources are in `suites.pipeline.steps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines
from suites.pipeline.schedules import PLANS, Shape, crossings

GROUP = "pp"
NEIGHBOURS = "gpipe"  # of one stage per rank, whose edges are those between neighbours


def ranks_of(size: int, most: int) -> int:
    """Give the ranks of a pipeline: the most that divide the world, and all where nothing does."""
    return max((one for one in range(2, most + 1) if size % one == 0), default=size)


def shape_of(schedule: str, size: int, per_rank: int, most: int) -> Shape:
    """Take the largest pipeline that divides the world and has at most so many ranks."""
    plan = PLANS[schedule]
    ranks = ranks_of(size, most)
    if ranks < 2 or per_rank < plan.least_per_rank:
        raise ValueError(
            f"{schedule} needs 2 ranks or more and {plan.least_per_rank} micro-batches per rank or more, "
            f"not {ranks} and {per_rank}"
        )
    return Shape(ranks, per_rank * ranks, plan.chunks)


def over_edges(schedule: str, shape: Shape, rank: int, size_bytes: int) -> Calls:
    """So many bytes of each micro-batch over each edge of a rank, and as many back."""
    count = crossings(PLANS[schedule], shape, rank) * shape.micro_batches
    return dict.fromkeys(("send", "recv"), (count, count * size_bytes))


def between(size: int, most: int, rank: int, size_bytes: int) -> Calls:
    """So many bytes to each neighbour, once, and as many back."""
    ranks = ranks_of(size, most)
    return over_edges(NEIGHBOURS, Shape(ranks, 1), rank // (size // ranks), size_bytes)


def issued(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> list[Lines]:
    """Give what each rank of a planned case issues, of nodes that have so many ranks each."""
    name, size, most = step.partition(".")[2], sum(per_node), asked["most"]
    if name == "edges":
        item = STUDIED_BYTES[asked["dtype"]]
        size_bytes = asked["size_bytes"]["cuda" if on_gpu else "cpu"] // item * item
        return [{(GROUP, ""): between(size, most, rank, size_bytes)} for rank in range(size)]
    shape = shape_of(name, size, asked["per_rank"], most)
    items = {"": TRAINED_BYTES} if asked.get("at_size") else STUDIED_BYTES
    each = asked["rows"] * asked["width"]
    return [  # rank r is in place r // n of pipeline r % n, where there are n pipelines
        {
            (GROUP, dtype): over_edges(name, shape, rank // (size // shape.ranks), each * item)
            for dtype, item in items.items()
        }
        for rank in range(size)
    ]
