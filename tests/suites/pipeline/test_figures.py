"""The controller computes a pipeline's figures itself, of what every rank says that it did when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fixtures.check.judges import formulas
from fixtures.cluster.measurement import Unchecked
from reports.record import BlameKind, Outcome
from suites.pipeline import test_pipeline as planned
from suites.pipeline.figures import given
from suites.pipeline.issued import places
from suites.pipeline.schedules import PLANS, Op
from suites.pipeline.simulator import simulate
from tests.fixtures.check.answered import aimed, answered, measured

RANKS, LATE_S, A_LITTLE_S = 4, 0.3, 0.15
CASES = {case.step.partition(".")[2]: case for case in planned.SCHEDULES}
Said = dict[str, Any]


def said(
    schedule: str, ranks: int = RANKS, uneven: Mapping[int, str] | None = None, **changed: Any
) -> list[Said]:
    """What ranks say that do as they are simulated; the figures are what a liar would add.

    In `uneven` are, by place in a pipeline, the kinds of operations that take twice their time.
    """
    asked = {**CASES[schedule].parameters, **changed}
    shape = places(schedule, asked, ranks)[0][0]
    lengths_s = given(shape, asked["busy_ms"] / 1e3)

    def duration(place: int, op: Op) -> float:
        return lengths_s[op.kind] * (1 + (op.kind in (uneven or {}).get(place, "")))

    spans = simulate(schedule, shape, duration)
    operations = [[[*span.op, span.begin_s, span.end_s] for span in rank] for rank in spans]
    pipelines = ranks // shape.ranks
    return [
        {"schedule": {"operations": operations[rank // pipelines]}, "figures": {"bubble_simulated": 9.0}}
        for rank in range(ranks)
    ]


def judged(schedule: str, results: list[Said], **changed: Any) -> dict[str, Outcome]:
    case = CASES[schedule]
    nodes = [f"n{rank:02}" for rank in range(len(results))]
    measurement = measured(case.step, nodes, results, {**case.parameters, **changed})
    found = formulas.judge(answered(measurement, aimed(measurement, holds=case.holds)))
    return {one.metric: one.outcome for one in found.judgements}


@pytest.mark.parametrize("schedule", PLANS)
def test_ranks_that_wait_as_their_order_makes_them_hold_the_formula(schedule: str) -> None:
    assert judged(schedule, said(schedule)) == {"bubble": Outcome.PASS, "stretch": Outcome.PASS}


def operations_of(one: Said) -> list[Any]:
    return list(one["schedule"]["operations"])


def delayed(one: Said, by_s: float, last: int = 1) -> Said:
    """The same, but the `last` operations begin later."""
    operations = one["schedule"]["operations"]
    late = [[*op, begin_s + by_s, end_s + by_s] for *op, begin_s, end_s in operations[-last:]]
    return {**one, "schedule": {"operations": operations[:-last] + late}}


@pytest.mark.parametrize("schedule", PLANS)
def test_a_wait_that_no_order_explains_fails_whatever_ranks_say_is_expected(schedule: str) -> None:
    *others, last = said(schedule)
    assert judged(schedule, [*others, delayed(last, LATE_S)])["bubble"] is Outcome.FAIL


def test_a_pipeline_is_held_to_its_own_simulation() -> None:
    """Not to that of another one, which has a larger bubble because its stages are uneven."""
    even, uneven = (said("gpipe", uneven=kinds, most=2) for kinds in ({}, {0: "F", 1: "B"}))
    for last, outcome in ((even[3], Outcome.PASS), (delayed(even[3], A_LITTLE_S), Outcome.FAIL)):
        both = [uneven[0], even[1], uneven[2], last]  # rank r is in pipeline r % 2
        assert judged("gpipe", both, most=2)["bubble"] is outcome


BAD: dict[str, Callable[[Said], Said]] = {
    "no schedule": lambda one: {},
    "no list": lambda one: {"schedule": {"operations": 7}},
    "no times": lambda one: {"schedule": {"operations": [["F", 0, 0]]}},
    "words for times": lambda one: {"schedule": {"operations": [["F", 0, 0, "soon", "later"]]}},
    "not a number": lambda one: delayed(one, float("nan")),
    "a number that no float holds": lambda one: {"schedule": {"operations": [["F", 0, 0, 0, 10**400]]}},
    "backwards": lambda one: delayed(one, -LATE_S),
    "no time": lambda one: {"schedule": {"operations": [[*op[:3], 1.0, 1.0] for op in operations_of(one)]}},
    "nothing": lambda one: {"schedule": {"operations": []}},
    "fewer than the schedule has": lambda one: {"schedule": {"operations": operations_of(one)[:-1]}},
    "other stages": lambda one: {
        "schedule": {"operations": [[op[0], 9, 9, *op[3:]] for op in operations_of(one)]}
    },
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_rank_that_does_not_say_what_it_did_when_is_not_believed(bad: Callable[[Said], Said]) -> None:
    *others, last = said("gpipe")
    with pytest.raises(Unchecked) as why:
        judged("gpipe", [*others, bad(last)])
    assert [(one.kind, one.nodes) for one in why.value.blame] == [(BlameKind.LOST, ("n03",))]


@pytest.mark.parametrize("bad", ["fewer than the schedule has", "other stages"])
def test_another_order_than_the_schedule_has_is_no_evidence(bad: str) -> None:
    *others, last = said("gpipe")
    with pytest.raises(Unchecked, match="rank 3 on n03 says other operations than gpipe has there"):
        judged("gpipe", [*others, BAD[bad](last)])
