"""What must hold between the sections of a hardware file: directions, overlaps, sizes and physics."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import get_args

from thresholds.bounds import BoundError, bound, ceiling
from thresholds.hardware import Gap, Hardware, Limit, LimitKind, Row
from thresholds.loading.schema import ExpectSection, LimitSection, LineRateSection
from thresholds.selectors import FAR, Selector, Value, overlap
from thresholds.units import DATA_COLLECTIVES, METRICS, MNNVL, TAILS, format_number, format_size

STALE_YEARS = 3
KINDS: tuple[LimitKind, ...] = get_args(LimitKind)
SWEPT = ("busbw", "busbw_mean", "slow_fraction")


def limit_kind(row: LimitSection) -> Iterator[str]:
    """Exactly one limit, and one that fits what the metric means."""
    given = [kind for kind in KINDS if getattr(row, kind) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        yield f"a row holds exactly one of {', '.join(KINDS)}, and this one has {found}"
    for metric, kind in itertools.product(row.metric, given):
        meaning = METRICS[metric]
        if (kind == "max") != (meaning.better == "less"):
            yield f"{kind} is no limit for {metric}, of which {meaning.better} is better"
        if kind == "min_of_bound" and not meaning.bounded:
            yield f"{metric} has no physical bound: write min or max in {meaning.unit or 'a share'}"
        if meaning.share and kind == "max" and (row.max or 0) >= 1:
            yield f"{metric} is a share of 1: max = {row.max} could never fail"
    if len({METRICS[metric].unit for metric in row.metric}) > 1:
        yield f"metrics of different units in one row: {', '.join(row.metric)}; write a row for each"


def line_rates(inside: str | None, rates: LineRateSection, expect: ExpectSection) -> Iterator[str]:
    """The link inside has a rate, the network has one meaning, and the NICs add up to it."""
    if inside and getattr(rates, inside) is None:
        yield f'[hardware] inside = "{inside}" has no rate; write {inside} = GB/s, or "measured"'
    if rates.network is not None and rates.network_per_node is not None:
        yield "network (per GPU) and network_per_node exclude each other; keep one"
    nics, gpus, gigabits = expect.nics_per_node, expect.gpus_per_node, expect.nic_gigabits_per_s
    if not (nics and gpus and gigabits and rates.network):
        return
    expected = nics * gigabits / 8 / gpus
    if not math.isclose(rates.network, expected, rel_tol=0.01):
        yield (
            f"network = {rates.network:g} GB/s per GPU, and [expect] gives {expected:g} ({nics} NICs of "
            f"{gigabits:g} Gb/s for {gpus} GPUs); line rates are GB/s, NIC rates are Gb/s"
        )


def plateau(hardware: Hardware) -> Iterator[str]:
    """Judged sizes must have been measured."""
    for size in hardware.sweep.plateau:
        if size not in hardware.sweep.bandwidth:
            yield f"plateau size {format_size(size)} is not in the sweep; add it to bandwidth"


def reachable(row: Row, hardware: Hardware) -> Iterator[str]:
    """Refuse a row that no case can match: it would look like a limit and judge nothing."""
    paths, nodes = row.selectors.get("path"), row.selectors.get("nodes")
    for path in paths.samples() if paths else ():
        if nodes and not nodes.meets(_nodes_of(path)):
            yield f"path {path} never has nodes = {nodes.text}"
        if path == MNNVL and MNNVL not in hardware.line_rate.links:
            yield "path mnnvl does not exist here: [line_rate] has no mnnvl"
        elif path not in (hardware.inside, "network", "nic", MNNVL) and hardware.inside:
            yield f'path {path} does not exist here: the link inside a node is "{hardware.inside}"'
        elif str(path) in hardware.absent:
            yield f"path {path} is declared absent in [absent]; remove one of the two"
    size = row.selectors.get("size")
    swept = hardware.sweep.bandwidth
    if swept and size and set(row.metrics) & set(SWEPT) and not any(size.matches(one) for one in swept):
        yield f"size {size.text} matches no size of the sweep ({', '.join(map(format_size, swept))})"


def fabrics(row: Row, hardware: Hardware) -> Iterator[str]:
    """A figure of one fabric says nothing of another: a whole file has only rows from its own fabric."""
    named = () if isinstance(row, Gap) else row.fabrics
    if named and not hardware.part and hardware.fabric not in named:
        known = " or ".join(named)
        yield f"its source is of {known}, and this is {hardware.fabric or 'none'}: write a row of its own"


def overlaps(rows: tuple[Row, ...]) -> Iterator[tuple[int, int, list[str]]]:
    """Find rows that match the same case, which then has no limit; yields both, and their common metrics."""
    for (one, first), (other, second) in itertools.combinations(enumerate(rows), 2):
        shared = sorted(set(first.metrics) & set(second.metrics))
        if shared and overlap(first.selectors, second.selectors):
            yield one, other, shared


def tails(rows: tuple[Row, ...]) -> Iterator[tuple[int, int, str]]:
    """Find ceilings of a tail below those of the middle of the same samples, which is healthy up to there."""
    limits = [(at, row) for at, row in enumerate(rows) if isinstance(row, Limit)]
    for (at, middle), (other, tail), (name, far) in itertools.product(limits, limits, TAILS.items()):
        of_both = name in middle.metrics and far in tail.metrics and overlap(middle.selectors, tail.selectors)
        if of_both and tail.value < middle.value:
            yield at, other, f"{far} may be {tail.value:g} ({tail.where}), and {name} {middle.value:g} us"


def physics(row: Row, hardware: Hardware) -> Iterator[str]:
    """Refuse a floor above what the wires carry: it rejects good hardware, or was measured elsewhere."""
    if isinstance(row, Gap) or not any(METRICS[metric].bounded for metric in row.metrics):
        return
    try:
        bounds = [(_best(row, case, hardware), case) for case in _cases(row, hardware)]
    except BoundError as error:
        if not hardware.part:  # the files that extend a part have the rates, and are checked
            yield f"this floor cannot be held against a physical bound: {error}"
        return
    best, case = min(bounds, key=lambda found: found[0], default=(math.inf, {}))
    if row.kind == "min" and row.value > best:
        yield (
            f"min = {row.value:g} GB/s is above {format_number(best, row.value)} GB/s, the physical bound of "
            f"{case['collective']} over {case['path']} on {case['nodes']} node(s) of {case['ranks_per_node']}"
        )


def dates(hardware: Hardware, today: datetime.date) -> Iterator[str]:
    """Warn of limits that were not reviewed for long, and of impossible dates.

    These are no faults: whether a run may use a file must not depend on the clock of the controller.
    """
    for limit in hardware.limits:
        years = (today - limit.date).days / 365.25
        if years < 0:
            yield f"{limit.where}: its date {limit.date} is in the future; today is {today}"
        elif years > STALE_YEARS:
            yield (
                f"{limit.where}: its date {limit.date} is {years:.0f} years ago; see whether the source "
                "still holds, or measure healthy nodes again, and write the new date"
            )


def _best(row: Limit, case: Mapping[str, Value], hardware: Hardware) -> float:
    measured = 1.0 if row.kind == "min_of_bound" else None  # a fraction holds for any measured rate
    best = bound if case["algorithm"] else ceiling
    return best(case, hardware.line_rate, measured)


def _cases(row: Limit, hardware: Hardware) -> Iterator[Mapping[str, Value]]:
    """The extreme cases of a row: bounds only fall with the number of nodes."""
    links = hardware.line_rate.links
    network = ("network", "nic") if "network" in links else ()
    between = (MNNVL,) if MNNVL in links else ()
    possible = (path for path in (hardware.inside, *network, *between) if path not in hardware.absent)
    paths = _samples(row, "path", tuple(possible))
    collectives = _samples(row, "collective", DATA_COLLECTIVES)
    nodes = row.selectors.get("nodes", Selector("any", low=1))
    algorithms, sizes = _samples(row, "algorithm", ("",)), _samples(row, "size", (0,))  # 0: any, no burst
    for path, collective, algorithm, size, g in itertools.product(
        paths, collectives, algorithms, sizes, _ranks_per_node(row, hardware)
    ):
        counts = _nodes_of(path)
        for k in {*nodes.samples(), *counts.samples()}:
            if nodes.matches(k) and counts.matches(k) and int(k) * int(g) > 1:
                keys = ("path", "collective", "algorithm", "size", "ranks_per_node", "nodes")
                yield dict(zip(keys, (path, collective, algorithm, size, g, k), strict=True))


def _nodes_of(path: Value) -> Selector:
    low, high = {"network": (2, FAR), "nic": (1, FAR), MNNVL: (2, FAR)}.get(str(path), (1, 1))
    return Selector(str(path), low=low, high=high)


def _samples(row: Limit, name: str, default: tuple[Value, ...]) -> tuple[Value, ...]:
    selector = row.selectors.get(name)
    return selector.samples() if selector else default


def _ranks_per_node(row: Limit, hardware: Hardware) -> tuple[Value, ...]:
    if "ranks_per_node" in row.selectors:
        return row.selectors["ranks_per_node"].samples()
    gpus = hardware.expect.get("gpus_per_node")
    if gpus or row.kind == "min_of_bound":
        return (gpus or 2,)
    raise BoundError("add ranks_per_node to the row, or gpus_per_node to [expect]")
