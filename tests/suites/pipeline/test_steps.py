"""Pipelines in real worlds: every part of every schedule holds, and the bubble is the theory's."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import pipelining

from fixtures.ranks.steps import REGISTRY, Context, Unsupported
from fixtures.ranks.study.calibrated import calibrated_work
from suites.pipeline import steps, test_pipeline
from suites.pipeline.recorder import Held
from suites.pipeline.schedules import PLANS, Op, Plan, Shape, between_parts, crossings
from suites.pipeline.stages import Pipeline, Problem
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.parallel import assert_green, computed, red, run_steps
from tests.teeth.bug import replaced
from tests.teeth.pipeline import bit_zero_of

QUICK = {"width": 8, "rows": 2, "per_rank": 2, "busy_ms": 12, "repeats": 1, "most": 16}
TIMED = {**QUICK, "busy_ms": 720, "repeats": 5}
EDGES: dict[str, Any] = {
    "dtype": "bf16",
    "size_bytes": {"cpu": 1 << 16},
    "alone_bytes": 1 << 12,
    "most": 16,
    "elements": [1, 257],
    "iterations": 10,
    "budget_s": 0.2,
}
PARTS = {"load", "parity", "repeat", "traffic", "memory", "samples", "schedule"}


def test_every_part_of_every_step_holds() -> None:
    size = 4
    cases = [(f"pipeline.{name}", QUICK) for name in PLANS]
    found = assert_green(size, [*cases, ("pipeline.edges", EDGES)], ["traffic"])
    for results in found[:-1]:
        assert [set(result) for result in results] == [PARTS] * size
    for plan, results in zip(PLANS.values(), found, strict=False):
        _judged_everything(plan, size, results)
    ends = [1, *[2] * (size - 2), 1]
    assert [(one["iterations"], one["elements"]) for one in found[-1]] == [(20, 10 * 258 * n) for n in ends]
    _every_edge_once(size, found[-1])


@pytest.mark.long
def test_the_plan_has_as_many_entries_as_its_own_sizes_give() -> None:
    """Smaller sizes, as above, are those of no planned case: so these are not counted there."""
    cases = [*test_pipeline.SCHEDULES, *test_pipeline.NEIGHBOURS]
    assert_green(2, [(case.step, case.parameters) for case in cases], ["traffic"])


def _judged_everything(plan: Plan, size: int, results: list[dict[str, Any]]) -> None:
    """Order, weights, edges, and the loss on one rank: in each dtype once rounded and once to the bit."""
    shape = Shape(size, 2 * size, plan.chunks)
    for rank, result in enumerate(results):
        edges, last = crossings(plan, shape, rank), rank == plan.rank_of(shape, shape.stages - 1)
        compared = 3 * plan.chunks + edges + last
        assert len(result["parity"]) == 2 * (1 + 2 * compared)
        assert len(result["repeat"]) == 2 * (compared + len({"send", "recv"}))
        assert {(entry["op"], entry["dtype"]) for entry in result["traffic"]} == {
            (op, dtype) for op in ("send", "recv") for dtype in ("fp64", "bf16")
        }
        held = {
            f"{what}{word}" for what in ("in-flight micro-batches", "activations") for word in ("", " (bf16)")
        }
        assert held < {entry["what"] for entry in result["memory"]}
        done = result["schedule"]["operations"]
        assert [Op(*one[:3]) for one in done] == plan.order(shape, rank)
        assert all(one[3] < one[4] for one in done)
        assert (result["schedule"]["pipeline"], result["schedule"]["place"]) == (0, rank)


def _every_edge_once(size: int, results: list[dict[str, Any]]) -> None:
    found = [(one["what"], one["from"], one["to"]) for result in results for one in result["edges"]]
    forth = [("activations", rank, rank + 1) for rank in range(size - 1)]
    back = [("gradients", rank + 1, rank) for rank in range(size - 1)]
    assert sorted(found) == sorted(forth + back)
    assert all(one["to"] == rank for rank, result in enumerate(results) for one in result["edges"])


def test_a_large_world_has_several_pipelines() -> None:
    cases = [("pipeline.interleaved", {**QUICK, "most": 2}), ("pipeline.edges", {**EDGES, "most": 2})]
    found = assert_green(4, cases, ["traffic"])
    schedules = [result["schedule"] for result in found[0]]
    assert [{stage for _, stage, *_ in one["operations"]} for one in schedules] == [
        {0, 2},
        {0, 2},
        {1, 3},
        {1, 3},
    ]
    assert [(one["pipeline"], one["place"]) for one in schedules] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert any("activations from rank 0 on here" in entry["what"] for entry in found[0][2]["parity"])
    ends = [(one["from"], one["to"]) for result in found[1] for one in result["edges"]]
    assert ends == [(2, 0), (3, 1), (0, 2), (1, 3)]


def test_a_slow_edge_is_the_slow_one_by_itself() -> None:
    found = run_world(4, _with_rank_1_slow_to_rank_2)
    rates = {
        (one["what"], one["from"], one["to"]): one["gigabytes_per_s"] for result in found for one in result
    }
    slow = rates.pop(("activations", 1, 2))
    assert slow < min(rates.values()) / 2


def _with_rank_1_slow_to_rank_2(ctx: Context) -> Any:
    def make(original: Any) -> Any:
        def late(ops: Any) -> Any:
            if ctx.rank == 1 and [(op.op, op.peer) for op in ops] == [(dist.isend, 2)]:
                calibrated_work(time.perf_counter() + 0.1)
            return original(ops)

        return late

    with replaced(dist, "batch_isend_irecv", make):
        return REGISTRY["pipeline.edges"](ctx, **EDGES)["edges"]


@pytest.mark.parametrize(("rank", "what"), [(1, "activations from rank 0"), (0, "gradients from rank 1")])
def test_a_low_bit_that_flips_once_on_an_edge_is_named(rank: int, what: str) -> None:
    """In the repeat alone, so that parity is green; the gradients behind it may well round it away."""
    found = run_world(2, lambda ctx: _with_a_bit_flipped(ctx, rank))
    said = red("pipeline.one_f_one_b", found)["repeat"]
    assert said.startswith(f"{what} on here to stage {rank} at rank {rank} on here (cpu) is not the same")
    assert not [one for result in found for one in result["parity"] if one["error"] > one["tolerance"]]


def _with_a_bit_flipped(ctx: Context, rank: int) -> Any:
    with bit_zero_of(rank, receive=5 * 4 + 2)():  # the second receive of the sixth step of four micro-batches
        return REGISTRY["pipeline.one_f_one_b"](ctx, **QUICK)


@pytest.mark.quiet
def test_the_bubble_is_that_of_the_theory() -> None:
    names = ["gpipe", "one_f_one_b", "interleaved", "zbv"]
    found = run_steps(4, [(f"pipeline.{name}", TIMED) for name in names])
    figures = {
        name: computed(f"pipeline.{name}", TIMED, results) for name, results in zip(names, found, strict=True)
    }
    assert figures["gpipe"]["bubble_formula"] == figures["one_f_one_b"]["bubble_formula"] == 3 / 8
    assert abs(figures["gpipe"]["bubble_excess"]) <= 0.06
    assert abs(figures["one_f_one_b"]["bubble_excess"]) <= 0.06
    bubbles = [figures[name]["bubble"] for name in names[1:]]
    assert bubbles == sorted(bubbles, reverse=True)


@pytest.mark.quiet
def test_a_slow_edge_shows_in_the_bubble_and_not_in_the_simulation() -> None:
    """Nothing hides the way of the first activation and of the last gradient: two hops of a twelfth each."""
    found = run_world(2, _with_slow_edges)
    figures = computed("pipeline.one_f_one_b", SLOW_EDGES, found)
    assert figures["bubble_simulated"] == pytest.approx(figures["bubble_formula"], abs=0.02)
    assert figures["bubble_excess"] == pytest.approx(2 / 12, abs=0.05)


UNIT_S = 0.02
SLOW_EDGES = {**QUICK, "busy_ms": int(12 * UNIT_S * 1e3), "repeats": 3}


def _with_slow_edges(ctx: Context) -> Any:
    """Whatever is sent leaves one unit of work later."""

    def make(original: Any) -> Any:
        def late(self: Any, chunk: int) -> Any:
            ops = original(self, chunk)
            calibrated_work(time.perf_counter() + UNIT_S * bool(ops))
            return ops

        return late

    stage = pipelining.PipelineStage
    with replaced(stage, "get_fwd_send_ops", make), replaced(stage, "get_bwd_send_ops", make):
        return REGISTRY["pipeline.one_f_one_b"](ctx, **SLOW_EDGES)


@pytest.mark.parametrize(
    ("schedule", "size", "per_rank"), [("gpipe", 1, 2), ("zbv", 4, 1), ("dualpipev", 2, 1)]
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


def _made(ctx: Context) -> Pipeline:
    shape = Shape(ctx.size, 2 * ctx.size)
    problem = Problem.make(ctx, shape, 8, 2, torch.float64)
    group: Any = dist.group.WORLD
    return Pipeline(ctx, group, "one_f_one_b", shape, problem)


def _threads_of_backward(ctx: Context) -> list[bool]:
    """Whether autograd may take other threads in the backwards of a step, and after it."""
    torch.Tensor.numpy = None  # type: ignore[assignment, method-assign]  # which nodes need not have
    pipeline, seen = _made(ctx), []
    for weight in (one for module in pipeline.modules.values() for one in module.parameters()):
        weight.register_hook(lambda _: seen.append(torch._C._is_multithreading_enabled()))  # type: ignore[no-untyped-call]
    pipeline.step()
    return [any(seen), not seen, torch._C._is_multithreading_enabled()]


def test_what_backward_drops_is_gone_when_it_returns() -> None:
    assert run_world(2, _threads_of_backward) == [[False, False, True]] * 2


def _said_of_bits(ctx: Context) -> list[bool]:
    """Whether a step compares with the micro-batches on the rank alone, and that it is green."""
    torch.version.hip = "6.4"
    entries = REGISTRY["pipeline.one_f_one_b"](ctx, **QUICK)["parity"]
    return [
        any("micro-batches" in one["what"] for one in entries),
        max(one["error"] for one in entries) < 0.1,
    ]


def test_where_products_promise_no_bits_parity_is_near() -> None:
    assert run_world(2, _said_of_bits) == [[False, True]] * 2


def test_a_schedule_that_torch_does_not_have_yet_is_not_applicable() -> None:
    def without(ctx: Context) -> str:
        del pipelining.ScheduleDualPipeV
        with pytest.raises(Unsupported) as refused:
            steps.dualpipev(ctx, **QUICK)
        return str(refused.value)

    assert all("has no ScheduleDualPipeV" in said for said in run_world(2, without))


def test_backwards_wait_between_their_parts_where_weights_are_put_off() -> None:
    shape = Shape(4, 8, 2)
    found = {name: [between_parts(PLANS[name].order(shape, rank)) for rank in range(4)] for name in PLANS}
    assert found["zero_bubble"] == [1, 2, 3, 4]  # put off by as many as the rank's number
    assert found["interleaved"] == [0] * 4
    assert between_parts([Op(kind, 0, 0) for kind in "FIW"]) == 1
