"""The limit of a step's own pattern of collectives where no row has one, derived from rows of collectives.

A pattern is a list of collectives of known bytes, one after the other. Each may take the latency that the
file allows a small one, plus its bytes over the bandwidth that the file asks of a large one:

    allowed = FACTOR x sum over the collectives of (latency + size x factor / busbw)

with nccl-tests' factor and busbw. That is Hockney's model of a message (R. Hockney, "The communication
challenge for MPP", 1994). So a small pattern is judged by latencies and a large one by bandwidths. FACTOR is
for sizes between the two, where neither is reached.

Rows are for all g ranks of each of k nodes. A group has g' ranks on each of k' nodes, and all groups of a
world communicate at once, g / g' of them on a node, so as many ranks are at work as the rows are for. Fewer
ranks need no more latency, so the rows' latency holds. Bandwidth is the same share of the bound
(thresholds/bounds.py):

    busbw' = busbw x bound(g', k') / bound(g, k), or with ceilings in place of bounds where that is less

Across nodes the bound of a group counts the NICs of its own g' ranks, and g'/g of a NIC that all ranks share.
Inside a node each rank may have its own port of a switch. With links from pair to pair (MI300X, DGX-1, PCIe)
each group uses other links, and no row for all ranks says what those carry: then there is no limit. A file
says which of the two its nodes have (`switch`).

M ranks that send s bytes to each of N others (`fanned`) have the limit of an even all_to_all with the same
load on the busiest wire.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from reports.record import Judgement, Outcome
from thresholds.bounds import BoundError, asked, bound, ceiling
from thresholds.hardware import Hardware, Limit, LineRate
from thresholds.lookup import Case, LimitError, find
from thresholds.metrics import busbw_factor
from thresholds.selectors import Value
from thresholds.units import format_number, format_size

METRIC = "pattern"
FACTOR = 1.25
FANNED = "m_to_n"  # the ranks' name for an exchange in which the first M send to each of the others
_SWEEP: Case = {"step": "collectives.sweep", "dtype": "fp32"}


@dataclass(frozen=True)
class Moved:
    """One collective of a pattern: its kind and its bytes, as for nccl-tests.

    `spread` is the number of ranks that a group has on each of its nodes; empty: all ranks of the case.
    """

    collective: str
    size_bytes: int
    spread: tuple[int, ...] = ()


@dataclass(frozen=True)
class Share:
    """The time that a collective of a pattern may take: for latency and for bytes, each from a row."""

    moved: Moved
    latency_s: float
    bytes_s: float
    rows: tuple[Limit, Limit]

    def __str__(self) -> str:
        small, large = (row.where for row in self.rows)
        size = format_size(self.moved.size_bytes)
        return (
            f"{self.moved.collective} of {size}: {self.latency_s * 1e6:.4g} us ({small}) "
            f"+ {self.bytes_s * 1e6:.4g} us ({large})"
        )


def shares(hardware: Hardware, pattern: Sequence[Moved], case: Case, ranks: int) -> list[Share]:
    """Give the time of each collective; LimitError where a row is missing, BoundError where a rate is."""
    return [_share(hardware, moved, case, ranks) for moved in pattern]


def _share(hardware: Hardware, moved: Moved, case: Case, ranks: int) -> Share:
    sizes = {"latency": min(hardware.sweep.latency), "busbw": max(hardware.sweep.plateau)}
    here: dict[str, Value] = {**case, **_SWEEP, "collective": moved.collective}
    of_group = sum(moved.spread) not in (0, ranks)
    known = _all_ranks(hardware, moved, here, sizes) if of_group else here
    latency = find(hardware, "latency", {**known, "size": sizes["latency"]})
    rate, row = floor(hardware, {**known, "size": sizes["busbw"]})
    if of_group:
        rate *= _kept(hardware.line_rate, moved, known)
    return Share(moved, latency.value / 1e6, sent_bytes([moved], ranks) / 1e9 / rate, (latency, row))


def _all_ranks(hardware: Hardware, moved: Moved, here: Case, sizes: Mapping[str, int]) -> dict[str, Value]:
    """Give the case of all ranks whose rows hold for a group.

    They are those for as many nodes as the group has or, where there are none, for all nodes.
    """
    each, nodes = moved.spread[0], len(moved.spread)
    there = here.get("ranks_per_node")
    if not isinstance(there, int) or len(set(moved.spread)) > 1 or not there or there % each:
        said = f"{moved.collective} of a group with {', '.join(map(str, moved.spread))} ranks on its nodes"
        raise LimitError("missing", f"{said}: no row for all ranks holds for that")
    if nodes == 1:
        here = {**here, "path": hardware.inside, "nodes": 1}
        if each < there and not (hardware.line_rate.switch or hardware.inside == "memory"):
            said = f"{moved.collective} among {each} of {there} ranks of a node"
            raise LimitError(
                "missing", f"{said}: {hardware.name} names no switch that gives each its own port"
            )
    as_many = {**here, "nodes": nodes}
    known = (one for one in (as_many, here) if _has(hardware, one, sizes))
    return dict(next(known, as_many))


def _kept(line: LineRate, moved: Moved, all_ranks: Case) -> float:
    """Give the share that a group has of the bandwidth of all ranks, by the bounds of both."""
    each, there = moved.spread[0], all_ranks["ranks_per_node"]
    assert isinstance(there, int)
    group, own = {**all_ranks, "nodes": len(moved.spread), "ranks_per_node": each}, line
    network = line.links.get("network")
    if line.network_is_per_node and network is not None:
        own = replace(line, links={**line.links, "network": network * each / there})
    return min(of(group, own) / of(all_ranks, line) for of in (bound, ceiling))


def fanned(size_bytes: int, senders: int, per_node: Sequence[int]) -> Moved:
    """Give an even all_to_all that loads every wire at least as M ranks do that send s bytes to N others.

    In an even all_to_all of n p bytes over n ranks, g on a node, a rank sends n - g parts of p bytes by its
    NIC and g - 1 inside its node, and receives as many. Here a sender has N peers and a receiver has M:
    `across` of them are on other nodes, and `inside` on its own. With p = s max(across / (n - g),
    inside / (g - 1)) over all ranks, no rank here has more to send or receive on either kind of wire.
    """
    ranks = sum(per_node)
    nodes = [node for node, count in enumerate(per_node) for _ in range(count)]
    if not 0 < senders < ranks:
        raise LimitError("missing", f"{senders} of {ranks} ranks send to the others: nothing is sent")
    sending = Counter(nodes[:senders])
    busiest = 0.0
    for rank, node in enumerate(nodes):
        here = sending[node] if rank >= senders else per_node[node] - sending[node]
        peers = senders if rank >= senders else ranks - senders
        wires = ((peers - here, ranks - per_node[node]), (here, per_node[node] - 1))
        busiest = max(busiest, *(there / every for there, every in wires if every))
    return Moved("all_to_all", math.ceil(ranks * size_bytes * busiest))


def _has(hardware: Hardware, case: Case, sizes: Mapping[str, int]) -> bool:
    try:
        return all(find(hardware, metric, {**case, "size": size}) for metric, size in sizes.items())
    except LimitError:
        return False


def sent_bytes(pattern: Sequence[Moved], ranks: int) -> float:
    """Bytes that a rank must send, as nccl-tests' bus bandwidth counts them."""
    return sum(one.size_bytes * busbw_factor(one.collective, sum(one.spread) or ranks) for one in pattern)


