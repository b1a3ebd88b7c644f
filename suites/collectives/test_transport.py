"""It was measured on the links that the hardware file names."""

from __future__ import annotations

from fixtures.check import Check
from fixtures.plan import INSIDE, NETWORK, NIC, Case, over

TRANSPORT = [Case("collectives.transport")]


@over(TRANSPORT, INSIDE, NETWORK, NIC)
def test_the_data_cross_the_links_they_should(check: Check) -> None:
    """The transport that was really used, from the library's own log and the ports' counters."""
    check.measure_transport()
    check.judge_transport()
