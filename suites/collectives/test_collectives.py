"""Every collective: every bit arrives, the links carry what they should, small messages are quick."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import corruption, judging, pairs, peers
from fixtures.check.plan import INSIDE, NETWORK, NIC, NIC_INSIDE, NVLINK_ACROSS, Case
from fixtures.wire.collectives import AVERAGED, BARRIER, COLLECTIVES, NONFINITE, ROUNDED
from thresholds.units import DTYPES

EVERYWHERE = {name: row for name, row in COLLECTIVES.items() if not row.across_only}
REDUCTIONS = tuple(name for name, row in EVERYWHERE.items() if row.reduces)
DATA = (*REDUCTIONS, *(name for name, row in EVERYWHERE.items() if not row.reduces))
ACROSS = tuple(name for name in COLLECTIVES if name not in EVERYWHERE)
# The sum is in every dtype's case; the other operations need only one type of each kind of arithmetic.
OPERATIONS = ("avg", "min", "max", "prod")
OPERATION_DTYPES = ("fp32", "bf16", "int64")
NONFINITE_DTYPES = ("fp32", "bf16")
ROUNDED_DTYPES = ("fp32", "fp16", "bf16")
AVERAGING = ("all_reduce", "reduce_scatter")  # what FSDP and ZeRO average gradients by

LARGE = 8.0  # times as long as a case of a few small messages
BANDWIDTH = ("busbw", "busbw_mean", "slow_fraction")
# For NVLink between nodes: they have published rates, and together use its switches and every pair of GPUs.
JOINED = ("all_reduce", "all_to_all")
NICS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")

TIMED = (judging.sweep, peers.of_collectives)
IDENTITY = [
    Case("collectives.identity", (dtype,), {"dtype": dtype}, {"dtype": dtype})
    for dtype in ("fp32", "bf16", "int64")
]
TRANSPORT = [Case("collectives.transport")]
PAIRS = [Case("collectives.pairs", selectors={"collective": "bisection"}, weight=LARGE)]


def exact(collectives: Iterable[str], dtypes: Iterable[str], ops: Iterable[str] = ("sum",)) -> list[Case]:
    """List the cases that compare every element; movements have no operation."""
    return [
        case("collectives.exact", collective, dtype, op)
        for collective in collectives
        for dtype in dtypes
        for op in (ops if collective in REDUCTIONS else ("sum",))
    ]


def sweep(collectives: Iterable[str], weight: float = 1.0) -> list[Case]:
    """List the cases that time a collective over many sizes; a node is compared with its equals too."""
    return [case("collectives.sweep", collective, "fp32", weight=weight) for collective in collectives]


def issued(form: str, *collectives: str) -> list[Case]:
    """List the cases whose call is of another form (`ISSUED` in `fixtures.ranks.collectives.calls`)."""
    return [case("collectives.exact", collective, "bf16", issue=form) for collective in collectives]


def case(
    step: str, collective: str, dtype: str, op: str = "sum", *, weight: float = 1.0, issue: str = ""
) -> Case:
    """Make one case; its words leave out what every case has."""
    swept = step.endswith("sweep")
    words = [collective] if swept else [collective, dtype]
    if collective in REDUCTIONS and op != "sum":
        words.append(op)
    parameters = {"collective": collective, "dtype": dtype, "op": op}
    if issue:
        words.append(issue)
        parameters["issue"] = issue
    selectors: dict[str, str | int] = {"collective": collective, "dtype": dtype}
    return Case(step, tuple(words), parameters, selectors, weight, compared=swept)


FORMS = [
    *issued("async", "all_gather", "reduce_scatter", "all_to_all"),
    *issued("coalesced", "all_gather", "reduce_scatter"),
    *issued("in_place", "all_gather", "reduce_scatter"),
]


@over(sweep(DATA, LARGE), INSIDE, NETWORK, ask=requests.bandwidth, judges=TIMED, metrics=BANDWIDTH)
def test_busbw_holds_its_floor(check: Check) -> None:
    """Bus bandwidth at plateau sizes: the median, the whole and the slow iterations."""
    check.run()


# A ring sends only one flow each way between two halves, so it does not test their bandwidth.
@over(sweep(ACROSS, LARGE), NETWORK, ask=requests.bandwidth, judges=TIMED, metrics=BANDWIDTH)
def test_bisection_bandwidth_holds_its_floor(check: Check) -> None:
    """Bus bandwidth while every rank talks with the other half of the cluster."""
    check.run()


@over(PAIRS, NETWORK, ask=requests.pairs, judges=[corruption.right("exchanges"), pairs.judge])
def test_no_node_is_behind_the_others_in_pairs(check: Check) -> None:
    """Bus bandwidth of two nodes at a time: a slow node is slow with every partner."""
    check.run()


@over(sweep(NICS, LARGE), NIC, ask=requests.bandwidth, judges=TIMED, metrics=BANDWIDTH)
def test_busbw_of_the_nics_alone_holds_its_floor(check: Check) -> None:
    """Bus bandwidth with peer-to-peer and shared memory off, so that the NICs carry everything."""
    check.run()


@over(sweep(JOINED, LARGE), NVLINK_ACROSS, ask=requests.bandwidth, judges=TIMED, metrics=BANDWIDTH)
def test_busbw_of_nvlink_between_nodes_holds_its_floor(check: Check) -> None:
    """Bus bandwidth over the NVLink that joins the nodes of one domain."""
    check.run()


@over(sweep(("all_reduce",), LARGE), NIC_INSIDE, ask=requests.bandwidth, judges=TIMED, metrics=BANDWIDTH)
def test_busbw_of_a_nodes_own_nics_holds_its_floor(check: Check) -> None:
    """Bus bandwidth of a node that talks to itself through its NICs."""
    check.run()


@over(exact(DATA, DTYPES), INSIDE, NETWORK, ask=requests.exactness, judges=[judging.exactness])
def test_every_element_arrives(check: Check) -> None:
    """Every element of every collective arrives as it must."""
    check.run()


@over(
    exact(REDUCTIONS, OPERATION_DTYPES, OPERATIONS),
    INSIDE,
    NETWORK,
    ask=requests.exactness,
    judges=[judging.exactness],
)
def test_every_operation_reduces(check: Check) -> None:
    """Averages, minima, maxima and products are right as well."""
    check.run()


@over(
    exact(("all_reduce", "all_to_all"), ("fp32",)),
    INSIDE,
    NETWORK,
    ask=partial(requests.exactness, iterations=100),
    judges=[judging.exactness],
)
def test_a_hundred_repeats_stay_exact(check: Check) -> None:
    """One corrupt iteration in a hundred is seen."""
    check.run()


@over(IDENTITY, INSIDE, NETWORK, ask=requests.exactness, judges=[judging.exactness])
def test_reduce_scatter_and_all_gather_make_all_reduce(check: Check) -> None:
    """Reduce-scatter followed by all-gather is all-reduce, bit for bit."""
    check.run()


@over(FORMS, INSIDE, NETWORK, ask=requests.exactness, judges=[judging.exactness])
def test_every_form_of_call_delivers(check: Check) -> None:
    """What is issued asynchronously, coalesced or in place, as training does it, is right as well."""
    check.run()


@over(sweep((*DATA, BARRIER)), INSIDE, NETWORK, ask=requests.latency, judges=TIMED, metrics=("latency",))
def test_latency_stays_below_its_ceiling(check: Check) -> None:
    """Latency of small messages: the median, and the 99th percentile where the file has a row for that."""
    check.run()


@over(TRANSPORT, INSIDE, NETWORK, NIC, NVLINK_ACROSS, ask=requests.transport, judges=[judging.transport])
def test_the_data_cross_the_links_they_should(check: Check) -> None:
    """The transport that was really used, from the library's own log and the ports' counters."""
    check.run()


@over(
    exact(REDUCTIONS, NONFINITE_DTYPES, (NONFINITE,)),
    INSIDE,
    NETWORK,
    ask=requests.exactness,
    judges=[judging.exactness],
)
def test_what_is_no_number_spreads(check: Check) -> None:
    """One rank's infinity or NaN is the sum of all: no rank goes on as if nothing had happened."""
    check.run()


# They are last because they run in jobs of their own, without NVLS.
@over(
    [*exact(REDUCTIONS, ROUNDED_DTYPES, (ROUNDED,)), *exact(AVERAGING, ROUNDED_DTYPES, (AVERAGED,))],
    INSIDE,
    NETWORK,
    ask=requests.exactness,
    judges=[judging.exactness],
)
def test_sums_are_rounded_to_the_nearest(check: Check) -> None:
    """Sums in the dtypes of training are rounded, and not cut off; averages, too, among 2, 4, 8 ... ranks."""
    check.run()
