"""Figures come from the slowest rank of every iteration, and from nothing that is not a time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from thresholds.metrics import (
    SampleError,
    bandwidth,
    busbw,
    busbw_factor,
    iteration_seconds,
    latency,
    slow_fraction,
)
from thresholds.units import DATA_COLLECTIVES

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
        ([[0.05], [5e-11]], "rank 1, iteration 0: 5e-11 is no time"),
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


@each(
    ("collective", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("all_to_all_v", 0.875),
        ("gather", 0.875),
        ("scatter", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
        ("bisection", 1.0),
    ],
)
def test_factors_of_eight_ranks(collective: str, factor: float) -> None:
    assert busbw_factor(collective, 8) == factor


def test_every_data_collective_has_a_factor_from_two_ranks() -> None:
    assert all(0 < busbw_factor(collective, 2) <= 1 for collective in DATA_COLLECTIVES)


def test_the_published_table_of_96_ranks_has_its_ratio() -> None:
    # coreweave/nccl-tests@cb86553 README.md: busbw / algbw = 1.979
    assert busbw_factor("all_reduce", 96) == pytest.approx(1.979, abs=5e-4)


def test_busbw_is_size_over_time_times_the_factor() -> None:
    assert busbw("all_reduce", 2, 10**9, 0.5) == pytest.approx(2.0)


@each(("collective", "ranks"), [("barrier", 8), ("all_reduce", 1), ("broadcast", 1), ("hug", 2)])
def test_what_moves_nothing_has_no_bandwidth(collective: str, ranks: int) -> None:
    with pytest.raises(ValueError, match="it has no bus bandwidth"):
        busbw_factor(collective, ranks)


@given(st.lists(st.lists(st.floats(), max_size=4), max_size=4))
def test_any_samples_make_figures_or_an_error(ranks: list[list[float]]) -> None:
    try:
        seconds = iteration_seconds(ranks)
    except SampleError:
        return
    assert all(0 < second < math.inf for second in seconds)
    assert 0 <= slow_fraction(seconds) <= 0.5
