"""Points about the machine on a processor and on recorded answers: what is wrong turns each of them red."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.cluster.measurement import Measurement, RankReport, Unchecked, World
from fixtures.node.inventory.tools import COMMANDS, Answers
from fixtures.ranks import timing
from fixtures.ranks.exact import payload
from tests.fixtures.node.inventory.h100_node import write_node
from tests.gpu import hanging, points
from tests.gpu.frame import GREEN, RED, Here, Impossible, Point, Said, all_of


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path, "cpu")


def looked(point: Callable[[Here], str], place: Path, device: str = "cpu") -> Said:
    [said] = all_of([Point("point", point)], place, device)
    return said


# what the tools print


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    """What nvidia-smi of eight H100 printed."""
    write_node(tmp_path / "node")
    names = ("log", "nvlink", "topology")
    return {name: (tmp_path / "node" / "answers" / name).read_text() for name in names}


def answers(texts: Mapping[str, str]) -> Answers:
    return Answers(texts, {name: f"{command[0]} is not installed" for name, command in COMMANDS.items()})


def test_recorded_answers_are_read_and_kept(here: Here, texts: dict[str, str]) -> None:
    assert points.read(here, answers(texts)).startswith("8 GPUs; not told: ")
    assert {path.name for path in here.place.glob("*.txt")} == {f"{name}.txt" for name in texts}
    assert len(json.loads((here.place / "figures.jsonl").read_text().splitlines()[1])["gpus"]) == 8


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("log", lambda text: text[: len(text) // 2], "not understood"),
        ("topology", lambda text: "", "topo -m was not understood"),
        ("nvlink", lambda text: text.replace("GB/s", "furlongs"), "nvlink -s was not understood"),
    ],
)
def test_an_answer_that_is_not_understood_is_red(
    here: Here, texts: dict[str, str], name: str, spoil: Callable[[str], str], words: str
) -> None:
    with pytest.raises(AssertionError, match=words):
        points.read(here, answers({**texts, name: spoil(texts[name])}))


def test_a_tool_that_fails_is_red_and_none_is_not_possible(here: Here) -> None:
    with pytest.raises(Impossible, match="neither nvidia-smi nor amd-smi"):
        points.read(here, answers({}))
    failed = Answers({}, {**answers({}).failures, "log": "status 9"})
    with pytest.raises(AssertionError, match="printed nothing: status 9"):
        points.read(here, failed)


# the suite itself

VERDICT: dict[str, Any] = {
    "counts": {"checks": {"pass": 3, "unchecked": 2}},
    "blame": [],
    "not_reported": [],
    "hardware": "h100-sxm5-ndr400",
    "nodes": [{"reasons": ["one is slow"]}],
}


def test_a_run_without_limits_accepts_nobody_and_finds_nothing_wrong() -> None:
    assert "'pass': 3" in points.measured(2, VERDICT)
    for status, more in (
        (0, {}),
        (1, {}),
        (2, {"blame": ["a"]}),
        (2, {"not_reported": ["b"]}),
        (2, {"counts": {"checks": {"fail": 1}}}),
    ):
        with pytest.raises(AssertionError, match=f"status {status}"):
            points.measured(status, {**VERDICT, **more})


def test_a_run_that_is_judged_must_accept() -> None:
    assert points.judged(0, VERDICT, 8) == "accepted by h100-sxm5-ndr400"
    with pytest.raises(AssertionError, match=r"status 1 by h100-sxm5-ndr400: .*one is slow"):
        points.judged(1, VERDICT, 8)
    with pytest.raises(Impossible, match=r"no hardware file recognises this machine: .*one is slow"):
        points.judged(2, {**VERDICT, "hardware": "not recognised"}, 1)
    with pytest.raises(Impossible, match=r"is of 8 GPUs, and here are 1: .*one is slow"):
        points.judged(1, VERDICT, 1)


# groups, clock, payloads


def test_groups_are_made_and_left_and_memory_that_stays_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "ROUNDS", 6)
    said = looked(points.process_groups, tmp_path / "healthy")
    assert (said.colour, said.words.partition(" s a round, ")[2]) == (GREEN, "drift 0 bytes")
    monkeypatch.setattr(points, "DRIFT_BYTES", -1)
    assert looked(points.process_groups, tmp_path / "lost").colour == RED


def test_clocks_that_differ_are_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "SPINS_S", (0.001,))
    monkeypatch.setattr(points, "BARRIERS", 20)
    taken = {"host": 0.0100, "device": 0.0102, "lockstep": 0.0101}

    def measure(ctx: object, work: timing.Work, count: int, budget_s: float, name: str) -> timing.Samples:
        work.run(0)
        return timing.Samples([taken[name]] * count, 0, count - 1)

    monkeypatch.setattr(timing, "measure", measure)
    assert looked(points.clock, tmp_path / "alike").words.startswith("clocks at most 1.0% apart; barrier ")
    taken["lockstep"] = 0.0150
    assert "are 49.0% apart" in looked(points.clock, tmp_path / "apart").words


def test_a_payload_with_a_flipped_bit_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "COUNT", 1003)
    assert looked(points.payloads, tmp_path / "right", "cpu:0").colour == GREEN
    real = payload.pattern

    def flipped(*about: Any) -> torch.Tensor:
        made = real(*about)
        if about[-1].index == 0:
            made[0, 500] ^= 1
        return made

    monkeypatch.setattr(payload, "pattern", flipped)
    said = looked(points.payloads, tmp_path / "wrong", "cpu:0")
    assert said.colour == RED
    assert "elements that differ: fp64 moved: 1, " in said.words


# a hang

RANK = RankReport(0, "localhost", 0, "GPU-7", {})
FIRST = Measurement("nodes.present", {}, World(("localhost",)), "1", "nccl", (RANK,), 0.1)
TOLD = Unchecked("hang", "steps.py, line 17 in behind\n#1 of group 0: nccl:all_reduce", sign="hang")
AGAIN = replace(FIRST, job="2")


def test_a_hang_is_told_by_name_and_the_card_is_free() -> None:
    assert hanging.seen(FIRST, TOLD, AGAIN, 5.2, 8.0).startswith("ended after 5.2 s")
    elsewhere = replace(AGAIN, ranks=(dataclasses.replace(RANK, device="GPU-8"),))
    for told, again, seconds, next_s, words in (
        (FIRST, AGAIN, 5.2, 8.0, "was answered"),
        (Unchecked("raised", TOLD.detail, sign="raised"), AGAIN, 5.2, 8.0, "called 'raised'"),
        (Unchecked("hang", "nccl:all_reduce", sign="hang"), AGAIN, 5.2, 8.0, "does not show the step"),
        (Unchecked("hang", "in behind", sign="hang"), AGAIN, 5.2, 8.0, "has no all_reduce"),
        (TOLD, AGAIN, 1.0, 8.0, "before its deadline"),
        (TOLD, Unchecked("lost"), 5.2, 8.0, "not free"),
        (TOLD, FIRST, 5.2, 8.0, "went on"),
        (TOLD, elsewhere, 5.2, 8.0, "elsewhere"),
        (TOLD, AGAIN, 5.2, 90.0, "began after 90.0 s"),
    ):
        with pytest.raises(AssertionError, match=words):
            hanging.seen(FIRST, told, again, seconds, next_s)
