"""What a rank of a mixture of experts on a mesh holds, from its parameters and world alone.

Both the controller and the ranks compute here what they expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fixtures.wire.held import Weighed
from suites.mesh.layout import shard
from suites.mesh.moe.issued import LINE, STEPS, Dims, Sizes, elements, groups, padded, router_elements
from suites.pipeline.schedules import PLANS, Shape, in_flight
from suites.zero.issued import WIDE

PLAN = PLANS["one_f_one_b"]


def states(share: int) -> Weighed:
    """Parameters, gradients, and an optimizer of one state."""
    return dict.fromkeys(("params", "grads", "optimizer"), share)


def replicated(sizes: Sizes, item: int) -> Weighed:
    """A stage's dense weights, and the experts of this rank."""
    return states(_weights(sizes, item)) | _in_flight(sizes)


def fully_sharded(sizes: Sizes, item: int) -> Weighed:
    """This rank's rows of everything."""
    places = {line: _place(sizes, line) for line in LINE.values()}
    return _in_flight(sizes) | states(
        sum(
            len(shard(rows, *places[line])) * columns * size
            for line, shapes, size in groups(sizes, item)
            for rows, columns in shapes
        )
    )


def zero1(sizes: Sizes, item: int) -> Weighed:
    """This rank's masters; also all weights of the stage, and none of their gradients after the step."""
    masters = sum(padded(sizes, kind) // sizes.axes.size(line) for kind, line in LINE.items())
    whole = {"all params": _weights(sizes, item), "all grads": 0}
    return states(masters * max(item, WIDE)) | _in_flight(sizes) | whole


def _weights(sizes: Sizes, item: int) -> int:
    widened = router_elements(sizes) * (max(item, WIDE) - item)
    return sum(elements(sizes)) * item + widened


def _in_flight(sizes: Sizes) -> Weighed:
    """How many micro-batches are held at a time, where there are stages."""
    shape = Shape(sizes.axes.stages, sizes.dims.micro_batches)
    order = PLAN.order(shape, sizes.place[0])
    return {"in-flight micro-batches": in_flight(order)} if shape.ranks > 1 else {}


def _place(sizes: Sizes, line: str) -> tuple[int, int]:
    """A rank's index along a line, and how many ranks the line has."""
    met = next(one for one in sizes.axes.members(line) if sizes.rank in one)
    return met.index(sizes.rank), len(met)


_STEPS: dict[str, Callable[[Sizes, int], Weighed]] = {
    "ep_dp": replicated,
    "five_axes": replicated,
    "ep_fsdp": fully_sharded,
    "zero1_pp_ep": zero1,
}


def holds(name: str, ranks: int, rank: int, asked: Mapping[str, Any], item: int) -> Weighed:
    """What a rank of a step holds."""
    return _STEPS[name](Sizes(rank, STEPS[name][0](ranks), Dims(**asked)), item)
