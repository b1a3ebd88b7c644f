"""The whole of the tests: its parts, what took longest, and the budget."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests import parts
from tests.house.tree import ROOT
from tests.parts import STAGES, Ended, Part, alone, report, run

CHECKS = """
import signal, sys

def test_what_is_compiled_is_kept():
    assert not sys.dont_write_bytecode

def test_it_can_be_interrupted():
    assert not FAILS
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    sum(range(3_000_000))
"""


SHARES = """
import os
group = "/proc/self/autogroup"  # not every kernel has it
print(os.sched_getscheduler(0), open(group).read().split()[-1] if os.path.exists(group) else 19)
"""


def ended(
    name: str, status: int = 0, cpu_s: float = 1.0, text: str = "==== 2 passed in 3.00s ====\n"
) -> Ended:
    return Ended(Part(name, ()), status, text, 3.0, cpu_s)


def test_parts_run_beside_each_other_and_each_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LOGS", tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    both = []
    for name in ("green", "red"):
        file = tmp_path / f"test_{name}.py"
        file.write_text(CHECKS.replace("FAILS", str(name == "red")))
        both.append(Part(name, (str(file),)))
    found = {one.part.name: one for one in run(both)}
    assert {name: one.status for name, one in found.items()} == {"green": 0, "red": 1}
    assert "2 passed" in str(found["green"])
    assert "1 failed, 1 passed" in str(found["red"])
    assert all(0 < one.cpu_s < 60 for one in found.values())


class Script(Part):
    """A program in place of a pytest, which takes seconds to start."""

    def command(self) -> list[str]:
        return [sys.executable, "-S", *self.paths]


def test_a_stage_begins_when_the_one_before_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LOGS", tmp_path)
    made = []
    for name, text in {
        "quick": "pass",
        "long": "time.sleep(1)",
        "next": "assert os.path.exists(OVER)",
    }.items():
        over = f"OVER = {str(tmp_path / 'long.over')!r}"
        after = "open(OVER, 'x')\n" if name == "long" else ""
        file = tmp_path / f"{name}.py"
        file.write_text(f"import os, time\n{over}\n{text}\n{after}")
        made.append(Script(name, (str(file),)))
    ended = list(run(made[:2], made[2:]))
    assert [one.part.name for one in ended] == ["quick", "long", "next"]
    assert [one.status for one in ended] == [0, 0, 0]


def test_a_part_may_have_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LOGS", tmp_path)
    text = "import os\n\ndef test_it():\n    assert os.environ['PYTEST_XDIST_WORKER_COUNT'] == '2'\n"
    (file := tmp_path / "test_workers.py").write_text(text)
    (ended,) = run([Part("workers", (str(file),), workers=2)])
    assert ended.status == 0, ended.text


def test_every_test_is_in_one_part() -> None:
    faults, formulas, rest, untimed, worlds = itertools.chain(*STAGES)
    assert untimed.paths == faults.paths
    assert faults.marks == untimed.marks.replace("and untimed", "and not untimed")
    others = [path for one in (faults, worlds, formulas) for path in one.paths]
    assert all((ROOT / path).exists() for path in others)
    assert rest.paths == ("tests", *(f"--ignore={path}" for path in others))


class Asked(Part):
    """Says how the cores are shared out to it; a pytest that is idle takes half a minute to start."""

    def command(self) -> list[str]:
        return [sys.executable, "-S", "-c", SHARES]


def test_what_is_idle_leaves_the_cores_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LOGS", tmp_path)
    both = [Asked("usual", ()), Asked("idle", (), idle=True)]
    said = {one.part.name: one.text.split() for one in run(both)}
    assert said["idle"] == [str(os.SCHED_IDLE), "19"]
    assert said["usual"] != said["idle"]


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
    status, lines = report([ended("a"), ended("b", cpu_s=2.0)], piece_s=0.5, budget=6.0)
    assert status == 0
    assert lines[-3:] == [
        "a: 2 passed in 3.00s (3 s, 1 s of CPU)",
        "b: 2 passed in 3.00s (3 s, 2 s of CPU)",
        "in all: 3 s of CPU, 6 times a fixed piece of work, where 6 are allowed (tests/parts.py)",
    ]


@pytest.mark.parametrize("red", ["a", "b"])
def test_any_red_part_turns_the_whole_red(red: str) -> None:
    assert report([ended(name, status=2 * (name == red)) for name in "ab"], piece_s=1.0)[0] == 1


def test_over_the_budget_is_red_and_says_by_how_much() -> None:
    status, lines = report([ended("a"), ended("b", cpu_s=2.5)], piece_s=0.5, budget=6.0)
    assert status == 1
    assert lines[-1].startswith(
        "over the budget: 4 s of CPU, 7 times a fixed piece of work, where 6 are allowed"
    )


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
    assert order == [["faults", "formulas"], ["rest"], ["untimed", "worlds"], ["alone"]]
    assert capsys.readouterr().out.splitlines()[-2] == "alone: 2 passed in 3.00s (3 s, 1 s of CPU)"
