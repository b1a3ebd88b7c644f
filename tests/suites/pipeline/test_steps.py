"""Pipelines in real worlds: every part of every schedule holds, and the bubble is the theory's."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.distributed import pipelining

from fixtures.remote.calibrated import calibrated_work
from fixtures.remote.pipeline_orders import PLANS, Shape
from fixtures.remote.pipeline_stages import Held
from fixtures.remote.steps import REGISTRY, Context
from suites.pipeline import steps
from tests.fixtures.remote.gloo_world import context, run_world
from tests.suites.parallel import red, run_steps
from tests.teeth.bug import replaced

SCHEDULES = {
    "afab": "gpipe",
    "one_f_one_b": "one_f_one_b",
    "interleaved": "interleaved",
    "zero_bubble": "zero_bubble",
    "zbv": "zbv",
    "dualpipev": "dualpipev",
}
QUICK = {"width": 8, "rows": 2, "per_rank": 2, "busy_ms": 12, "repeats": 1, "most": 16}
TIMED = {**QUICK, "busy_ms": 960, "repeats": 3}
EDGES: dict[str, Any] = {
    "dtype": "bf16",
    "size_bytes": 1 << 16,
    "elements": [1, 257],
    "iterations": 10,
    "budget_s": 0.2,
}
PARTS = {"parity", "repeat", "traffic", "memory", "figures", "samples", "schedule"}


@pytest.mark.parametrize("size", [2, 4])
def test_every_part_of_every_step_holds(size: int) -> None:
    cases = [(f"pipeline.{name}", QUICK) for name in SCHEDULES]
    found = run_steps(size, [*cases, ("pipeline.edges", EDGES)])
    for (step, _), results in zip([*cases, ("pipeline.edges", EDGES)], found, strict=True):
        judged = [{part: said for part, said in one.items() if part != "schedule"} for one in results]
        assert red(step, judged) == {}, step
    for results in found[:-1]:
        assert [set(result) for result in results] == [PARTS] * size
    for name, results in zip(SCHEDULES, found, strict=False):
        _judged_everything(PLANS[SCHEDULES[name]].chunks, size, results)
    assert [len(result["parity"]) for result in found[-1]] == [1, *[2] * (size - 2), 1]


def _judged_everything(chunks: int, size: int, results: list[dict[str, Any]]) -> None:
    """Three weights per stage, by micro-batches in two dtypes and by the batch; the loss on one rank."""
    shape = Shape(size, 2 * size, chunks)
    plain = 1 + 3 * 3 * chunks
    assert sorted(len(result["parity"]) for result in results) == [*[plain] * (size - 1), plain + 2]
    operations = {len(result["schedule"]) for result in results}
    assert min(operations) >= 2 * shape.micro_batches * chunks
    for result in results:
        assert all(begin < end for *_, begin, end in result["schedule"])
        assert {"in-flight micro-batches", "activations"} < {entry["what"] for entry in result["memory"]}


def test_a_large_world_has_several_pipelines() -> None:
    step, parameters = "pipeline.interleaved", {**QUICK, "most": 2}
    (results,) = run_steps(4, [(step, parameters)])
    judged = [{part: said for part, said in one.items() if part != "schedule"} for one in results]
    assert red(step, judged) == {}
    stages = [{stage for _, stage, *_ in result["schedule"]} for result in results]
    assert stages == [{0, 2}, {0, 2}, {1, 3}, {1, 3}]


@pytest.mark.quiet
def test_the_bubble_is_that_of_the_theory() -> None:
    names = ["afab", "one_f_one_b", "interleaved", "zbv"]
    found = run_steps(4, [(f"pipeline.{name}", TIMED) for name in names])
    figures = {name: results[0]["figures"] for name, results in zip(names, found, strict=True)}
    assert figures["afab"]["bubble_formula"] == figures["one_f_one_b"]["bubble_formula"] == 3 / 8
    assert abs(figures["afab"]["bubble_excess"]) <= 0.06
    assert abs(figures["one_f_one_b"]["bubble_excess"]) <= 0.06
    bubbles = [figures[name]["bubble"] for name in names[1:]]
    assert bubbles == sorted(bubbles, reverse=True)


@pytest.mark.quiet
def test_a_slow_edge_shows_in_the_bubble_and_not_in_the_simulation() -> None:
    found = run_world(2, _with_a_slow_edge)
    for figures in found:
        assert figures["bubble_excess"] > 0.2
        assert abs(figures["bubble_simulated"] - figures["bubble_formula"]) < 0.1


def _with_a_slow_edge(ctx: Context) -> Any:
    def make(original: Any) -> Any:
        def late(self: Any, chunk: int) -> Any:
            calibrated_work(time.perf_counter() + 0.02)
            return original(self, chunk)

        return late

    with replaced(pipelining.PipelineStage, "get_fwd_send_ops", make):
        return REGISTRY["pipeline.one_f_one_b"](ctx, **{**QUICK, "busy_ms": 240})["figures"]


@pytest.mark.parametrize(
    ("schedule", "size", "per_rank"), [("afab", 1, 2), ("zbv", 4, 1), ("dualpipev", 2, 1)]
)
def test_what_is_no_pipeline_is_refused(schedule: str, size: int, per_rank: int) -> None:
    with pytest.raises(ValueError, match=rf"needs 2 ranks or more and .*, not {size} and {per_rank}"):
        REGISTRY[f"pipeline.{schedule}"](context(0, size), **{**QUICK, "per_rank": per_rank})


def test_an_edge_needs_two_ranks() -> None:
    with pytest.raises(ValueError, match="from 2 ranks on"):
        steps.edges(context(0, 1), **EDGES)


def test_activations_count_as_long_as_autograd_holds_them() -> None:
    weight = torch.ones(4, requires_grad=True)
    held = Held([weight])
    kept = []
    for _ in range(3):
        with held.forward():
            kept.append((torch.ones(4) * weight).tanh())
    assert (held.now, held.now_bytes) == (3, 3 * 32)
    kept[0].sum().backward()  # type: ignore[no-untyped-call]
    assert (held.now, held.now_bytes) == (2, 2 * 32)
    del kept
    assert (held.now, held.now_bytes, held.peak, held.peak_bytes) == (0, 0, 3, 96)
