"""A short chaos with a fixed seed, and that what must not be is found where it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from reports.begin import JOURNAL
from tests.chaos import in_lab
from tests.chaos.draw import draw
from tests.chaos.invariants import Ended, complaints, of_places
from tests.fixtures.scenario import Scenario
from tests.house.tree import ROOT

EVERYONE = ["n1", "n2"]


@pytest.mark.lab
@pytest.mark.usefixtures("require_lab")
def test_whatever_befalls_a_run_nothing_is_said_that_is_not_so() -> None:
    argv = [sys.executable, "-m", "tests.chaos", "--seed", "1", "--runs", "12"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("12 runs in ")


@pytest.mark.parametrize("drawing", [draw, partial(in_lab.draw, nodes=("n01", "n02", "n03", "n04"))])
def test_a_seed_draws_the_same_again_and_others_something_else(
    drawing: Callable[[int], Sequence[object]],
) -> None:
    drawn = [[*map(str, drawing(seed))] for seed in range(50)]
    assert drawn == [[*map(str, drawing(seed))] for seed in range(50)]
    assert len({*map(tuple, drawn)}) > 40
    assert {len(faults) for faults in drawn} == {1, 2}


def lines_out(*names: str) -> Callable[[Path], object]:
    """Take lines with these words out of the journal."""

    def spoil(report: Path) -> None:
        lines = (report / JOURNAL).read_text().splitlines(keepends=True)
        (report / JOURNAL).write_text("".join(one for one in lines if not any(n in one for n in names)))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "status", "said"),
    [
        (lambda report: None, 0, ""),
        (lines_out('"type":"end"'), 0, "its exit status is green, and it ended without a word"),
        (lines_out('"name":"test_present[n2]"'), 0, "n2 is accepted without evidence: "),
        (lambda report: (report / "accepted.txt").write_text("n1\n"), 0, "['n1'] are accepted"),
        (lambda report: None, 3, "its status is 3"),
    ],
)
def test_what_must_not_be_is_found(
    scenario: Scenario, spoil: Callable[[Path], object], status: int, said: str
) -> None:
    assert scenario.run().ret == 0
    spoil(scenario.out)
    found = list(complaints(Ended(scenario.out, status, "", 0), EVERYONE))
    assert any(said in one for one in found) if said else not found


def test_who_pays_for_anothers_fault_and_who_is_bad_and_accepted_are_named(scenario: Scenario) -> None:
    scenario.script.rates = {"n2": 1.0}
    assert scenario.run().ret == 1
    run = Ended(scenario.out, 1, "", 1)
    assert not any("rejected" in one for one in of_places(run, EVERYONE, {"n2"}, {"n2"}))
    assert any(
        "['n2'] had no fault, and are rejected" in one for one in of_places(run, EVERYONE, set(), set())
    )
    (scenario.out / "accepted.txt").write_text("n2\n")
    assert any("are slow or wrong" in one for one in of_places(run, EVERYONE, {"n2"}, {"n2"}))
