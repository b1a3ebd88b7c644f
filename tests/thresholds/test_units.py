"""Sizes are written one way, and figures say as much as it takes."""

from __future__ import annotations

import math

import pytest

from tests.each import each
from thresholds.units import format_number, format_size, is_finite, parse_size


@each(("text", "size"), [("0B", 0), ("8B", 8), ("1KiB", 1024), ("8GiB", 8 << 30), ("1TiB", 1 << 40)])
def test_a_size_is_read_and_written_alike(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert format_size(size) == text


@each("wrong", ["8GB", "8 GiB", "8gib", "-1B", "1.5GiB", "", "GiB", 8, None, True, "9" * 30 + "B", "٣B"])
def test_what_is_no_size_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a size; write a whole number"):
        parse_size(wrong)


def test_a_size_that_no_unit_divides_is_written_in_bytes() -> None:
    assert format_size(1_000_000) == "1000000B"


def test_figures_have_as_many_digits_as_it_takes_to_tell_them_apart() -> None:
    assert format_number(17.84) == "17.8"
    assert format_number(23.4999, beside=23.5) == "23.4999"
    assert format_number(23.5, beside=23.5) == "23.5"
    assert format_number(100000.0) == "100000"
    assert format_number(0.0178) == "0.0178"


@each("wrong", [math.nan, math.inf, True, None, "1", 10**400, [1.0]])
def test_what_cannot_be_compared_is_no_number(wrong: object) -> None:
    assert not is_finite(wrong)
