"""DeepEP as an engine: held to the same where every rank has it, n/a where none has, refused in between."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from fixtures.check.workload import ENGINES
from fixtures.ranks.engines import engine
from fixtures.ranks.steps import REGISTRY, Context, Unsupported
from suites.expert.engine import load as tokens_of
from suites.expert.routing import Shape
from suites.expert.test_expert import ENGINE as PLANNED
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.parallel import assert_green, load
from tests.teeth.expert import ENGINE


def test_the_engine_is_held_to_what_torch_is_held_to() -> None:
    cases = [("expert.deepep", {**ENGINE, "routing": kind}) for kind in ("balanced", "skewed", "one_hot")]
    found = assert_green(4, cases, parts=("parity", "repeat", "traffic", "memory", "figures", "wrong"))
    assert {"dispatch", "combine", "dispatch_us", "combine_us"} <= found[0][0]["figures"].keys()


def unsupported(ctx: Context, **more: Any) -> str:
    load(["expert."])
    with pytest.raises(Unsupported) as why:
        REGISTRY["expert.deepep"](ctx, **{**ENGINE, **more})
    return str(why.value)


def test_where_no_rank_can_import_it_the_case_is_not_applicable() -> None:
    said = run_world(2, lambda ctx: unsupported(ctx, module="deep_ep_that_nobody_has"))
    words = (
        "deep_ep_that_nobody_has is not importable on the nodes: No module named 'deep_ep_that_nobody_has'"
    )
    assert said == [words, words]


def test_a_number_of_ranks_without_kernels_is_not_applicable() -> None:
    said = run_world(3, unsupported)
    assert {one.partition(": ")[2] for one in said} == {"Unsupported number of EP ranks: 3"}


def test_another_version_without_the_interface_is_as_good_as_none() -> None:
    def one(ctx: Context) -> str:
        sys.modules["newer"] = ModuleType("newer")
        sys.modules["newer"].__version__ = "2.5"  # type: ignore[attr-defined]
        return unsupported(ctx, module="newer")

    assert run_world(1, one)[0].endswith("newer 2.5 has no Buffer")


def test_ranks_that_lack_what_others_have_are_named_and_nobody_waits() -> None:
    def one(ctx: Context) -> str:
        if ctx.rank != 1:
            sys.modules["rare"] = ModuleType("rare")
        with pytest.raises(RuntimeError) as why:
            engine(ctx, "rare")
        return str(why.value)

    said = run_world(3, one)
    assert said[0] == said[2] == "rare can be used on some ranks and not on 1 on here"
    assert said[1] == f"{said[0]}; here: No module named 'rare'"


def test_a_module_that_is_there_and_broken_is_no_missing_one(tmp_path: Any) -> None:
    (tmp_path / "broken.py").write_text("import a_library_that_it_needs\n")

    def one(ctx: Context) -> str:
        sys.path.insert(0, str(tmp_path))
        with pytest.raises(RuntimeError) as why:
            engine(ctx, "broken")
        return str(why.value)

    assert "here: No module named 'a_library_that_it_needs'" in run_world(1, one)[0]


@pytest.mark.parametrize("size", [2, 4, 8, 64])
def test_every_token_is_sent_once_to_every_rank_that_it_needs(size: int) -> None:
    shape = Shape(4, 8, 1, 2 * size, 2)
    given = tokens_of(context(0, size), "skewed", shape)
    arrived = [given.at(rank) for rank in range(size)]
    rows = sum(len(one[0]) for one in arrived)
    assert rows == sum(int(given.visited(rank).float().sum()) for rank in range(size))
    assert sum(int((one[1] >= 0).sum()) for one in arrived) == size * shape.tokens * shape.top_k
    weights = sum(float(one[2].double().sum()) for one in arrived)
    assert weights == pytest.approx(sum(float(one.double().sum()) for one in given.weights))
    assert all(torch.isfinite(one[0].float()).all() for one in arrived)


def test_its_cases_are_planned_only_when_asked_for() -> None:
    assert ENGINES["deepep"] == "expert"
    assert {case.engine for case in PLANNED} == {"deepep"}
    assert {case.parameters["routing"] for case in PLANNED} == {"balanced", "skewed"}
