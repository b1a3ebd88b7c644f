"""A fault in every tenth iteration, or every hundredth: what the median lets through, the tail does not."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch.distributed as dist

from fixtures.check import requests
from fixtures.check.judges import judging
from fixtures.check.plan import INSIDE
from fixtures.cluster.measurement import Measurement, RankReport
from fixtures.ranks.steps import Context
from fixtures.ranks.study.calibrated import calibrated_work
from reports.record import Judgement, Outcome
from suites.collectives import steps, test_collectives
from tests.fixtures.check.answered import file_of
from tests.fixtures.check.judges.test_judging import target
from tests.fixtures.ranks.gloo_world import run_world
from tests.fixtures.scenario import HARDWARE
from tests.thresholds.files import row
from thresholds.metrics import latency

USUAL_S, SLOW_S = 0.02, 0.04
SIZE = 1 << 16
# A floor that iterations of the usual length keep on a busy machine too, and those that are slow do not.
TAILED = (
    HARDWARE.replace('plateau = ["1MiB"]', 'plateau = ["64KiB"]')
    .replace("iterations = 12", "iterations = 12\ntail_iterations = 100")
    .replace("min = 4.0", f"min = {SIZE / 1e9 / (1.8 * USUAL_S):.6f}")
    .replace("max = 0.1", "max = 0.05\nmin_samples = 100")
)


def with_a_slow_tenth(ctx: Context, parameters: dict[str, Any]) -> dict[str, Any]:
    """Sweep where each all_reduce takes as long as it is told to, and on rank 1 every tenth twice as long."""
    healthy, calls = dist.all_reduce, 0

    def all_reduce(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        until = time.perf_counter() + (SLOW_S if ctx.rank == 1 and calls % 10 == 0 else USUAL_S)
        done = healthy(*arguments, **named)
        calibrated_work(until)
        return done

    dist.all_reduce = all_reduce
    try:
        return steps.sweep(ctx, **parameters)
    finally:
        dist.all_reduce = healthy


def judged(iterations: int) -> dict[str, Judgement]:
    here = target(file_of(TAILED), INSIDE)
    request = requests.bandwidth(here)
    parameters = {**request.parameters, "sizes": [SIZE], "judged_iterations": iterations}
    results = run_world(2, lambda ctx: with_a_slow_tenth(ctx, parameters))
    ranks = tuple(RankReport(rank, "a", rank, "cpu", result) for rank, result in enumerate(results))
    measurement = Measurement(request.step, parameters, request.world, "1", "gloo", ranks, 900.0)
    points = judging.curve(measurement, here)
    found = judging.figures(points, [SIZE], ["busbw", "slow_fraction"], here, None)
    return {one.metric: one for one in found}


def test_a_fault_in_every_tenth_iteration_passes_the_median_and_fails_the_tail() -> None:
    found = judged(100)
    assert found["busbw"].outcome is Outcome.PASS, found["busbw"].sentence
    assert found["slow_fraction"].outcome is Outcome.FAIL, found["slow_fraction"].sentence
    assert (found["slow_fraction"].value or 0) >= 0.09


def test_too_few_iterations_judge_no_tail() -> None:
    found = judged(20)
    assert found["slow_fraction"].outcome is Outcome.UNCHECKED
    assert "20 samples are too few" in found["slow_fraction"].sentence


@pytest.mark.parametrize("size", [0, 4096])
def test_a_latency_has_a_tail_where_the_file_says_what_it_keeps_to(size: int) -> None:
    ceiling = row(["latency", "latency_p99"], "max = 5000.0", path="memory")
    here = target(file_of(HARDWARE + ceiling), INSIDE)
    seconds = [0.001] * 98 + [0.02, 0.02]
    points = [{"size_bytes": size, "samples": 100, "taken": {}, "figures": latency(seconds)}]
    found = {one.metric: one.outcome for one in judging.figures(points, [size], ["latency"], here, None)}
    assert found == {"latency": Outcome.PASS, "latency_p99": Outcome.FAIL}
    without = target(file_of(HARDWARE), INSIDE)
    (only,) = judging.figures(points, [size], ["latency"], without, None)
    assert only.metric == "latency"


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_one_corrupt_iteration_in_a_hundred_is_seen(backend: str) -> None:
    """Every iteration of every exact case is compared: so many that less than one run in 10,000 misses it."""
    planned = [mark for test in vars(test_collectives).values() for mark in getattr(test, "pytestmark", ())]
    cases = sum(len(mark.args[0]) for mark in planned if mark.args[0][0].step == "collectives.exact")
    iterations = cases * len(requests.ELEMENTS[backend]) * requests.EXACT_ITERATIONS[backend]
    assert 0.99**iterations < 1e-4
