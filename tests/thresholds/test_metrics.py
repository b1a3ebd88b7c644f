"""Figures come from the slowest rank of every iteration, and from nothing that is not a time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from thresholds.metrics import SampleError, bandwidth, iteration_seconds, latency, slow_fraction

STALLED = [0.1] * 18 + [1.0, 1.0]


def test_an_iteration_took_as_long_as_its_slowest_rank() -> None:
    assert iteration_seconds([[1.0, 5.0], [3.0, 2.0]]) == (3.0, 5.0)


@each(
    ("ranks", "words"),
    [
        ([], "no rank reported"),
        ([[], []], "no iteration"),
        ([[1.0], [1.0, 2.0]], "different numbers of iterations: 1, 2"),
        ([[1.0, math.nan], [1.0, 1.0]], "rank 0, iteration 1: nan is no time"),
        ([[1.0], [math.inf]], "rank 1, iteration 0: inf is no time"),
        ([[0.0]], "0.0 is no time"),
        ([[-1.0]], "-1.0 is no time"),
        ([["1.0"]], "'1.0' is no time"),
        ([[None]], "None is no time"),
        ([[True]], "True is no time"),
    ],
)
def test_what_is_no_time_makes_no_figure(ranks: list[list[float]], words: str) -> None:
    with pytest.raises(SampleError, match=words):
        iteration_seconds(ranks)


def test_a_median_does_not_see_stalls_and_the_others_do() -> None:
    figures = bandwidth("all_reduce", 2, 10**9, STALLED)
    assert figures["busbw"] == pytest.approx(10.0)
    assert figures["busbw_mean"] == pytest.approx(10**9 * 20 / sum(STALLED) / 1e9)
    assert figures["slow_fraction"] == pytest.approx(0.1)


def test_slow_begins_at_four_fifths_of_the_speed() -> None:
    assert slow_fraction([0.8, 0.8, 0.8, 1.0]) == 0
    assert slow_fraction([0.8, 0.8, 0.8, 1.001]) == 0.25


def test_latency_is_in_microseconds_and_its_tail_is_nearest_rank() -> None:
    assert latency(STALLED) == {"latency": pytest.approx(1e5), "latency_p99": pytest.approx(1e6)}
    hundred = [1e-6] * 99 + [1e-3]
    assert latency(hundred)["latency_p99"] == pytest.approx(1.0)
    assert latency([*hundred, 1e-3])["latency_p99"] == pytest.approx(1e3)


@each(
    ("collective", "ranks", "size", "seconds"),
    [
        ("barrier", 2, 8, [1.0]),
        ("all_reduce", 1, 8, [1.0]),
        ("all_reduce", 2, 0, [1.0]),
        ("all_reduce", 2, -8, [1.0]),
        ("all_reduce", 2, 8, []),
        ("all_reduce", 2, 8, [math.nan]),
    ],
)
def test_what_has_no_bandwidth_makes_no_figure(
    collective: str, ranks: int, size: int, seconds: list[float]
) -> None:
    with pytest.raises(SampleError):
        bandwidth(collective, ranks, size, seconds)
    if not seconds or math.isnan(seconds[0]):
        with pytest.raises(SampleError):
            latency(seconds)


@given(st.lists(st.lists(st.floats(), max_size=4), max_size=4))
def test_any_samples_make_figures_or_an_error(ranks: list[list[float]]) -> None:
    try:
        seconds = iteration_seconds(ranks)
    except SampleError:
        return
    assert all(0 < second < math.inf for second in seconds)
    assert 0 <= slow_fraction(seconds) <= 0.5
