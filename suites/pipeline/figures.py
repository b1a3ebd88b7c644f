"""The bubble of a pipeline whose stages have a known length, measured, by formula and by simulation.

The controller computes it from the "schedule" of every rank: what it did when.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from suites.pipeline.issued import places
from suites.pipeline.schedules import BACKWARD, FORWARD, INPUT, PLANS, WEIGHT, Op, Shape
from suites.pipeline.simulator import UNITS, Span, bubble, simulate

_KINDS = (FORWARD, BACKWARD, INPUT, WEIGHT)
_UNITS_EACH = 3  # F, I and W of one micro-batch in one stage


def given(shape: Shape, busy_s: float) -> dict[str, float]:
    """Seconds of an operation of each kind, such that a rank is busy for `busy_s` in a round."""
    unit_s = busy_s / (_UNITS_EACH * shape.micro_batches * shape.chunks)
    return {kind: units * unit_s for kind, units in UNITS.items()}


def read(result: Mapping[str, Any]) -> list[Span]:
    """What a rank did when; LookupError, TypeError, ValueError or OverflowError if it does not say that."""
    operations = result["schedule"]["operations"]
    spans = [Span(Op(*operation), begin_s, end_s) for *operation, begin_s, end_s in operations]
    times = [time_s for span in spans for time_s in span[1:]]
    if not all(map(math.isfinite, times)) or times != sorted(times):
        raise ValueError("operations follow each other in time")
    if not any(span.end_s > span.begin_s for span in spans):
        raise ValueError("an operation takes time")
    return spans


def other_orders(step: str, asked: Mapping[str, Any], ranks: Sequence[Sequence[Span]]) -> dict[int, str]:
    """What to say of each rank that did another order than its own."""
    schedule = step.partition(".")[2]
    return {
        rank: f"says other operations than {schedule} has there"
        for rank, (shape, place) in enumerate(places(schedule, asked, len(ranks)))
        if [span.op for span in ranks[rank]] != PLANS[schedule].order(shape, place)
    }


def figures(step: str, asked: Mapping[str, Any], ranks: Sequence[Sequence[Span]]) -> dict[str, float]:
    """Of several pipelines that one whose bubble exceeds its simulation most, and the longest stages of all.

    `stretch` is the largest ratio of the mean length of a rank's operations of one kind to the length that
    they are given. `posts_early` is there where more than two ranks run torch's lowered schedules, in which a
    receive is posted once its sender has its turn.
    """
    schedule = step.partition(".")[2]
    shape, _ = places(schedule, asked, len(ranks))[0]
    pipelines = len(ranks) // shape.ranks
    each = [
        _of_one(schedule, shape, asked["busy_ms"] / 1e3, ranks[first::pipelines])
        for first in range(pipelines)
    ]
    worst = max(each, key=lambda one: one["bubble"] - one["bubble_simulated"])
    early = {"posts_early": 1.0} if shape.chunks > 1 and shape.ranks > 2 else {}
    return {**worst, "stretch": max(one["stretch"] for one in each), **early}


def _of_one(schedule: str, shape: Shape, busy_s: float, ranks: Sequence[Sequence[Span]]) -> dict[str, float]:
    lengths, wanted_s = [*map(_lengths, ranks)], given(shape, busy_s)

    def duration(rank: int, op: Op) -> float:
        return lengths[rank][op.kind]

    measured, formula = bubble(ranks), PLANS[schedule].bubble(shape)
    return {
        "bubble": measured,
        "bubble_formula": formula,
        "bubble_excess": measured - formula,
        # If only the operations, as long as they were, took time.
        "bubble_simulated": bubble(simulate(schedule, shape, duration)),
        "stages_in_a_row": float(shape.ranks),
        "stretch": max(mean_s / wanted_s[kind] for one in lengths for kind, mean_s in one.items()),
    }


def _lengths(spans: Sequence[Span]) -> dict[str, float]:
    """The mean length of a rank's operations of each kind that it has."""
    by_kind = {kind: [span.end_s - span.begin_s for span in spans if span.op.kind == kind] for kind in _KINDS}
    return {kind: fmean(lengths_s) for kind, lengths_s in by_kind.items() if lengths_s}
