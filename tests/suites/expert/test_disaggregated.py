"""Any number of attention and of expert ranks, in every dtype, and both sides as busy as the formula says."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study import overlap
from fixtures.ranks.study.calibrated import Work, calibrated_work
from fixtures.ranks.study.driver import EXACT
from fixtures.ranks.study.overlap import timed_rounds
from suites.expert.disaggregated import figures
from suites.expert.disaggregated.model import problem
from suites.expert.disaggregated.passes import (
    Log,
    Pace,
    Pending,
    Sides,
    receive,
    sides,
    stage,
)
from suites.expert.disaggregated.trial import batch_rows, expected_traffic
from suites.expert.issued import attention_ranks
from suites.expert.routing import Shape
from tests.fixtures.ranks.gloo_world import context, replace, run_world
from tests.suites.parallel import assert_green, computed, load
from tests.teeth.expert import APART, PATTERN

SHARES = {4: ((1, 3), (3, 1)), 6: ((1, 2),)}


@pytest.mark.parametrize("size", SHARES)
def test_any_share_of_attention_and_experts_holds(size: int) -> None:
    cases = [
        case
        for share in SHARES[size]
        for case in (
            ("expert.m2n", {**APART, "routing": "skewed", "share": share}),
            ("expert.m2n_speed", {**PATTERN, "share": share}),
        )
    ]
    found = assert_green(size, cases, parts=("parity", "repeat", "traffic", "figures", "wrong"))
    tolerances = {entry["what"]: entry["tolerance"] for entry in found[0][0]["parity"]}
    assert 0 < tolerances["fp32:forwards"] < 1e-5 < tolerances["bf16:forwards"] < 0.1
    assert {line["dtype"] for line in found[0][0]["traffic"]} == {"fp64", "fp32", "bf16"}
    assert {"m2n_us_4096", "all_to_all_us_4096", "pattern"} <= found[1][0]["figures"].keys()


def paced_in_a_fixed_order(ctx: Context) -> bool:
    fixed = list[bool]()

    def noting(*rounds: Any) -> object:
        fixed.append(torch.are_deterministic_algorithms_enabled())
        return timed_rounds(*rounds)

    setattr(torch.cuda, "is_available", lambda: True)  # noqa: B010 - in its own process
    setattr(overlap, "timed_rounds", noting)  # noqa: B010
    REGISTRY["expert.m2n"](ctx, **{**APART, "routing": "skewed", "share": (1, 1)})
    return fixed == [True]


def test_passes_with_a_known_length_add_in_the_same_order_as_the_one_that_they_must_equal() -> None:
    load(["expert.m2n"])
    assert all(run_world(2, paced_in_a_fixed_order))


def test_a_side_is_never_without_ranks() -> None:
    shares = [(1, 1), (1, 3), (3, 1), (1, 100), (100, 1)]
    assert [attention_ranks(4, one) for one in shares] == [2, 1, 3, 1, 3]
    assert [attention_ranks(8, one) for one in ((2, 6), (6, 2), (3, 5))] == [2, 6, 3]
    assert attention_ranks(2, (3, 1)) == 1
    with pytest.raises(ValueError, match="cannot share ranks 0 to 1"):
        attention_ranks(4, (0, 1))


@pytest.mark.parametrize(
    ("attention", "experts"), [(1, 1), (1, 3), (3, 1), (2, 6), (6, 2), (32, 32), (128, 384)]
)
def test_every_message_of_uneven_sides_has_two_ends(attention: int, experts: int) -> None:
    ranks = attention + experts
    roles = Sides(range(attention), range(attention, ranks), None, None)
    shape = Shape(4, 8, 4, 2 * experts, 2)
    made = problem(context(0, ranks), "skewed", shape, EXACT, layers=2, micro_batches=2, ranks=attention)
    rows = batch_rows(made, roles)
    totals = [expected_traffic(made, roles, rows, rank) for rank in range(ranks)]
    for part in (0, 1):
        assert sum(one["send"][part] for one in totals) == sum(one["recv"][part] for one in totals)
    passes = made.depth * 2 * attention  # micro-batches of all attention ranks in all layers
    row_bytes = 2 * passes * shape.tokens * shape.top_k * shape.hidden * 8  # there and back, fp64
    assert sum(one["send"][1] for one in totals) == row_bytes + passes * shape.experts * 8


@pytest.mark.quiet
def test_both_sides_are_as_busy_as_the_formula_says() -> None:
    paced = {**APART, "layers": 6, "stage_ms": 40.0}
    cases = [("expert.m2n", {**paced, "micro_batches": count}) for count in (1, 2, 3)]
    found = assert_green(2, cases)
    measured = [computed(*case, results) for case, results in zip(cases, found, strict=True)]
    for one in measured:
        for side in ("attention", "expert"):
            assert one[f"{side}_utilisation"] == pytest.approx(one[f"expected_{side}_utilisation"], abs=0.1)
    assert measured[0]["utilisation"] < 0.6 < measured[1]["utilisation"] < measured[2]["utilisation"]


def test_the_controller_makes_the_figures_of_what_all_ranks_timed() -> None:
    """Two layers, stages of 10 ms and 20 ms, transfers of 5 ms; the pass of two took 100 ms, not 90."""
    told = [(0.08, 0.01, 0.1, 0.01), (0.079, 0.02, 0.099, 0.02)]
    asked = {"layers": 2, "micro_batches": 2}
    found = figures.figures("expert.m2n", asked, [figures.read({"paced": one}) for one in told])
    assert found["expected_span_ms"] == pytest.approx(10 + 20 + 2 * 5 + 20 * 3)
    assert found["span_ms"] == pytest.approx(100.0)
    assert found["gain"] == pytest.approx(1.6)
    assert found["utilisation"] == found["attention_utilisation"] == pytest.approx(0.4)


@pytest.mark.parametrize("paced", [(1.0, 1.0, 1.0), (1.0, 1.0, 0.0, 1.0), (1.0, "1", 1.0, 1.0), None])
def test_seconds_that_are_none_are_not_believed(paced: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        figures.read({"paced": paced})


def waited_for(monkeypatch: pytest.MonkeyPatch, *waits_s: float) -> list[float]:
    """Seconds of stages of no length, when a GPU has to be waited for before each, and after."""
    left_s = iter(waits_s)
    settles = lambda _: calibrated_work(time.perf_counter() + next(left_s))  # noqa: E731
    monkeypatch.setattr("suites.expert.disaggregated.passes.settle", settles)
    monkeypatch.setattr("fixtures.ranks.timing.complete", lambda _: next(iter(())))  # the whole device
    ctx, log = context(0, 2), Log()
    for _ in range(len(waits_s) // 2):
        with stage(ctx, log, Pace(Work(ctx.device))):
            pass
    return log.stages


def test_what_a_stage_waits_for_before_it_begins_is_not_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = waited_for(monkeypatch, 0.1, 0.0, 0.0, 0.1)
    assert first < 0.05
    assert second >= 0.1


def batches(ctx: Context) -> list[list[str]]:
    """What a rank issues together when every attention rank sends to every expert rank."""
    seen: list[list[str]] = []
    real = dist.batch_isend_irecv

    def noted(operations: list[dist.P2POp]) -> list[dist.Work]:
        seen.append([one.op.__name__ for one in operations])
        return list(real(operations))

    replace("batch_isend_irecv", noted)
    with sides(ctx, 2) as roles:
        rows, pending = torch.zeros(2, 4), Pending()
        if ctx.rank in roles.attention:
            pending.send(rows.unbind(0), roles.experts, roles.dispatch)
        else:
            receive(list(rows.unbind(0)), roles.attention, roles.dispatch)
        pending.finish()
    return seen


def test_transfers_to_different_peers_are_issued_together() -> None:
    assert run_world(4, batches) == [[["isend"] * 2]] * 2 + [[["irecv"] * 2]] * 2
