"""The factors of nccl-tests, and none where no data move."""

from __future__ import annotations

import pytest

from tests.each import each
from thresholds.metrics import busbw, busbw_factor
from thresholds.units import DATA_COLLECTIVES


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
