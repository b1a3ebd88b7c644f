"""Faults are planted where and for as long as the self-check asks, and nowhere else."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest

from fixtures.ranks import steps, timing, worker
from fixtures.ranks.collectives.calls import CALLS
from fixtures.ranks.steps import Context
from fixtures.wire.messages import Answer, Case, Raised, Told
from fixtures.wire.progress import ProgressFile
from suites.collectives import steps as collectives
from suites.nodes import steps as nodes
from suites.selfcheck import plant
from suites.selfcheck import steps as selfcheck
from tests.fixtures.ranks.gloo_world import run_world
from tests.fixtures.ranks.test_worker import OneWorld
from tests.house.tree import ROOT, sources

LOADED = (collectives, nodes, selfcheck)  # their steps are registered
SUM = {"collective": "all_reduce", "dtype": "fp32"}
EXACT: dict[str, Any] = {**SUM, "elements": [1, 1023], "iterations": 3}
SWEEP: dict[str, Any] = {**SUM, "sizes": [4096], "iterations": 12, "budget_s": 5.0, "copy": False}


def answers(name: str, parameters: dict[str, Any], *kinds: tuple[str, int]) -> list[list[dict[str, Any]]]:
    """What both ranks answer with each of these faults planted, and at last with none; one list per case."""

    def rank(ctx: Context) -> list[dict[str, Any]]:
        planted = steps.REGISTRY["selfcheck.planted"]
        faults = [{"kind": kind, "rank": rank, "seconds": 0.02} for kind, rank in kinds]
        said = [planted(ctx, name=name, parameters=parameters, plant=fault) for fault in faults]
        return [*said, steps.REGISTRY[name](ctx, **parameters)]

    return [list(pair) for pair in zip(*run_world(2, rank), strict=True)]


def test_a_flipped_bit_is_in_one_rank_and_gone_afterwards() -> None:
    gathers = {**EXACT, "collective": "all_gather", "op": "sum"}
    first, second, healthy = answers("collectives.exact", gathers, ("flipped bit", 0), ("flipped bit", 1))
    assert [len(rank["wrong"]) for rank in first] == [1, 0]
    assert [len(rank["wrong"]) for rank in second] == [0, 1]
    assert second[1]["wrong"][0]["looks_like"] == "bit 0 flipped"
    assert [said[rank]["wrong"][0]["source_rank"] for rank, said in enumerate((first, second))] == [0, 1]
    assert [rank["wrong"] for rank in healthy] == [[], []]


def test_a_delay_is_in_every_iteration_and_gone_afterwards() -> None:
    slow, healthy = answers("collectives.sweep", SWEEP, ("delay", 1))
    assert min(slow[1]["sizes"][0]["seconds"]) >= 0.02
    assert min(healthy[1]["sizes"][0]["seconds"]) < 0.02


def test_a_slow_device_slows_itself_alone() -> None:
    slow, _ = answers("nodes.matmul", {"dtype": "fp32"}, ("delay", 0))
    assert all(min(entry["seconds"]) >= 0.02 for entry in slow[0]["series"])
    assert all(min(entry["seconds"]) < 0.02 for entry in slow[1]["series"])


def test_samples_are_spoiled_in_one_rank() -> None:
    missing, strange, healthy = answers(
        "collectives.sweep", SWEEP, ("missing sample", 0), ("sample that is no number", 1)
    )
    lengths = [len(rank["sizes"][0]["seconds"]) for rank in missing]
    assert lengths[0] == lengths[1] - 1
    assert [math.isnan(rank["sizes"][0]["seconds"][-1]) for rank in strange] == [False, True]
    assert not any(math.isnan(second) for rank in healthy for second in rank["sizes"][0]["seconds"])


def context(size: int = 2, device: str = "cpu") -> Context:
    place = type("Place", (), {"type": device, "__str__": lambda self: device})()
    return Context(0, size, "gloo", place, ["a"] * size, list(range(size)))


FLIP = {"kind": "flipped bit", "rank": 0, "seconds": 0.0}


@pytest.mark.parametrize(
    ("name", "ctx", "why"),
    [
        ("zero.zero1", context(), "no fault may be planted in 'zero.zero1'"),
        ("selfcheck.planted", context(), "no fault may be planted in 'selfcheck.planted'"),
        ("collectives.exact", context(size=4), "on 2 ranks on CPUs, not on 4"),
        ("collectives.exact", context(device="cuda"), "not on 2 on cuda"),
    ],
)
def test_no_fault_is_planted_elsewhere(name: str, ctx: Context, why: str) -> None:
    with pytest.raises(plant.RefusedError, match=why):
        plant.run(ctx, name, {}, FLIP)


def test_an_unknown_fault_is_no_fault_that_was_planted() -> None:
    with pytest.raises(KeyError):
        plant.run(context(), "collectives.exact", {}, {**FLIP, "kind": "gremlin"})


@pytest.mark.parametrize("kind", ["flipped bit", "delay"])
def test_a_step_that_raises_leaves_nothing_planted(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def broken(ctx: Context) -> dict[str, Any]:
        assert (dict(CALLS), timing.measure) != plant._BEFORE
        raise ArithmeticError

    monkeypatch.setitem(steps.REGISTRY, "collectives.exact", broken)
    with pytest.raises(ArithmeticError):
        plant.run(context(), "collectives.exact", {}, {**FLIP, "kind": kind})
    assert (dict(CALLS), timing.measure) == plant._BEFORE


def test_a_fault_that_is_left_on_costs_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaving(ctx: Context) -> dict[str, Any]:
        monkeypatch.setitem(CALLS, "broadcast", CALLS["all_reduce"])
        return {}

    monkeypatch.setitem(steps.REGISTRY, "collectives.exact", leaving)
    with pytest.raises(RuntimeError, match="is still there after it"):
        plant.run(context(), "collectives.exact", {}, FLIP)


@pytest.mark.parametrize("planted", [False, True])
def test_an_order_for_another_step_plants_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    monkeypatch.setenv("RANK", "0")
    seen: list[bool] = []

    def honest(ctx: Context, *, size: int) -> dict[str, Any]:
        seen.append((dict(CALLS), timing.measure) == plant._BEFORE)
        return {}

    monkeypatch.setitem(steps.REGISTRY, "probe.honest", honest)
    parameters = {"size": 1, **({"plant": FLIP} if planted else {})}
    order = Case("1", 1, "probe.honest", parameters, 20.0, 0.0, "1/1", (0,), ("a",), (0,))
    told: list[Told] = []
    worker.answer(order, OneWorld(0), ProgressFile(tmp_path / "progress"), told.append)
    assert type(told[-1]) is (Raised if planted else Answer)
    assert seen == ([] if planted else [True])


def test_only_the_self_check_leads_to_faults() -> None:
    named = {path.as_posix() for path in sources(ROOT, "fixtures", "suites") if _imports_plant(ROOT / path)}
    assert named == {"suites/selfcheck/steps.py"}


def test_no_environment_and_no_file_is_read() -> None:
    tree = ast.parse((ROOT / "suites/selfcheck/plant.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"math", "signal", "time", "torch"}
    assert not {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & {"open", "os", "environ"}


def _imports_plant(path: Path) -> bool:
    return any(
        isinstance(node, ast.ImportFrom) and any(alias.name == "plant" for alias in node.names)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
