"""An outlier among equals needs both: to lie outside the spread, and by more than a margin behind."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.each import each
from tests.thresholds.files import GOOD, faults, loaded
from thresholds.peers import (
    CUT,
    DEFAULT,
    MARGIN,
    by_value,
    majority,
    median_and_spread,
    near_median,
    standing,
)
from thresholds.units import METRICS

SPEEDS = st.lists(st.floats(0.1, 1000.0), min_size=4, max_size=40)
TABLE = """
[peers]
margin = 0.03
margins = { tflops = 0.12 }
least = 4
without_limit = "mfu"
source = "what the test says"
"""


def outliers(values: Sequence[float], margin: float, more: bool = True) -> list[int]:
    found = [standing(one, values, more_is_better=more) for one in values]
    return [index for index, one in enumerate(found) if one.outlier(margin)]


def test_one_that_is_far_behind_is_found_and_one_that_is_far_ahead_is_not() -> None:
    healthy = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8]
    assert outliers([*healthy, 90.0], 0.05) == [7]
    assert outliers([*healthy, 110.0], 0.05) == []
    assert outliers([*healthy, 90.0], 0.05, more=False) == []
    assert outliers([*healthy, 110.0], 0.05, more=False) == [7]


@each(("value", "found"), [(94.0, True), (96.0, False)])
def test_where_all_others_are_equal_the_margin_decides(value: float, found: bool) -> None:
    assert bool(outliers([100.0] * 7 + [value], 0.05)) is found


def test_a_wide_spread_hides_what_a_margin_alone_would_convict() -> None:
    assert outliers([80.0, 90.0, 100.0, 110.0, 120.0, 85.0, 115.0], 0.05) == []


def test_of_half_that_are_bad_nobody_is_seen() -> None:
    assert outliers([100.0, 100.0, 100.0, 80.0, 80.0, 80.0], 0.05) == []
    assert outliers([100.0] * 3 + [80.0] * 4, 0.05) == []


@given(SPEEDS, st.floats(0.01, 0.5), st.booleans())
def test_never_half_are_convicted_and_nobody_within_the_margin(
    values: list[float], margin: float, more: bool
) -> None:
    found = outliers(values, margin, more)
    assert 2 * len(found) <= len(values)
    for index in found:
        one = standing(values[index], values, more_is_better=more)
        assert (values[index] < one.median) is more
        assert one.behind > margin


@given(SPEEDS, st.floats(0.01, 0.5), st.floats(0.01, 100.0), st.randoms())
def test_neither_the_unit_nor_the_order_matters(
    values: list[float], margin: float, factor: float, order: random.Random
) -> None:
    places = [standing(one, values, more_is_better=True) for one in values]
    assume(all(abs(one.z - CUT) > 1e-6 and abs(one.behind - margin) > 1e-6 for one in places))
    shuffled = list(values)
    order.shuffle(shuffled)
    before = {values[index] for index in outliers(values, margin)}
    assert {shuffled[index] for index in outliers(shuffled, margin)} == before
    scaled = [one * factor for one in values]
    assume(all(abs(standing(one, scaled, more_is_better=True).z - CUT) > 1e-6 for one in scaled))
    assert outliers(scaled, margin) == outliers(values, margin)


@given(SPEEDS)
def test_a_speed_and_its_time_say_the_same_of_who_is_behind(values: list[float]) -> None:
    for one in values:
        speed = standing(one, values[:1] * 3 + [one], more_is_better=True)
        times = [1 / other for other in values[:1] * 3 + [one]]
        assert speed.behind == pytest.approx(standing(1 / one, times, more_is_better=False).behind)


@each(
    ("values", "most"),
    [
        ("", ""),
        ("a", "0"),
        ("ab", ""),
        ("aab", "01"),
        ("abab", ""),
        ("abb", "12"),
        ("abac", ""),
        ("abaca", "024"),
    ],
)
def test_a_majority_is_more_than_half(values: str, most: str) -> None:
    by_name = {str(place): value for place, value in enumerate(values)}
    assert "".join(majority(by_name)) == most
    assert sorted(name for group in by_value(by_name) for name in group) == list(by_name)


@given(SPEEDS)
def test_a_value_may_stand_beside_others_of_which_it_is_none(values: list[float]) -> None:
    middle, spread = median_and_spread(values)
    assume(spread == 0 or spread > 1e-6 * middle)
    one = standing(middle - 4 * spread, values, more_is_better=True)
    assert (one.median, one.peers) == (middle, len(values))
    assert one.z == pytest.approx(4.0 if spread else 0.0)


def test_numbers_near_their_median_are_told_by_a_share_of_it() -> None:
    values = {"a": 100.0, "b": 102.0, "c": 97.0, "d": 101.0, "e": 102.1}
    assert near_median(values, 0.02) == ["a", "b", "d", "e"]
    assert near_median({"a": 0.0, "b": 0.0, "c": 1.0}, 0.02) == ["a", "b"]


def convicted(
    nodes: int, bad: int, fault: float, margin: float, *, trials: int = 400, sigma: float = 0.01
) -> tuple[float, float]:
    """The shares of trials in which a healthy node is convicted, and in which every bad one is.

    Of the healthy ones the slowest is the first to be convicted, of the bad ones the fastest the last.
    """
    draw = random.Random(20)  # noqa: S311 - the same every time
    wrong = right = 0
    for _ in range(trials):
        values = [draw.gauss(1.0, sigma) * (1 - fault if index < bad else 1) for index in range(nodes)]
        wrong += standing(min(values[bad:]), values, more_is_better=True).outlier(margin)
        if bad:
            right += standing(max(values[:bad]), values, more_is_better=True).outlier(margin)
    return wrong / trials, right / trials


@each(("nodes", "expected"), [(4, 0.086), (8, 0.077), (16, 0.058), (64, 0.045)])
def test_the_spread_alone_convicts_healthy_nodes_and_with_the_margin_hardly_any(
    nodes: int, expected: float
) -> None:
    alone, _ = convicted(nodes, 0, 0.0, margin=0.0, trials=2000)
    assert alone == pytest.approx(expected, abs=0.02)
    assert convicted(nodes, 0, 0.0, MARGIN, trials=2000)[0] == 0


def test_of_a_thousand_nodes_the_spread_alone_convicts_one_in_many_runs() -> None:
    assert convicted(1024, 0, 0.0, margin=0.0, trials=200)[0] == pytest.approx(0.25, abs=0.08)
    assert convicted(1024, 0, 0.0, margin=0.03, trials=200, sigma=0.007)[0] <= 0.02
    assert convicted(1024, 0, 0.0, MARGIN, trials=200)[0] == 0


@each(
    ("nodes", "bad", "least", "most"),
    [
        (4, 1, 0.9, 1.0),
        (4, 2, 0.0, 0.0),
        (8, 2, 0.88, 1.0),
        (8, 3, 0.35, 0.8),
        (16, 4, 0.93, 1.0),
        (8, 4, 0.0, 0.0),
    ],
)
def test_the_power_falls_with_the_share_of_bad_nodes(nodes: int, bad: int, least: float, most: float) -> None:
    """A tenth slower beside a spread of 1 %: nearly always found, never where half are bad."""
    _, power = convicted(nodes, bad, 0.10, margin=0.03)
    assert least <= power <= most


def test_a_file_names_margins() -> None:
    assert loaded().peers is None
    rules = loaded(GOOD + TABLE).peers
    assert rules is not None
    assert (rules.least, rules.without_limit, rules.source) == (4, ["mfu"], "what the test says")
    assert (rules.margin_of("tflops"), rules.margin_of("busbw")) == (0.12, 0.03)
    assert (DEFAULT.margin_of("busbw"), DEFAULT.margin_of("tflops")) == (0.05, 0.10)
    assert all(0 < DEFAULT.margin_of(metric) < 1 for metric in METRICS)


@each(
    ("old", "new"),
    [
        ("margin = 0.03", "margin = 0"),
        ("margin = 0.03", "margin = 1.0"),
        ("margin = 0.03", "margin = nan"),
        ("tflops = 0.12", "flops = 0.12"),
        ("tflops = 0.12", "tflops = -0.1"),
        ("least = 4", "least = 3"),
        ('"mfu"', '"mfus"'),
        ("margin = 0.03", "margn = 0.03"),
        ('source = "what the test says"', ""),
    ],
)
def test_a_table_that_says_nothing_sensible_is_refused(old: str, new: str) -> None:
    assert TABLE.count(old) == 1
    assert faults(GOOD + TABLE.replace(old, new))


def test_who_shares_a_machine_is_inherited() -> None:
    assert loaded().shared == ""
    text = GOOD.replace('inside = "nvlink"\n', 'inside = "nvlink"\nshared = "everybody"\n', 1)
    assert loaded(text).shared == "everybody"
