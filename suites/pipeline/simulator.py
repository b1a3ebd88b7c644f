"""A discrete-event simulation of a pipeline: each rank does its order, each operation as soon as it can.

F(s, i) needs F(s - 1, i); B and I of (s, i) need the same of s + 1, at the last stage F(s, i); W(s, i)
needs I(s, i). The bubble is over ideal time: makespan / (busy time of the busiest rank) - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from suites.pipeline.schedules import BACKWARD, FORWARD, INPUT, PLANS, WEIGHT, Op, Shape

Duration = Callable[[int, Op], float]  # of an operation on a rank, in seconds (or in any unit)
UNITS = {FORWARD: 1.0, BACKWARD: 2.0, INPUT: 1.0, WEIGHT: 1.0}


class Span(NamedTuple):
    """An operation with its time."""

    op: Op
    begin_s: float
    end_s: float


def equal_units(rank: int, op: Op) -> float:
    """F = I = W = 1, on every rank."""
    return UNITS[op.kind]


def simulate(schedule: str, shape: Shape, duration: Duration = equal_units) -> list[list[Span]]:
    """Spans of every rank; orders that deadlock are refused, with what each rank waits for."""
    orders = [PLANS[schedule].order(shape, rank) for rank in range(shape.ranks)]
    spans: list[list[Span]] = [[] for _ in orders]
    ends: dict[tuple[str, int, int], float] = {}
    moving = True
    while moving:
        moving = False
        for rank, order in enumerate(orders):
            while len(spans[rank]) < len(order):
                op = order[len(spans[rank])]
                needed = _needs(op, shape.stages)
                if needed is not None and needed not in ends:
                    break
                ready_s = 0.0 if needed is None else ends[needed]
                begin_s = max(ready_s, spans[rank][-1].end_s if spans[rank] else 0.0)
                spans[rank].append(Span(op, begin_s, begin_s + duration(rank, op)))
                ends[_key(op)] = spans[rank][-1].end_s
                moving = True
    _refuse_stuck(orders, spans)
    return spans


def bubble(spans: Sequence[Sequence[Span]]) -> float:
    """Makespan over the busy time of the busiest rank, minus 1."""
    busy_s = max(sum(span.end_s - span.begin_s for span in rank) for rank in spans)
    return max(rank[-1].end_s for rank in spans) / busy_s - 1


def _key(op: Op) -> tuple[str, int, int]:
    """The next stage needs a backward's input part, whole or split."""
    return (INPUT if op.kind == BACKWARD else op.kind), op.stage, op.micro_batch


def _needs(op: Op, stages: int) -> tuple[str, int, int] | None:
    if op.kind == FORWARD:
        return (FORWARD, op.stage - 1, op.micro_batch) if op.stage else None
    if op.kind == WEIGHT:
        return INPUT, op.stage, op.micro_batch
    if op.stage == stages - 1:
        return FORWARD, op.stage, op.micro_batch
    return INPUT, op.stage + 1, op.micro_batch


def _refuse_stuck(orders: list[list[Op]], spans: list[list[Span]]) -> None:
    stuck = [
        f"rank {rank} at {order[len(done)]}"
        for rank, (order, done) in enumerate(zip(orders, spans, strict=True))
        if len(done) < len(order)
    ]
    if stuck:
        raise ValueError(f"these orders wait for each other: {'; '.join(stuck)}")
