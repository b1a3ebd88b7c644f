"""The controller computes a pipeline's figures itself, of what every rank says that it did when."""

from __future__ import annotations

from collections.abc import Callable
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

RANKS, LATE_S = 4, 0.3
CASES = {case.step.partition(".")[2]: case for case in planned.SCHEDULES}
Said = dict[str, Any]


def said(schedule: str, ranks: int = RANKS, **changed: Any) -> list[Said]:
    """What ranks say that do as they are simulated; the figures are what a liar would add."""
    asked = {**CASES[schedule].parameters, **changed}
    shape = places(schedule, asked, ranks)[0][0]
    lengths_s = given(shape, asked["busy_ms"] / 1e3)
    spans = simulate(schedule, shape, lambda _, op: lengths_s[op.kind])
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
    """Not to that of another one, whose stages are uneven."""
    two = said("gpipe", 4, most=2)
    assert judged("gpipe", two, most=2)["bubble"] is Outcome.PASS
    late = [*two[:3], delayed(two[3], LATE_S)]  # rank 3 is the end of the pipeline of ranks 1 and 3
    assert judged("gpipe", late, most=2)["bubble"] is Outcome.FAIL


BAD: dict[str, Callable[[Said], Said]] = {
    "no schedule": lambda one: {},
    "no list": lambda one: {"schedule": {"operations": 7}},
    "no times": lambda one: {"schedule": {"operations": [["F", 0, 0]]}},
    "words for times": lambda one: {"schedule": {"operations": [["F", 0, 0, "soon", "later"]]}},
    "not a number": lambda one: delayed(one, float("nan")),
    "a number that no float holds": lambda one: {"schedule": {"operations": [["F", 0, 0, 0, 10**400]]}},
    "backwards": lambda one: delayed(one, -LATE_S),
    "nothing": lambda one: {"schedule": {"operations": []}},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_rank_that_does_not_say_what_it_did_when_is_not_believed(bad: Callable[[Said], Said]) -> None:
    *others, last = said("gpipe")
    with pytest.raises(Unchecked) as why:
        judged("gpipe", [*others, bad(last)])
    assert [(one.kind, one.nodes) for one in why.value.blame] == [(BlameKind.LOST, ("n03",))]


def test_another_order_than_the_schedule_has_is_no_evidence() -> None:
    *others, last = said("gpipe")
    fewer = {"schedule": {"operations": last["schedule"]["operations"][:-1]}}
    other = {"schedule": {"operations": [[*Op("F", 9, 9), *op[3:]] for op in last["schedule"]["operations"]]}}
    for one in (fewer, other):
        with pytest.raises(Unchecked, match="rank 3 says other operations than gpipe has there"):
            judged("gpipe", [*others, one])