def allowed_s(parts: Sequence[Share]) -> float:
    """Give the time that a pattern of these may take."""
    return FACTOR * sum(part.latency_s + part.bytes_s for part in parts)


def floor(hardware: Hardware, case: Case) -> tuple[float, Limit]:
    """Give the bus bandwidth that the file asks of a case, GB/s, and its row."""
    row = find(hardware, "busbw", case)
    return asked(row, case, hardware.line_rate), row


def judge(
    hardware: Hardware, pattern: Sequence[Moved], case: Case, ranks: int, median_s: float
) -> tuple[Judgement | None, str]:
    """Compare the median time of a pattern with its derived limit, or say why there is no limit."""
    try:
        parts = shares(hardware, pattern, case, ranks)
    except (LimitError, BoundError) as error:
        return None, str(error)
    most_s = allowed_s(parts)
    sent = sent_bytes(pattern, ranks) / 1e9
    value, limit = sent / median_s, sent / most_s
    good = median_s <= most_s
    words = (
        f"{case.get('step')} {METRIC} {format_number(value, limit)} GB/s over {case.get('path')} is "
        f"{'at least' if good else 'below'} {format_number(limit, value)} GB/s: "
        f"{_counted(pattern)} took {median_s * 1e3:.4g} ms, and {most_s * 1e3:.4g} ms are allowed"
    )
    rows = ", ".join(dict.fromkeys(row.where for part in parts for row in part.rows))
    source = f"derived: {FACTOR:g} x (latency + bytes / busbw) of {hardware.name} ({rows})"
    outcome = Outcome.PASS if good else Outcome.FAIL
    least = f">= {format_number(limit, value)} GB/s"
    return Judgement(METRIC, outcome, words, value, "GB/s", least, limit, source, dict(case)), ""


def _counted(pattern: Sequence[Moved]) -> str:
    counts = Counter(pattern).items()
    return ", ".join(
        f"{count} {one.collective} of {format_size(one.size_bytes)}"
        + (f" among {sum(one.spread)} on {len(one.spread)} nodes" if one.spread else "")
        for one, count in counts
    )
