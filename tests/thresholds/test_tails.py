"""Ceilings on slow iterations see a fault that comes and goes, and leave a healthy cluster alone."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from tests.thresholds.files import GOOD, changed, faults, loaded, whole
from thresholds.hardware import Hardware
from thresholds.metrics import at_least, slow_fraction

SLOW, ONCE = 0.1, 0.01  # a fault in every tenth iteration; a daemon that wakes up in every hundredth
SWEEP = 'latency = ["16KiB"]\n'


def fails(samples: int, ceiling: float, rate: float) -> float:
    """The probability that a ceiling on their share fails so many iterations: that more than it are slow.

    Each is slow with probability `rate`. For a link that is slow in a tenth of its iterations this grows
    with their number; for a healthy one, where a daemon wakes up now and then, it falls.
    """
    return at_least(math.floor(ceiling * samples + 1e-9) + 1, samples, rate)


@given(st.integers(10, 300), st.floats(0, 0.9), st.floats(0, 1))
def test_it_is_a_probability_that_grows_with_the_rate(samples: int, ceiling: float, rate: float) -> None:
    assert 0 <= fails(samples, ceiling, rate) <= 1
    assert fails(samples, ceiling, rate / 2) <= fails(samples, ceiling, rate) + 1e-9


@each(("samples", "ceiling"), [(20, 0.1), (100, 0.05)])
def test_it_is_how_often_samples_are_over_the_ceiling(samples: int, ceiling: float) -> None:
    draw, trials = random.Random(7), 3000  # noqa: S311 - the same every time
    over = 0
    for _ in range(trials):
        seconds = [1 / 0.75 if draw.random() < SLOW else draw.gauss(1.0, 0.02) for _ in range(samples)]
        over += slow_fraction(seconds) > ceiling
    assert over / trials == pytest.approx(fails(samples, ceiling, SLOW), abs=0.03)


def test_twenty_iterations_do_not_see_what_a_hundred_do() -> None:
    assert fails(20, 0.1, SLOW) < 0.35
    assert fails(100, 0.05, SLOW) > 0.94
    assert fails(100, 0.05, ONCE) < 0.001


@each("file", [one for one in whole().values() if one.inside != "memory"])
def test_every_file_for_accelerators_sees_a_fault_in_every_tenth_iteration(file: Hardware) -> None:
    rows = [row for row in file.limits if "slow_fraction" in row.metrics]
    assert rows, f"{file.name} has no ceiling on slow iterations"
    for row in rows:
        samples = file.sweep.tail_iterations
        assert row.min_samples <= samples, row.where
        assert fails(samples, row.value, SLOW) > 0.9, row.where
        assert fails(samples, row.value, ONCE) < 0.001, row.where


def test_sizes_that_are_judged_may_be_measured_more_often() -> None:
    assert (loaded().sweep.iterations, loaded().sweep.tail_iterations) == (20, 20)
    assert loaded(changed(SWEEP, SWEEP + "iterations = 30\n")).sweep.tail_iterations == 30
    assert loaded(changed(SWEEP, SWEEP + "tail_iterations = 100\n")).sweep.tail_iterations == 100
    assert faults(changed(SWEEP, SWEEP + "tail_iterations = 9\n"))
    assert GOOD.count(SWEEP) == 1


def test_the_tail_of_the_binomial() -> None:
    assert at_least(0, 10, 0.5) == 1
    assert at_least(2, 2, 0.5) == 0.25
    assert at_least(5, 60, 0.01) == pytest.approx(3.4e-4, rel=0.1)
