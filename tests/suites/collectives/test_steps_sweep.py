"""A sweep returns what was asked of every size, and the transport step hands over what moved."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from fixtures.ranks.collectives.collectives import exchange
from fixtures.ranks.steps import REGISTRY, Context, Unsupported
from fixtures.wire.collectives import COLLECTIVES
from suites.collectives import steps, transport
from tests.fixtures.ranks.gloo_world import run_world

SIZES = [256, 4096, 1 << 16]


def test_the_steps_are_registered_under_their_names() -> None:
    names = {f"collectives.{name}" for name in ("exact", "sweep", "identity", "link", "pairs", "transport")}
    assert {name for name in REGISTRY if name.startswith("collectives.")} == names


def test_every_collective_returns_all_samples_of_all_sizes() -> None:
    def run(ctx: Context) -> Any:
        asked: Any = {"dtype": "bf16", "sizes": SIZES, "iterations": 12, "budget_s": 20}
        return {
            name: steps.sweep(ctx, collective=name, copy=name == "gather", **asked) for name in COLLECTIVES
        }

    for answers in run_world(3, run):
        for name, answer in answers.items():
            assert [size["size_bytes"] for size in answer["sizes"]] == SIZES
            assert [len(size["seconds"]) for size in answer["sizes"]] == [12, 12, 12]
            assert all(seconds > 0 for size in answer["sizes"] for seconds in size["seconds"])
            assert all(size["warmup"] >= 2 for size in answer["sizes"])
            assert answer["wrong"] == []
            assert (answer["copy_gigabytes_per_s"] is not None) == (name == "gather")


def test_ranks_are_connected_before_roots_take_turns_in_what_is_timed() -> None:
    """NCCL connects two ranks by their first message; in a ring they have met after the warm-up."""

    def run(ctx: Context) -> Any:
        calls: list[str] = []

        def noted(name: str) -> Any:
            original = getattr(dist, name)

            def call(*args: Any, **options: Any) -> Any:
                calls.append(name)
                return original(*args, **options)

            return call

        asked: Any = {"dtype": "fp32", "sizes": [64], "iterations": 10, "budget_s": 5, "copy": False}
        found = {}
        for name in ("gather", "scatter", "broadcast"):
            calls.clear()
            with ExitStack() as stack:
                for one in ("all_to_all_single", name):
                    stack.enter_context(mock.patch.object(dist, one, noted(one)))
                steps.sweep(ctx, collective=name, **asked)
            found[name] = calls[0], calls.count("all_to_all_single")
        return found

    for found in run_world(2, run):
        assert found == {
            "gather": ("all_to_all_single", 1),
            "scatter": ("all_to_all_single", 1),
            "broadcast": ("broadcast", 0),
        }


def test_a_size_that_is_slow_has_its_fewest_iterations_and_not_many_more() -> None:
    asked: Any = {"collective": "all_reduce", "dtype": "fp32", "sizes": [64], "judged": [64], "copy": False}

    def run(ctx: Context) -> Any:
        return steps.sweep(ctx, **asked, iterations=99, judged_iterations=99, budget_s=0.0, fewest=30)

    assert [len(answer["sizes"][0]["seconds"]) for answer in run_world(2, run)] == [30, 30]


def test_a_barrier_is_swept_and_unsupported_cases_say_so() -> None:
    asked: Any = {"iterations": 11, "budget_s": 5, "copy": False}

    def run(ctx: Context) -> Any:
        with pytest.raises(Unsupported, match="the backend says: Invalid scalar type"):
            steps.sweep(ctx, collective="all_gather", dtype="fp8_e5m2", sizes=[64], **asked)
        return steps.sweep(ctx, collective="barrier", dtype="fp32", sizes=[0], **asked)

    for answer in run_world(2, run):
        assert [(size["size_bytes"], len(size["seconds"])) for size in answer["sizes"]] == [(0, 11)]
        assert answer["wrong"] == []


def test_the_transport_step_measures_a_checked_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([{"net:eth0": 5}, {"net:eth0": 9000}])
    seen: list[Any] = []

    def describe(backend: str, before: Any, after: Any, payload_bytes: int, **shape: int) -> dict[str, Any]:
        seen.extend([backend, before, after, payload_bytes, shape])
        return {"network": "sockets"}

    monkeypatch.setattr(transport, "read_counters", lambda *sysfs: next(readings))
    monkeypatch.setattr(transport, "describe", describe)

    def run(ctx: Context) -> Any:
        return steps.transport(ctx, size_bytes=1 << 12), seen

    for answer, described in run_world(2, run):
        assert answer == {"transport": {"network": "sockets"}, "wrong": []}
        payload = (1 << 12) * 5 // 2
        assert described == ["gloo", {"net:eth0": 5}, {"net:eth0": 9000}, payload, {"ranks": 2, "nodes": 1}]


def test_the_buffers_of_a_size_are_gone_before_those_of_the_next_are_made() -> None:
    def run(ctx: Context) -> Any:
        made: list[weakref.ref[Any]] = []
        alive: list[int] = []

        def noted(*args: Any, **options: Any) -> Any:
            alive.append(sum(one() is not None for one in made))
            work = exchange(*args, **options)
            made.append(weakref.ref(work))
            return work

        asked: Any = {"collective": "all_reduce", "dtype": "fp32", "sizes": SIZES, "copy": False}
        with mock.patch("suites.collectives.steps.exchange", noted):
            steps.sweep(ctx, **asked, iterations=10, budget_s=20)
        return alive

    assert run_world(2, run) == [[0, 0, 0]] * 2
