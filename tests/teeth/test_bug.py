"""The planting itself: what is caught, what survives, and what breaks a world."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study import driver, parity
from fixtures.ranks.study.traffic import count_traffic
from tests.fixtures.ranks import gloo_world
from tests.fixtures.ranks.gloo_world import run_world
from tests.teeth import __main__ as command
from tests.teeth import bug as bug_module
from tests.teeth.bug import HEALTHY, Bug, Trial, healthy, replaced, survivors, trials

STEP = "toy.sum"


def toy(ctx: Context) -> dict[str, Any]:
    """Sum the ranks' numbers."""
    numbers = torch.arange(4, dtype=torch.float64) + ctx.rank
    want = torch.arange(4, dtype=torch.float64) * ctx.size + sum(range(ctx.size))
    with count_traffic() as seen:
        dist.all_reduce(numbers)
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError("not finite")
    traffic = seen.table({"all_reduce": (1, 32)})
    return {"parity": [parity.entry("sum", numbers, want)], "traffic": traffic}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    REGISTRY[STEP] = toy
    yield
    del REGISTRY[STEP]


def nothing(original: Any) -> Any:
    return lambda *arguments, **named: None


def twice(original: Any) -> Any:
    def call(tensor: torch.Tensor) -> None:
        original(tensor)
        original(tensor)

    return call


def raising(original: Any) -> Any:
    def call(tensor: torch.Tensor) -> None:
        if dist.get_rank() == 1:
            tensor.fill_(float("nan"))
        original(tensor)

    return call


def bug(name: str, make: Any, *red: str, size: int = 2) -> Bug:
    return Bug(name, STEP, {}, functools.partial(replaced, dist, "all_reduce", make), red, size)


MISSING = bug("the sum is left out", nothing, "parity", "traffic")
TWICE = bug("summed twice", twice, "traffic", "parity")
REFUSED = bug("not a number", raising, "error")
HARMLESS = bug("nothing is wrong", lambda original: original, "parity")


def test_bugs_are_caught_named_and_leave_the_next_ones_a_healthy_world() -> None:
    found = trials([REFUSED, MISSING, TWICE, REFUSED, MISSING])
    assert [trial.bug.name for trial in found] == [
        HEALTHY,
        *(one.name for one in (REFUSED, MISSING, TWICE, REFUSED, MISSING)),
    ]
    assert [trial.survived for trial in found] == [()] * 6
    assert dict(found[0].red) == {}
    assert "rank 0 on here" in found[2].red["parity"]
    assert (
        "issued all_reduce: 0 calls of 0 bytes in all, and the closed form says 1 calls"
        in (found[2].red["traffic"])
    )
    assert "ValueError: not finite" in found[1].red["error"]


def test_a_bug_is_judged_by_what_it_asks_for_and_one_that_asks_for_nothing_by_everything_and_alone() -> None:
    asked = trials([bug("summed twice", twice, "traffic")])
    assert [(trial.bug.name, list(trial.red)) for trial in asked] == [
        (HEALTHY, []),
        ("summed twice", ["traffic"]),
    ]
    (alone,) = trials([bug("summed twice", twice)])
    assert list(alone.red) == ["parity", "traffic"]


def test_a_step_runs_in_the_dtype_that_shows_a_bug_and_goes_on_in_fp64_where_it_needs_that() -> None:
    def dtypes(**more: Any) -> Any:
        with bug_module._as_little(replace(MISSING, **more)):
            return driver.Technique.dtypes

    assert dtypes() == (torch.float64,)
    assert dtypes(narrow=True) == (torch.bfloat16,)
    assert dtypes(narrow=True, step="zero.ddp") == dtypes(timed=True) == (torch.float64, torch.bfloat16)
    mixed = [MISSING, replace(MISSING, narrow=True), TWICE]
    assert [one.dtypes for one in healthy(mixed)] == [(torch.float64,), (torch.bfloat16,)]


def test_a_rank_that_fails_while_the_others_wait_for_it_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gloo_world, "LAST_WORDS_S", 0.1)
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"^rank 1: (.*\n)*ZeroDivisionError"):
        run_world(2, lambda ctx: 1 // (1 - ctx.rank) and dist.barrier())
    assert time.monotonic() - began < gloo_world.GLOO_S / 2


def test_worlds_have_the_size_that_a_bug_asks_for() -> None:
    assert survivors([bug("the sum is left out", nothing, "parity", size=4), MISSING]) == []


def test_a_survivor_is_told() -> None:
    (told,) = survivors([HARMLESS])
    assert told == "nothing is wrong in toy.sum {} on 2 ranks: all is green"


def test_a_healthy_run_that_is_not_green_is_a_survivor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: None)
    assert survivors([MISSING])[0].startswith("healthy in toy.sum {} on 2 ranks: parity: sum at rank")


def test_a_method_is_put_back_as_it_was() -> None:
    class Parent:
        def inherited(self) -> str:
            return "parent"

    class Child(Parent):
        @staticmethod
        def own() -> str:
            return "own"

    before = vars(Child)["own"]
    with replaced(Child, "own", lambda original: lambda *_: original() + "!"):
        assert Child().own() == "own!"
    with replaced(Child, "inherited", lambda original: lambda self: original(self) + "!"):
        assert Child().inherited() == "parent!"
    assert vars(Child)["own"] is before
    assert "inherited" not in vars(Child)


def test_the_table_says_what_is_caught_and_what_is_not() -> None:
    lines = list(
        command.table(
            [
                Trial(MISSING, {"parity": "the sum is far away", "traffic": "x"}),
                Trial(HARMLESS, {"traffic": "x"}),
                Trial(bug(HEALTHY, nothing), {"repeat": "not the same"}),
            ]
        )
    )
    assert lines[1].endswith("the sum is far away")
    assert lines[2].endswith("SURVIVES: parity stays green (traffic is red)")
    assert "NOT GREEN: healthy in toy.sum {} on 2 ranks: repeat: not the same" in lines[3]
    assert lines[4] == "1 of 2 bugs in 1 steps are caught; 1 healthy runs are not green"


def test_a_world_that_cannot_be_formed_catches_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = iter([True, False, True, True, True, True])

    def forming(size: int, function: Any) -> list[Any]:
        if next(fails):
            raise AssertionError("rank 0: connectFullMesh failed")
        return run_world(size, function)

    monkeypatch.setattr(bug_module, "run_world", forming)
    assert survivors([MISSING]) == []
    with pytest.raises(AssertionError, match="no world of 2 could be formed: rank 0: connectFullMesh"):
        survivors([MISSING])


def test_the_command_prints_the_table_and_fails_when_one_survives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "families", lambda: {"good": [MISSING], "bad": [MISSING, HARMLESS]})
    assert command.main(["good"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 of 1 bugs in 1 steps are caught")
    assert command.main([]) == 1
    assert "SURVIVES: parity stays green" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        command.main(["ugly"])
    assert "no such family: ugly; there is: good, bad" in capsys.readouterr().err
