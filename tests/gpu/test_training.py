"""Points about training on a processor: they run the suite's steps, and its judges turn them red."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fixtures.ranks.study import fitting, parity
from fixtures.ranks.study.traffic import Traffic
from suites.tensor import test_tensor
from tests.gpu import hanging, training
from tests.gpu.frame import GREEN, IMPOSSIBLE, RED, Point, all_of
from tests.gpu.test_points import looked
from tests.suites import parallel, test_closed_forms

COLUMN = test_tensor.STEPS[:1]
MLP = test_tensor.AT_SIZE[:1]
ENTRY = {"what": "loss", "error": 0.0, "tolerance": 0.0}
NOTHING = {"op": "all_gather", "count": 0, "bytes": 0, "expected_count": 4, "expected_bytes": 64, "group": ""}
parallel.load(["tensor."])  # here once, and not in every point
importlib.import_module("torch._dynamo")
TOLD: dict[str, Any] = {
    "parity": [ENTRY],
    "repeat": [ENTRY],
    "traffic": [{**NOTHING, "expected_count": 0, "expected_bytes": 0}],
    "memory": [{"what": "peak", "bytes": 5, "at_most_bytes": 6}],
    "figures": {},
}


def test_what_is_counted_is_held_to_the_closed_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(case.step, case.parameters) for case in COLUMN]
    monkeypatch.setitem(test_closed_forms.CASES, "tensor", cases)
    point = partial(training.counting, families=["tensor"])
    assert looked(point, tmp_path / "right").words.startswith("1 runs of a step issue and hold")
    monkeypatch.setattr(Traffic, "totals", lambda _: {"all_gather": (7, 7)})
    assert looked(point, tmp_path / "wrong").colour == RED
    assert looked(partial(training.counting, families=[]), tmp_path / "none").colour == RED


def test_small_steps_run_and_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = partial(training.small, cases=COLUMN)
    assert looked(point, tmp_path / "right").colour == GREEN
    monkeypatch.setattr(parity, "entry", lambda what, *_: {"what": what, "error": 1.0, "tolerance": 0.1})
    said = looked(point, tmp_path / "wrong")
    assert "tensor.column: parity: " in said.words
    assert said.colour == RED


def test_a_step_at_size_runs_and_what_does_not_fit_is_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = partial(training.at_size, cases=MLP)
    assert looked(point, tmp_path / "right").words == "1 runs of a step are right, 0 of them with a peak"
    assert '"step_seconds": ' in (tmp_path / "right" / "point" / "figures.jsonl").read_text()
    monkeypatch.setattr(fitting, "free_bytes", lambda _: 0.0)
    said = looked(point, tmp_path / "small")
    assert said.colour == IMPOSSIBLE
    assert said.words.startswith("tensor.mlp: a rank needs ")


@pytest.mark.parametrize(
    ("step", "spoil", "words"),
    [
        ("zero.zero1", {}, []),
        ("zero.zero1", {"parity": [{**ENTRY, "error": 1.0}]}, ["zero.zero1: parity: "]),
        (
            "zero.zero1",
            {"memory": [{"what": "peak", "bytes": 7, "at_most_bytes": 6}]},
            ["zero.zero1: memory: "],
        ),
        ("zero.zero1", {"traffic": [NOTHING]}, ["zero.zero1: traffic: "]),
        ("zero.fsdp", {"traffic": [NOTHING]}, []),
        ("zero.fsdp", {"figures": {"step_seconds": -float("inf")}}, ["zero.fsdp: figures: unchecked"]),
    ],
)
def test_the_suites_judges_say_what_is_wrong(step: str, spoil: Mapping[str, Any], words: list[str]) -> None:
    said = training.judged(step, {}, {**TOLD, **spoil})
    assert [one[: len(word)] for one, word in zip(said, words, strict=True)] == words


def test_an_answer_without_one_of_its_parts_is_wrong() -> None:
    for part in ("parity", "repeat", "traffic", "memory"):
        told = {name: said for name, said in TOLD.items() if name != part}
        assert training.judged("zero.zero1", {}, told) == [f"zero.zero1: {part}: missing"]


@pytest.mark.long
def test_on_a_processor_all_of_them_are_green_and_so_is_a_hang(tmp_path: Path) -> None:
    wanted = (training.counting, training.small, training.at_size, hanging.hang)
    points = [Point(point.__name__, point, 600.0) for point in wanted]
    assert {said.colour for said in all_of(points, tmp_path, "cpu")} == {GREEN}
