"""Selectors match what they say, and two rows overlap exactly when some case matches both."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from thresholds.selectors import READERS, Selector, counts, overlap, sizes

COUNTS = st.one_of(
    st.integers(1, 9),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.tuples(st.integers(1, 9), st.integers(0, 4)).map(lambda ends: f"{ends[0]}..{ends[0] + ends[1]}"),
    st.integers(1, 9).map(lambda low: f">={low}"),
    st.integers(1, 9).map(lambda high: f"<={high}"),
).map(counts)


@each(
    ("name", "raw", "good", "bad"),
    [
        ("collective", "all_reduce", ["all_reduce"], ["all_gather"]),
        ("collective", ["gather", "scatter"], ["gather", "scatter"], ["reduce"]),
        ("algorithm", ["", "nvls"], ["", "nvls"], ["ring"]),
        ("nodes", 2, [2], [1, 3, "2"]),
        ("nodes", [2, 4], [2, 4], [3]),
        ("nodes", "2..16", [2, 9, 16], [1, 17]),
        ("nodes", ">=2", [2, 4096], [1]),
        ("nodes", "<=4", [1, 4], [5]),
        ("size", "8GiB", [8 << 30], [4 << 30]),
        ("size", ["1MiB", "2MiB"], [1 << 20, 2 << 20], [3 << 20]),
        ("size", ">=4GiB", [4 << 30, 16 << 30], [(4 << 30) - 1]),
        ("size", "1KiB..1MiB", [1024, 1 << 20], [1023]),
        ("step", "collectives.sweep", ["collectives.sweep"], ["collectives.exact"]),
    ],
)
def test_a_selector_matches_what_it_says(
    name: str, raw: object, good: list[str | int], bad: list[str | int]
) -> None:
    selector = READERS[name](raw)
    assert all(selector.matches(value) for value in good)
    assert not any(selector.matches(value) for value in bad)


@given(COUNTS, COUNTS)
def test_selectors_meet_exactly_when_a_value_lies_in_both(left: Selector, right: Selector) -> None:
    shared = any(left.matches(value) and right.matches(value) for value in range(1, 40))
    assert left.meets(right) == right.meets(left) == shared


@given(COUNTS)
def test_samples_are_matched(selector: Selector) -> None:
    assert all(selector.matches(value) for value in selector.samples() if value)


def test_rows_overlap_unless_a_shared_selector_parts_them() -> None:
    two, many, large = {"nodes": counts(2)}, {"nodes": counts(">=3")}, {"size": sizes(">=1GiB")}
    assert overlap({}, two)
    assert overlap(two, large)
    assert not overlap(two, many)
    assert not overlap({**two, **large}, {**many, **large})
