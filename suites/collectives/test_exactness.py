"""Every collective delivers every bit."""

from __future__ import annotations

from fixtures.check import Check
from fixtures.plan import INSIDE, NETWORK, Case, over
from suites.collectives.cases import DATA, DTYPES, OPERATION_DTYPES, OPERATIONS, REDUCTIONS, exact

IDENTITY = [
    Case("collectives.identity", (dtype,), {"dtype": dtype}, {"dtype": dtype})
    for dtype in ("fp32", "bf16", "int64")
]


@over(exact(DATA, DTYPES), INSIDE, NETWORK)
def test_every_element_arrives(check: Check) -> None:
    """Every element of every collective arrives as it must."""
    check.measure_exactness()
    check.judge_exactness()


@over(exact(REDUCTIONS, OPERATION_DTYPES, OPERATIONS), INSIDE, NETWORK)
def test_every_operation_reduces(check: Check) -> None:
    """Averages, minima, maxima and products are right as well."""
    check.measure_exactness()
    check.judge_exactness()


@over(exact(("all_reduce", "all_to_all"), ("fp32",)), INSIDE, NETWORK)
def test_a_hundred_repeats_stay_exact(check: Check) -> None:
    """One corrupt iteration in a hundred is seen."""
    check.measure_exactness(iterations=100)
    check.judge_exactness()


@over(IDENTITY, INSIDE, NETWORK)
def test_reduce_scatter_and_all_gather_make_all_reduce(check: Check) -> None:
    """Reduce-scatter followed by all-gather is all-reduce, bit for bit."""
    check.measure_exactness()
    check.judge_exactness()
