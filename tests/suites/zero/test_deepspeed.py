"""DeepSpeed's stages, on a module with its interface: green, n/a without it, and nothing is left behind."""

from __future__ import annotations

import os

import pytest

from fixtures.check.check import over
from fixtures.check.plan import INSIDE, Topology, plan
from fixtures.check.workload import ENGINES, Workload
from fixtures.ranks.steps import REGISTRY, Context, Unsupported
from fixtures.ranks.study.traffic import Call, Traffic
from suites.zero.deepspeed import build_in_job, totals
from suites.zero.test_zero import DEEPSPEED, TRAINED
from tests.fixtures.ranks.gloo_world import run_world
from tests.suites.parallel import assert_green, load

STUB = "tests.suites.zero.deepspeed_stub"
CASES = [(case.step, {**case.parameters, "module": STUB}) for case in DEEPSPEED]


def test_every_part_of_every_stage_holds_and_leaves_no_group_of_its_own() -> None:
    assert_green(4, CASES, parts=("parity", "repeat", "traffic", "memory", "figures", "wrong"))


def test_without_it_the_case_is_not_applicable() -> None:
    def refused(ctx: Context) -> str:
        with pytest.raises(Unsupported) as why:
            REGISTRY["zero.deepspeed"](ctx, **{**CASES[0][1], "module": "deepspeed_is_not_here"})
        return str(why.value)

    load(["zero.deepspeed"])
    assert "deepspeed_is_not_here is not importable" in run_world(2, refused)[0]


def test_its_cases_are_planned_when_asked_for() -> None:
    mark, topology = over(TRAINED, INSIDE).mark, Topology({"a": 2})
    assert not [item.id for item in plan(mark, topology) if "deepspeed" in item.id]
    asked = [
        item.id for item in plan(mark, topology, Workload("", (), ("deepspeed",))) if "deepspeed" in item.id
    ]
    assert asked == [f"deepspeed-stage{stage}-inside-a" for stage in (1, 2, 3)]
    assert ENGINES["deepspeed"] == "zero"


def test_what_it_compiles_goes_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("SHAKEDOWN_JOB", "/job")
    build_in_job()
    monkeypatch.setenv("SHAKEDOWN_JOB", "/other")
    build_in_job()
    assert os.environ.pop("TORCH_EXTENSIONS_DIR") == "/job/extensions"


def test_all_bytes_are_in_one_of_the_sums() -> None:
    kinds = ("all_reduce", "reduce_scatter", "all_gather", "send")
    calls = [Call(kind, 100, (0, 1)) for kind in kinds] + [Call("all_reduce", 8, (0, 1))]
    lines = totals(Traffic(calls), 200, 400)
    assert [line["bytes"] for line in lines] == [200, 100, 100]
    assert [line["expected_bytes"] for line in lines] == [200, 400, 0]
