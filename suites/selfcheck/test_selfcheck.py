"""The suite can fail: a planted fault is found, named for what it is, and blamed on the rank that has it.

Without this nothing that the same run says of a node can be trusted. It comes first, belongs to every
workload and cannot be deselected. The hang is the last: it ends the job of the others.
"""

from __future__ import annotations

from fixtures.blame.selfcheck.selfcheck import DATA, DEVICE, LINK, RANKS, Control
from fixtures.blame.selfcheck.site import UNREACHABLE
from fixtures.check.check import over
from fixtures.check.plan import APART, Case
from reports.record import BlameKind

PLANTED = [Case("selfcheck.planted", weight=0.0)]


@over(PLANTED, APART)
def test_what_is_healthy_passes(control: Control) -> None:
    """What is healthy passes: its data are right, and it holds a floor made of its own speed."""
    for subject in (DATA, LINK, DEVICE):
        control.passes(subject)


@over(PLANTED, APART)
def test_a_corrupted_element_is_wrong_data_of_its_rank(control: Control) -> None:
    """One flipped bit in one element of one iteration is wrong data, and of the rank that has it."""
    for rank in RANKS:
        control.sees_a_flipped_bit(rank)


@over(PLANTED, APART)
def test_a_slow_rank_misses_a_floor_and_is_named(control: Control) -> None:
    """A rank that computes slowly misses its floor and is named."""
    for rank in RANKS:
        control.sees_a_delay(DEVICE, rank, BlameKind.NODE)


@over(PLANTED, APART)
def test_a_collective_that_one_rank_slows_misses_its_floor_and_names_nobody(control: Control) -> None:
    """A collective that one rank slows misses its floor, and its timing is evidence against nobody."""
    control.sees_a_delay(LINK, 1)


@over(PLANTED, APART)
def test_a_floor_that_nothing_can_meet_is_missed(control: Control) -> None:
    """A floor that nothing can meet is missed."""
    control.misses(LINK, UNREACHABLE)


@over(PLANTED, APART)
def test_a_missing_sample_cannot_be_judged(control: Control) -> None:
    """A sample that is missing, or no number, leaves its case unchecked; who says none is not believed."""
    control.cannot_judge("missing sample", 0)
    control.cannot_judge("sample that is no number", 1, BlameKind.LOST)


@over(PLANTED, APART)
def test_a_hang_names_the_rank_that_did_not_arrive(control: Control) -> None:
    """A hang names the rank that did not arrive, and the phase that it did not leave."""
    control.names_who_hangs(1, "phase exact 1 elements")
