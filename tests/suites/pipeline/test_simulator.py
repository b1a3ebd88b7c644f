"""The orders of the schedules and their simulation, against the closed forms of their papers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest

from suites.pipeline.schedules import PLANS, Op, Plan, Shape, crossings, in_flight
from suites.pipeline.simulator import UNITS, bubble, simulate

SMALL = [(ranks, per_rank) for ranks in (2, 3, 4, 8) for per_rank in (2, 3)]


def shape_of(schedule: str, ranks: int, per_rank: int = 2) -> Shape:
    return Shape(ranks, per_rank * ranks, PLANS[schedule].chunks)


@pytest.mark.parametrize("schedule", PLANS)
@pytest.mark.parametrize(("ranks", "per_rank"), SMALL)
def test_every_stage_does_every_micro_batch_once(schedule: str, ranks: int, per_rank: int) -> None:
    shape = shape_of(schedule, ranks, per_rank)
    plan = PLANS[schedule]
    for rank in range(ranks):
        done = Counter(plan.order(shape, rank))
        assert {op.stage for op in done} == set(plan.stages_of(shape, rank))
        for stage in plan.stages_of(shape, rank):
            for i in range(shape.micro_batches):
                f, b, w, o = (done[Op(kind, stage, i)] for kind in "FIWB")
                assert (f, b, w, b + o) == (1, b, b, 1)


@pytest.mark.parametrize("schedule", PLANS)
@pytest.mark.parametrize(("ranks", "per_rank"), [*SMALL, (16, 2)])
def test_bubble_is_the_formula(schedule: str, ranks: int, per_rank: int) -> None:
    shape = shape_of(schedule, ranks, per_rank)
    assert bubble(simulate(schedule, shape)) == pytest.approx(PLANS[schedule].bubble(shape))


def test_formulas_are_those_of_the_papers() -> None:
    bubbles = {name: PLANS[name].bubble(shape_of(name, 4)) for name in PLANS}
    assert bubbles == {
        **dict.fromkeys(("gpipe", "one_f_one_b"), 3 / 8),
        "interleaved": 3 / 16,
        **dict.fromkeys(("zero_bubble", "zbv", "dualpipev"), 3 / 48),
    }


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_what_the_report_shows_is_the_formula(plan: Plan) -> None:
    shape = Shape(4, 8, plan.chunks)
    numbers = {"v": shape.chunks, "m": shape.micro_batches, "3": 3}
    factors = plan.formula.removeprefix("(p - 1)/").strip("()").split()
    assert plan.bubble(shape) == pytest.approx(3 / math.prod(numbers[factor] for factor in factors))


HELD: dict[str, Callable[[Shape, int], int]] = {  # by the papers
    "gpipe": lambda shape, rank: shape.micro_batches,
    "one_f_one_b": lambda shape, rank: shape.ranks - rank,
    "interleaved": lambda shape, rank: shape.ranks + 2 * (shape.ranks - 1 - rank) + 1,
    "zero_bubble": lambda shape, rank: shape.stages,
    "zbv": lambda shape, rank: shape.stages,
    "dualpipev": lambda shape, rank: shape.stages + 1,
}


@pytest.mark.parametrize("schedule", PLANS)
@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 512])
def test_in_flight_is_the_closed_form(schedule: str, ranks: int) -> None:
    shape = shape_of(schedule, ranks)
    for rank in {0, 1, ranks // 2, ranks - 1}:
        assert in_flight(PLANS[schedule].order(shape, rank)) == HELD[schedule](shape, rank)


def test_in_flight_can_weigh_stages() -> None:
    order = [Op("F", 0, 0), Op("F", 1, 0), Op("B", 1, 0), Op("F", 0, 1)]
    assert in_flight(order, lambda stage: 10 if stage else 3) == 13


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 512])
@pytest.mark.parametrize(
    ("schedule", "first", "inner", "last"), [("gpipe", 1, 2, 1), ("interleaved", 3, 4, 3), ("zbv", 2, 4, 2)]
)
def test_edges_to_other_ranks(schedule: str, first: int, inner: int, last: int, ranks: int) -> None:
    shape = shape_of(schedule, ranks)
    found = [crossings(PLANS[schedule], shape, rank) for rank in range(ranks)]
    assert found == [first, *[inner] * (ranks - 2), last]


def test_a_slow_rank_is_waited_for() -> None:
    shape = Shape(2, 4)
    spans = simulate("one_f_one_b", shape, lambda rank, op: UNITS[op.kind] * (2 if rank else 1))
    busy = sum(span.end_s - span.begin_s for span in spans[1])
    assert busy == 2 * 3 * shape.micro_batches
    assert spans[0][-1].end_s == 1 + busy + 2


def test_orders_that_wait_for_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLANS["gpipe"]

    def backwards_first(shape: Shape, rank: int) -> list[Op]:
        order = plan.order(shape, rank)
        return order if rank else order[::-1]

    monkeypatch.setitem(PLANS, "gpipe", plan._replace(order=backwards_first))
    with pytest.raises(ValueError, match=r"rank 0 at Op.kind='B'.*; rank 1 at Op.kind='F'"):
        simulate("gpipe", Shape(2, 2))
