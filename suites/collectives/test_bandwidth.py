"""The links carry what they should, all of the time."""

from __future__ import annotations

from fixtures.check import Check
from fixtures.plan import INSIDE, NETWORK, NIC, NIC_INSIDE, over
from suites.collectives.cases import ACROSS, DATA, sweep

LARGE = 8.0  # times as long as a case of a few small messages
BANDWIDTH = ("busbw", "busbw_mean", "slow_fraction")
NICS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


@over(sweep(DATA, LARGE), INSIDE, NETWORK, metrics=BANDWIDTH)
def test_busbw_holds_its_floor(check: Check) -> None:
    """Bus bandwidth at plateau sizes: the median, the whole and the slow iterations."""
    check.measure_bandwidth()
    check.judge()


# A ring sends one flow each way over what joins two halves, however thin it is for more.
@over(sweep(ACROSS, LARGE), NETWORK, metrics=BANDWIDTH)
def test_bisection_bandwidth_holds_its_floor(check: Check) -> None:
    """Bus bandwidth while every rank talks with the other half of the cluster."""
    check.measure_bandwidth()
    check.judge()


@over(sweep(NICS, LARGE), NIC, metrics=BANDWIDTH)
def test_busbw_of_the_nics_alone_holds_its_floor(check: Check) -> None:
    """Bus bandwidth with peer-to-peer and shared memory off, so that the NICs carry everything."""
    check.measure_bandwidth()
    check.judge()


@over(sweep(("all_reduce",), LARGE), NIC_INSIDE, metrics=BANDWIDTH)
def test_busbw_of_a_nodes_own_nics_holds_its_floor(check: Check) -> None:
    """Bus bandwidth of a node that talks to itself through its NICs."""
    check.measure_bandwidth()
    check.judge()
