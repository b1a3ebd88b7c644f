"""What is planted at the size of training is what the small steps cannot see."""

from __future__ import annotations

from tests.teeth import odd
from tests.teeth.at_size import BUGS, in_small
from tests.teeth.bug import trials


def test_no_small_step_sees_what_goes_wrong_with_large_messages() -> None:
    assert [str(trial) for trial in trials([in_small(bug) for bug in BUGS]) if trial.red] == []


def test_no_even_length_shows_what_goes_wrong_with_odd_ones() -> None:
    assert [str(trial) for trial in trials([in_small(bug) for bug in odd.BUGS]) if trial.red] == []


def test_every_family_has_two_of_them() -> None:
    planted = [bug.step.partition(".")[0] for bug in BUGS]
    assert all(planted.count(family) >= 2 for family in planted)
