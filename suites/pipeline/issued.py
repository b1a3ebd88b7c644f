"""What the ranks of a pipeline hold, and issue: over every edge m activations one way, m gradients the other.

Both the controller and the ranks compute here what they expect. An activation and a gradient are rows x width
numbers; sources are in `suites.pipeline.steps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines
from fixtures.wire.held import PEAK, Held
from suites.pipeline.schedules import PLANS, Shape, between_parts, crossings, in_flight

GROUP = "pp"
HIDDEN = 2  # times the width: features of a layer
NEIGHBOURS = "gpipe"  # with one stage per rank, so that its edges are those between neighbours


def ranks_of(size: int, most: int) -> int:
    """Give the ranks of a pipeline: the most that divide the world, and all where nothing does."""
    return max((one for one in range(2, most + 1) if size % one == 0), default=size)


def shape_of(schedule: str, size: int, per_rank: int, most: int) -> Shape:
    """Take the largest pipeline that divides the world and has at most `most` ranks."""
    plan = PLANS[schedule]
    ranks = ranks_of(size, most)
    if ranks < 2 or per_rank < plan.chunks:
        raise ValueError(
            f"{schedule} needs 2 ranks or more and {plan.chunks} micro-batches per rank or more, "
            f"not {ranks} and {per_rank}"
        )
    return Shape(ranks, per_rank * ranks, plan.chunks)


def over_edges(schedule: str, shape: Shape, rank: int, size_bytes: int) -> Calls:
    """`size_bytes` of each micro-batch over each edge of a rank, and as many back."""
    count = crossings(PLANS[schedule], shape, rank) * shape.micro_batches
    return dict.fromkeys(("send", "recv"), (count, count * size_bytes))


def between(size: int, most: int, rank: int, size_bytes: int) -> Calls:
    """`size_bytes` to each neighbour, once, and as many back."""
    ranks = ranks_of(size, most)
    return over_edges(NEIGHBOURS, Shape(ranks, 1), rank // (size // ranks), size_bytes)


def issued(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> list[Lines]:
    """Give what each rank of a planned case issues, from the ranks per node."""
    name, size, most = step.partition(".")[2], sum(per_node), asked["most"]
    if name == "edges":
        item = STUDIED_BYTES[asked["dtype"]]
        size_bytes = asked["size_bytes"]["cuda" if on_gpu else "cpu"] // item * item
        return [{(GROUP, ""): between(size, most, rank, size_bytes)} for rank in range(size)]
    each = asked["rows"] * asked["width"]
    return [
        {(GROUP, dtype): over_edges(name, shape, place, each * item) for dtype, item in _items(asked).items()}
        for shape, place in places(name, asked, size)
    ]


def _items(asked: Mapping[str, Any]) -> dict[str, int]:
    return {"": TRAINED_BYTES} if asked.get("at_size") else STUDIED_BYTES


def places(name: str, asked: Mapping[str, Any], size: int) -> list[tuple[Shape, int]]:
    """Each rank's pipeline and its place there: of n pipelines, rank r has place r // n in pipeline r % n."""
    shape = shape_of(name, size, asked["per_rank"], asked["most"])
    return [(shape, rank // (size // shape.ranks)) for rank in range(size)]


def holds(schedule: str, shape: Shape, rank: int, *, width: int, rows: int, item: int) -> dict[str, int]:
    """What a rank holds: its stages' 3 d h weights each, and what is in flight; and its peak.

    A layer of width d and hidden h saves d + 4h numbers per row of a micro-batch: its input (of the first
    stage the batch, which exists anyway), gate, silu(gate), up and the product of the last two. SwiGLU's
    derivative needs each of them.

    The peak has all stages and the batch, which every rank makes, and what a schedule keeps for the rank's
    stages. That is a gradient for each weight; for each micro-batch the receive buffers of a stage, forth and
    back, and the recorder's copies; the last stage's outputs, and gradients until they are sent; and for
    micro-batches in flight all that is saved, and the output. A layer's backward has 11 rows. Between its two
    parts there are also the gradients of gate, up and output.
    """
    plan, count = PLANS[schedule], shape.micro_batches
    order, stages = plan.order(shape, rank), plan.stages_of(shape, rank)
    flying = in_flight(order)
    row, layer = rows * width * item, 3 * HIDDEN * width**2 * item
    saved = in_flight(order, lambda stage: row * (4 * HIDDEN + (stage > 0)))
    places = sum(2 * (stage > 0) + 1 for stage in stages) + crossings(plan, shape, rank)
    weights = (shape.stages + len(stages)) * layer + layer // 3
    working = flying + 11 + between_parts(order) * (2 * HIDDEN + 1)
    return {
        "params": layer * len(stages),
        "grads": layer * len(stages),
        "in-flight micro-batches": flying,
        "activations": saved,
        PEAK: weights + ((2 + places) * count + working) * row + saved,
    }


def bytes_held(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> list[Held]:
    """Give what each rank of a planned case holds, from the ranks per node."""
    name, given = step.partition(".")[2], {key: asked[key] for key in ("width", "rows")}
    return [
        {("", dtype): holds(name, shape, place, **given, item=item) for dtype, item in _items(asked).items()}
        for shape, place in places(name, asked, sum(per_node))
    ]
