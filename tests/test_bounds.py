"""Exact bounds, against published values and the definition."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bounds import at_most, clopper_pearson, sentence
from tests.each import each
from tests.fuzz import examples


@each(
    ("hits", "runs", "low", "high"),
    # scipy.stats.binomtest(hits, runs).proportion_ci(method="exact")
    [
        (0, 10, 0.0, 0.30850),
        (1, 20, 0.00127, 0.24873),
        (19, 20, 0.75127, 0.99873),
        (5, 10, 0.18709, 0.81291),
        (0, 1000, 0.0, 0.00368),
        (10, 10, 0.69150, 1.0),
        (0, 30, 0.0, 0.11570),  # 1 - 0.025 ** (1 / 30)
        (30, 30, 0.88430, 1.0),
        (1, 10, 0.00253, 0.44502),
    ],
)
def test_bounds_are_the_published_ones(hits: int, runs: int, low: float, high: float) -> None:
    assert clopper_pearson(hits, runs) == pytest.approx((low, high), abs=1e-5)


@settings(max_examples=examples(25))
@given(st.data(), st.integers(min_value=1, max_value=1000))
def test_at_either_bound_the_observed_is_as_unlikely_as_the_confidence_allows(
    data: st.DataObject, runs: int
) -> None:
    hits = data.draw(st.integers(min_value=0, max_value=runs))
    low, high = clopper_pearson(hits, runs)
    assert low <= hits / runs <= high
    if hits < runs:
        assert at_most(hits, runs, high) == pytest.approx(0.025, rel=1e-6)
    if hits:
        assert 1 - at_most(hits - 1, runs, low) == pytest.approx(0.025, rel=1e-6)


@each(("count", "trials"), [(1, 0), (-1, 3), (4, 3)])
def test_what_is_no_rate_is_refused(count: int, trials: int) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        clopper_pearson(count, trials)


def test_a_rate_is_said_with_its_bounds() -> None:
    said = sentence(0, 30, "false fails")
    assert said == "false fails: 0 of 30 (0.0%), between 0.0% and 11.6% with 95% confidence (exact)"
    assert sentence(0, 0, "false fails") == "false fails: no trial"
