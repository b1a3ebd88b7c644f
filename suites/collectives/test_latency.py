"""Small messages are quick."""

from __future__ import annotations

from fixtures.check import Check
from fixtures.plan import INSIDE, NETWORK, over
from suites.collectives.cases import DATA, sweep


@over(sweep((*DATA, "barrier")), INSIDE, NETWORK, metrics=("latency",))
def test_latency_stays_below_its_ceiling(check: Check) -> None:
    """Latency of small messages: the median, and the 99th percentile where the file has a row for that."""
    check.measure_latency()
    check.judge()
