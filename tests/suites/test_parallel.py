"""The helper of the parallel steps' tests sees what the controller would see."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from fixtures.check.plan import Entries
from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study.driver import Technique
from tests.suites import parallel
from tests.suites.parallel import assert_green, load, red, run_steps

EXACT = {"what": "loss", "error": 0.0, "tolerance": 0.0}
CALL = {"op": "all_reduce", "group": "", "count": 1, "bytes": 8, "expected_count": 1, "expected_bytes": 8}
GREEN: dict[str, Any] = {
    "parity": [EXACT],
    "repeat": [EXACT],
    "traffic": [CALL],
    "memory": [{"what": "params", "bytes": 8, "expected_bytes": 8}],
    "figures": {"bubble": 0.1},
    "samples": 3,
    "wrong": [],
}


def tiny(ctx: Context, *, error: float) -> dict[str, Any]:
    """Be wrong on the last rank."""
    return {**GREEN, "parity": [{**EXACT, "error": error if ctx.rank == ctx.size - 1 else 0.0}]}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    REGISTRY["toy.tiny"] = tiny
    yield
    del REGISTRY["toy.tiny"]


def test_all_parts_of_all_cases_are_judged_in_one_world() -> None:
    (good, bad) = run_steps(2, [("toy.tiny", {"error": 0.0}), ("toy.tiny", {"error": 0.5})])
    assert red("toy.tiny", good) == {}
    assert list(red("toy.tiny", bad)) == ["parity"]
    assert red("toy.tiny", bad)["parity"].startswith("loss at rank 1 on here")


def test_a_fault_is_said_with_its_case() -> None:
    with pytest.raises(AssertionError, match=r"toy.tiny \{'error': 0.5\} on 2 ranks: parity: loss at rank 1"):
        assert_green(2, [("toy.tiny", {"error": 0.0}), ("toy.tiny", {"error": 0.5})])
    assert len(assert_green(2, [("toy.tiny", {"error": 0.0})], parts=tuple(GREEN))[0]) == 2


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("repeat", [{**EXACT, "error": math.nan}], "not the same when it is run again"),
        ("traffic", [{**CALL, "count": 2}], "issued all_reduce: 2 calls"),
        ("memory", [], "unchecked: rank 1 on here says that its memory has no entry"),
        ("figures", {"bubble": math.nan}, "unchecked: rank 1 on here says that bubble is nan"),
        ("wrong", [{"rank": 1, "count": 2}], "wrong data at rank 1 on here"),
        ("wrong", None, "unchecked: rank 1 on here does not say whether its data were right"),
        ("parity", None, "unchecked: rank 1 on here does not say its parity"),
    ],
)
def test_each_part_is_red_for_its_own_reason(part: str, value: object, said: str) -> None:
    found = red("toy.tiny", [GREEN, {**GREEN, part: value}])
    assert list(found) == [part]
    assert said in found[part]


def test_a_part_that_only_one_rank_has_is_red_and_one_that_nobody_judges_is_an_error() -> None:
    assert list(red("toy.tiny", [GREEN, {key: GREEN[key] for key in GREEN if key != "memory"}])) == ["memory"]
    assert "['speed']" in red("toy.tiny", [{**GREEN, "speed": 1}])["error"]


def test_a_plan_that_says_too_little_is_told_how_much_there_is() -> None:
    two = {**GREEN, "repeat": [EXACT, {**EXACT, "what": "output"}]}
    with (
        mock.patch.dict(REGISTRY, {"toy.two": lambda _: two}),
        mock.patch.object(parallel, "_planned", return_value=Entries(repeat=1)),
        pytest.raises(AssertionError, match=r"repeat: it has more entries .*: repeat=2, delivered=0$"),
    ):
        assert_green(1, [("toy.two", {})])


def test_a_part_that_must_be_there_is_missed() -> None:
    with pytest.raises(AssertionError, match="speed: is missing"):
        assert_green(1, [("toy.tiny", {"error": 0.0})], parts=("speed",))


def test_what_has_no_ceiling_of_its_memory_is_known() -> None:
    load([f"{folder}.all" for folder in ("context", "expert", "mesh", "pipeline", "tensor", "zero")])
    found, kinds = set(), list[Any]([Technique])
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("suites.") and "peak" not in {
            name for base in kind.__mro__ if base is not Technique for name in vars(base)
        }:
            found.add(kind.__name__)
    assert found == {
        *("Apart", "Carried", "Edges", "Limited"),  # expert
        *("Combined", "Dense", "Mixture", "ShardedMixture", "ZeroMixture"),  # mesh
        "Stage",  # DeepSpeed's buffers are its own
    }
    assert {kind.__name__ for kind in kinds if kind.buffered} == {"Carried", "Carrying", "Stage"}
