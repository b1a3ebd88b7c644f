"""When everything else is over: all nodes under load for as long as `--soak` says, and what that left."""

from __future__ import annotations

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import devices, judging, peers
from fixtures.check.plan import INSIDE, NETWORK, NODE, Case
from fixtures.check.soak import aftermath, rounds

# Shares of a round. Each family's traffic is in it: gradients and tensor parallelism; shards of ZeRO and of
# sequences; experts and Ulysses; pipelines and rings.
PRODUCTS = [Case("nodes.slope", ("products",), {"seconds": {"cpu": 0.0, "cuda": 0.0}}, load=0.25)]
EXCHANGES = [
    Case(
        "collectives.sweep",
        (collective,),
        {"collective": collective, "dtype": "fp32", "op": "sum"},
        {"collective": collective, "dtype": "fp32"},
        compared=True,
        load=0.15,
    )
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
]
BANDWIDTH = ("busbw", "busbw_mean", "slow_fraction")
AFTER = [Case("soak.inventory", ("after",), closing=True)]


@over(PRODUCTS, NODE, ask=requests.step, judges=[devices.figures, rounds.judge])
def test_products_stay_as_fast(check: Check) -> None:
    """Products without a pause, in every round as fast as in the first."""
    check.run()


@over(
    EXCHANGES,
    INSIDE,
    NETWORK,
    ask=requests.lasting,
    judges=[judging.sweep, peers.of_collectives, rounds.judge],
    metrics=BANDWIDTH,
)
def test_busbw_stays_at_its_floor(check: Check) -> None:
    """Bus bandwidth at plateau sizes, round after round: every bit right, at its floor, as in the first."""
    check.run()


@over(AFTER, NODE, ask=requests.step, judges=[aftermath.judge])
def test_load_leaves_no_error_behind(check: Check) -> None:
    """No device is gone, no link went down, and no counter of errors says more than it may."""
    check.run()
