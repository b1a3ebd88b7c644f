"""Every seeded bug turns its parts red, every healthy run is green, and no step goes without bugs."""

from __future__ import annotations

from collections import Counter

import pytest

from fixtures.ranks.steps import REGISTRY
from tests.house.tree import ROOT
from tests.suites.parallel import load
from tests.teeth.__main__ import families
from tests.teeth.bug import survivors, trials
from tests.teeth.lengths import BUGS, in_small

FAMILIES = families()
# Their faults are planted beside their own steps' tests; the self-check's step is nothing but faults.
WITHOUT = {"nodes", "collectives", "selfcheck", "soak"}
LEAST_OF_A_STEP = 2
# Mesh takes four minutes where others take one, in the largest worlds. What is late is told by the clock.
MARKS = {"mesh": [pytest.mark.long], "time": [pytest.mark.quiet]}


@pytest.mark.parametrize(
    ("family", "step"),
    [
        pytest.param(family, step, marks=MARKS.get(family, []), id=f"{family} {step}")
        for family, bugs in FAMILIES.items()
        for step in sorted({bug.step for bug in bugs})
    ],
)
def test_no_bug_survives(family: str, step: str) -> None:
    assert survivors([bug for bug in FAMILIES[family] if bug.step == step]) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_every_bug_is_named_once_and_asks_for_something(family: str) -> None:
    names = Counter((bug.step, bug.name) for bug in FAMILIES[family])
    assert [name for name, count in names.items() if count > 1] == []
    assert [bug.name for bug in FAMILIES[family] if not bug.red] == []


def test_every_step_of_every_family_has_bugs() -> None:
    folders = {path.parent.name for path in ROOT.glob("suites/*/steps.py")} - WITHOUT
    load([f"{folder}." for folder in folders])
    steps = [name for name in REGISTRY if name.partition(".")[0] in folders]
    planted = Counter(bug.step for bugs in FAMILIES.values() for bug in bugs)
    assert {name: planted[name] for name in steps if planted[name] < LEAST_OF_A_STEP} == {}


@pytest.mark.parametrize("step", sorted({bug.step for bug in BUGS}))
def test_what_is_planted_for_some_lengths_stays_green_at_others(step: str) -> None:
    """What a bug keeps while it waits may be too much memory at any length."""
    found = trials([in_small(bug) for bug in BUGS if bug.step == step])
    assert [str(trial) for trial in found if trial.red.keys() - {"memory"}] == []


def test_every_family_has_two_bugs_of_some_lengths() -> None:
    planted = Counter(bug.step.partition(".")[0] for bug in BUGS)
    assert {name: planted[name] for name in planted if planted[name] < LEAST_OF_A_STEP} == {}
    assert len(planted) == 6
