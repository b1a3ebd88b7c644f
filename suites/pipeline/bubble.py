"""The bubble of a pipeline whose stages have a known length, compared with formula and simulation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
import torch.distributed as dist

from fixtures.ranks.study.overlap import timed_rounds
from suites.pipeline.schedules import BACKWARD, FORWARD, INPUT, PLANS, WEIGHT, Op, Shape
from suites.pipeline.simulator import UNITS, Span, bubble, simulate
from suites.pipeline.stages import Pipeline

_KINDS = (FORWARD, BACKWARD, INPUT, WEIGHT)
_UNITS_EACH = 3  # F, I and W of one micro-batch in one stage


def measure(
    pipeline: Pipeline, schedule: str, busy_s: float, repeats: int
) -> tuple[dict[str, float], list[Span], int]:
    """Measure the bubble with stages of known length, and compute it by formula and simulation.

    `stretch` is the largest ratio of the mean length of a rank's operations of one kind to the length that
    they are given. `posts_early` is there where more than two ranks run torch's lowered schedules, in which a
    receive is posted once its sender has its turn. Returns the figures, this rank's part of the schedule, and
    the number of rounds.
    """
    shape, recorder = pipeline.shape, pipeline.recorder
    unit_s = busy_s / (_UNITS_EACH * shape.micro_batches * shape.chunks)
    given = {kind: units * unit_s for kind, units in UNITS.items()}
    rounds: list[list[Span]] = []
    with recorder.paced(given):
        timed_rounds(pipeline.ctx, [pipeline.step], repeats, lambda: rounds.append(recorder.spans))
    spans = typical(rounds)
    ranks = _of_all_ranks(pipeline, spans)
    measured, formula = _bubble(ranks), PLANS[schedule].bubble(shape)
    figures = {
        "bubble": measured,
        "bubble_formula": formula,
        "bubble_excess": measured - formula,
        "bubble_simulated": _simulated(schedule, shape, ranks),
        "stages_in_a_row": float(shape.ranks),
        "stretch": max(
            mean_s / given[kind] for rank in ranks for kind, mean_s in zip(_KINDS, rank[2:], strict=True)
        ),
    }
    early = {"posts_early": 1.0} if shape.chunks > 1 and shape.ranks > 2 else {}
    return figures | early, spans, len(rounds)


def typical(rounds: Sequence[Sequence[Span]]) -> list[Span]:
    """Make one round of many: every wait and every operation is as long as the median of its repeats.

    So a transfer that is late once is an outlier of one wait, and not of the whole round that it delays: on a
    busy host every round has some late transfer, and even the median of whole rounds is late.
    """
    found: list[Span] = []
    free_s = 0.0
    before_s = [0.0] * len(rounds)
    for same in zip(*rounds, strict=True):
        begin_s = free_s + statistics.median(
            span.begin_s - end_s for span, end_s in zip(same, before_s, strict=True)
        )
        free_s = begin_s + statistics.median(span.end_s - span.begin_s for span in same)
        before_s = [span.end_s for span in same]
        found.append(Span(same[0].op, begin_s, free_s))
    return found


def _of_all_ranks(pipeline: Pipeline, spans: list[Span]) -> list[list[float]]:
    """Give, for every rank: when it was done, how long it was busy, and the mean length of each kind."""
    lengths = {kind: [s.end_s - s.begin_s for s in spans if s.op.kind == kind] for kind in _KINDS}
    means = [statistics.fmean(lengths[kind]) if lengths[kind] else 0.0 for kind in _KINDS]
    row = [spans[-1].end_s, sum(map(sum, lengths.values())), *means]
    mine = torch.tensor(row, dtype=torch.float64, device=pipeline.ctx.device)
    all_ranks = [torch.empty_like(mine) for _ in range(pipeline.ctx.size)]
    dist.all_gather(all_ranks, mine, group=pipeline.group)
    return [rank.tolist() for rank in all_ranks]


def _bubble(ranks: list[list[float]]) -> float:
    """Makespan over the busy time of the busiest rank, minus 1."""
    return max(rank[0] for rank in ranks) / max(rank[1] for rank in ranks) - 1


def _simulated(schedule: str, shape: Shape, ranks: list[list[float]]) -> float:
    """The bubble if only the operations, as long as they were, took time."""

    def duration(rank: int, op: Op) -> float:
        return ranks[rank][2 + _KINDS.index(op.kind)]

    return bubble(simulate(schedule, shape, duration))
