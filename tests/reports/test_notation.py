from __future__ import annotations

import math

from reports.notation import duration, fold, number, quantity, size
from tests.each import each


@each(
    ("names", "folded"),
    [
        (["gpu01", "gpu02", "gpu04"], "gpu[01-02,04]"),
        (["gpu2", "gpu1"], "gpu[1-2]"),
        (["gpu09", "gpu10", "gpu100"], "gpu[09-10], gpu100"),
        (["login", "10.0.0.1", "10.0.0.2"], "login, 10.0.0.[1-2]"),
        (["a1-ib0", "a1-ib1"], "a1-ib[0-1]"),
        (["x1", "x1"], "x1"),
        ([], ""),
    ],
)
def test_names_are_folded(names: list[str], folded: str) -> None:
    assert fold(names) == folded


@each(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (361.24, "361.2"),
        (0.00012345, "0.0001234"),
        (123456.7, "123457"),
        (100.0, "100"),
        (-3.25, "-3.25"),
        (1e-30, "0"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_four_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert number(value) == text


@each(
    ("size_bytes", "text"),
    [(0, "0 B"), (4, "4 B"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (2**50, "1024 TiB")],
)
def test_sizes_are_written_in_binary_units(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


@each(
    ("seconds", "text"),
    [
        (0.0251, "25 ms"),
        (1.25, "1.2 s"),
        (185.0, "3 min 05 s"),
        (7260.0, "2 h 01 min"),
        (math.nan, "unknown"),
    ],
)
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_quantity_has_its_unit_and_nothing_has_none() -> None:
    assert [quantity(361.24, "GB/s"), quantity(2.0, ""), quantity(None, "GB/s")] == ["361.2 GB/s", "2", ""]
