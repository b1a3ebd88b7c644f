"""The whole of the tests: its parts, what took longest, and the budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests import parts
from tests.parts import STAGES, Ended, Part, alone, report, run

CHECKS = """
import os
import signal

def test_it_can_be_interrupted():
    assert not FAILS
    assert os.sched_getscheduler(0) == os.POLICY
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if os.path.exists("/proc/self/autogroup"):
        with open("/proc/self/autogroup") as group:
            assert ("nice 19" in group.read()) == ("POLICY" == "SCHED_IDLE")
    sum(range(3_000_000))
"""


def ended(
    name: str, status: int = 0, cpu_s: float = 1.0, text: str = "==== 2 passed in 3.00s ====\n"
) -> Ended:
    return Ended(Part(name, ()), status, text, 3.0, cpu_s)


def test_parts_run_beside_each_other_and_each_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LOGS", tmp_path)
    both = []
    for name, policy in (("green", "SCHED_IDLE"), ("red", "SCHED_OTHER")):
        file = tmp_path / f"test_{name}.py"
        file.write_text(CHECKS.replace("FAILS", str(name == "red")).replace("POLICY", policy))
        both.append(Part(name, (str(file),), idle=policy == "SCHED_IDLE"))
    found = {one.part.name: one for one in run(both)}
    assert {name: one.status for name, one in found.items()} == {"green": 0, "red": 1}
    assert "1 passed" in str(found["green"])
    assert "1 failed" in str(found["red"])
    assert all(0 < one.cpu_s < 60 for one in found.values())


def test_a_part_in_a_session_of_its_own_ends_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LOGS", tmp_path)
    (quick := tmp_path / "test_quick.py").write_text("def test_it(): pass\n")
    (slow := tmp_path / "test_slow.py").write_text("import time\ndef test_it(): time.sleep(600)\n")
    running = run([Part("quick", (str(quick),)), Part("slow", (str(slow),), idle=True)])
    assert next(running).part.name == "quick"
    del running
    assert "KeyboardInterrupt" in (tmp_path / "slow.log").read_text()


def test_a_stage_begins_when_only_what_is_idle_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LOGS", tmp_path)
    texts = {
        "quick": "",
        "long": f"import os, time\n    while not os.path.exists('{tmp_path}/next.ran'): time.sleep(0.01)",
        "next": f"open('{tmp_path}/next.ran', 'x')",
    }
    made = []
    for name, text in texts.items():
        (file := tmp_path / f"test_{name}.py").write_text(f"def test_it():\n    {text or 'pass'}\n")
        made.append(Part(name, (str(file),), idle=name == "long"))
    ended = [one.part.name for one in run(made[:2], made[2:])]
    assert (ended[0], sorted(ended)) == ("quick", ["long", "next", "quick"])


def test_a_part_may_have_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LOGS", tmp_path)
    text = "import os\n\ndef test_it():\n    assert os.environ['PYTEST_XDIST_WORKER_COUNT'] == '2'\n"
    (file := tmp_path / "test_workers.py").write_text(text)
    (ended,) = run([Part("workers", (str(file),), workers=2)])
    assert ended.status == 0, ended.text


def test_every_test_is_in_one_part() -> None:
    faults, rest, untimed, worlds = itertools.chain(*STAGES)
    assert untimed.paths == faults.paths
    assert faults.marks == untimed.marks.replace("and untimed", "and not untimed")
    assert rest.paths == ("tests", *(f"--ignore={path}" for one in (faults, worlds) for path in one.paths))


def test_what_runs_alone_is_looked_for_in_its_files_only(tmp_path: Path) -> None:
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "deep" / "test_a.py").write_text("@pytest.mark.alone\ndef test_a(): pass\n")
    (tmp_path / "tests" / "test_b.py").write_text("def test_b(): pass\n")
    assert alone(tmp_path).paths == ("tests/deep/test_a.py",)
    assert "tests/bench/test_warm.py" in alone().paths
    assert alone().marks == "alone"


def test_the_slowest_of_all_parts_are_told() -> None:
    texts = [
        "=== slowest 10 durations ===\n 12.50s call     tests/a.py::test_a\n1.25s setup    tests/a.py::b\n",
        "  3.00s teardown tests/c.py::test_c[x y]\n",
    ]
    assert parts.slowest(texts) == [
        "   12.5 s call tests/a.py::test_a",
        "    3.0 s teardown tests/c.py::test_c[x y]",
        "    1.2 s setup tests/a.py::b",
    ]


def test_the_whole_is_green_when_all_parts_are_and_the_budget_holds() -> None:
    status, lines = report([ended("a"), ended("b", cpu_s=2.0)], budget_cpu_s=3.0)
    assert status == 0
    assert lines[-2:] == ["a: 2 passed in 3.00s (3 s, 1 s of CPU)", "b: 2 passed in 3.00s (3 s, 2 s of CPU)"]


@pytest.mark.parametrize("red", ["a", "b"])
def test_any_red_part_turns_the_whole_red(red: str) -> None:
    assert report([ended(name, status=2 * (name == red)) for name in "ab"])[0] == 1


def test_over_the_budget_is_red_and_says_by_how_much() -> None:
    status, lines = report([ended("a"), ended("b", cpu_s=2.5)], budget_cpu_s=3.0)
    assert status == 1
    assert lines[-1] == "over the budget: 4 s of CPU where 3 are allowed (tests/parts.py)"


def test_main_runs_what_measures_this_machine_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[list[str]] = []

    def running(*stages: Sequence[Part]) -> Iterator[Ended]:
        for stage in stages:
            order.append([one.name for one in stage])
            yield from (ended(one.name, status=int(one.name == "worlds")) for one in stage)

    monkeypatch.setattr(parts, "run", running)
    assert parts.main() == 1
    assert order == [["faults", "rest"], ["untimed", "worlds"], ["alone"]]
    assert capsys.readouterr().out.splitlines()[-1] == "alone: 2 passed in 3.00s (3 s, 1 s of CPU)"
