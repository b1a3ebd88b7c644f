"""A node tried for a moment: what it computes is compared, and how fast it did so is said."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from fixtures.blame.links.probe import REPEATS
from fixtures.blame.links.single_nodes import COMPARABLE, speeds
from fixtures.cluster.measurement import Measurement, RankReport, World
from fixtures.ranks.steps import Context
from reports.record import Outcome
from suites.nodes import steps
from tests.fixtures.ranks.gloo_world import run_world
from tests.suites.nodes import judging
from tests.teeth.patches.flips import flip


def probe(ctx: Context) -> Any:
    return steps.probe(ctx, repeats=REPEATS)


def spoiled(call: int) -> Any:
    """Probe with a bit flipped in one product of rank 0."""

    def run(ctx: Context) -> Any:
        real, calls = torch.mm, iter(range(1, 10000))

        def mm(*args: Any, **kwargs: Any) -> torch.Tensor:
            result = real(*args, **kwargs)
            if ctx.rank == 0 and "out" not in kwargs and next(calls) == call:
                flip(result, 3, 0)
            return result

        torch.mm = mm
        return probe(ctx)

    return run


def measured(answers: list[Any]) -> Measurement:
    ranks = tuple(RankReport(rank, "here", rank, "cpu", answer) for rank, answer in enumerate(answers))
    return Measurement("nodes.probe", {"repeats": REPEATS}, World(("here",)), "1", "gloo", ranks, 0.1)


@pytest.mark.parametrize("size", [1, 2])
def test_a_healthy_node_says_its_speeds_and_computes_the_same_every_time(size: int) -> None:
    measurement = measured(run_world(size, probe))
    assert [rank.result["wrong"] for rank in measurement.ranks] == [[]] * size
    judged = judging.judge(measurement, "digests").judgements
    assert {one.outcome for one in judged} == {Outcome.PASS}
    for metrics in COMPARABLE.values():
        found = speeds(measurement, metrics)
        assert {metric for metric, _, _ in found} == set(metrics)
        assert all(speed > 0 for speed in found.values())


@pytest.mark.parametrize(("backend", "speed"), [("gloo", 2.0), ("nccl", 1.0)])
def test_a_cpu_that_others_interrupt_counts_by_what_they_left_it(backend: str, speed: float) -> None:
    """Of 21 products most took twice as long; on a GPU, which nobody shares, that is how fast it is."""
    series = {"metric": "tflops", "what": "fp32", "load": "alone", "amount": 2.0}
    answer = {"series": [{**series, "seconds": [2.0] * 15 + [1.0] * 6}]}
    measurement = replace(measured([answer]), backend=backend)
    assert list(speeds(measurement, ("tflops",)).values()) == [speed]
    slow = replace(measured([{"series": [{**series, "seconds": [2.0] * 21}]}]), backend=backend)
    assert list(speeds(slow, ("tflops",)).values()) == [1.0]


def test_a_product_that_differs_from_its_repeats_is_wrong() -> None:
    first, second = run_world(2, spoiled(2))
    assert [wrong["rank"] for wrong in first["wrong"]] == [0]
    assert first["wrong"][0]["looks_like"] == "bit 0 flipped"
    assert second["wrong"] == []


@pytest.mark.quiet
def test_a_probe_takes_less_than_half_a_second_on_a_cpu() -> None:
    def timed(ctx: Context) -> float:
        probe(ctx)  # what torch loads the first time
        began = time.perf_counter()
        probe(ctx)
        return time.perf_counter() - began

    assert run_world(1, timed)[0] < 0.5
