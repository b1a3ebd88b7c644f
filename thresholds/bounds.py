"""The physics of a case: how much bus bandwidth its wires allow.

Notation: g ranks on each of k nodes, n = gk ranks, S bytes. V: GB/s that a rank sends into the link inside
its node. r: GB/s of the NIC that one rank uses. B: GB/s of all NICs of a node that the ranks use: gr, or the
one NIC that they share. Everything is per direction, with S and busbw as in thresholds/metrics.py.

Two figures matter for each case. `bound` is the best that the ordinary algorithm could reach: `min_of_bound`
is a fraction of it. `ceiling` is what no algorithm can pass: a value above it measured something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fixtures.wire.collectives import COLLECTIVES
from thresholds.hardware import Limit, LineRate
from thresholds.metrics import busbw, busbw_factor
from thresholds.units import ALGORITHMS, MNNVL

# The busiest rank of an uneven exchange must send at least half of what even splits would make it send over
# each wire; otherwise its bus bandwidth has no bound.
SPLIT_SLACK = 2.0


class BoundError(Exception):
    """The case has no bound; the text says what is missing."""


@dataclass(frozen=True)
class Wires:
    """One case over one set of line rates. `V` is infinite where the link inside a node is not known."""

    collective: str
    path: str
    algorithm: str
    g: int
    k: int
    V: float
    r: float
    B: float
    nvls: bool
    sharp: bool

    @property
    def kind(self) -> str:
        """Which of the formulas below holds for the collective."""
        return COLLECTIVES[self.collective].bound

    @property
    def n(self) -> int:
        """Ranks in the world."""
        return self.g * self.k


def bound(case: Mapping[str, str | int], rates: LineRate, measured: float | None = None) -> float:
    """Best busbw of the algorithm of the case, GB/s; `measured` is the copy rate of the same run, GB/s."""
    wires = _wires(case, rates, measured)
    by_path = {"network": network_bound, "nic": nic_bound}
    return by_path.get(wires.path, inside_bound)(wires)


def ceiling(case: Mapping[str, str | int], rates: LineRate, measured: float | None = None) -> float:
    """Best busbw of any algorithm, GB/s: above it something else was measured."""
    wires = _wires(case, rates, measured)
    by_path = {"network": network_ceiling, "nic": nic_ceiling}
    best = max(by_path.get(wires.path, inside_ceiling)(wires), bound(case, rates, measured))
    best *= SPLIT_SLACK if wires.collective == "all_to_all_v" else 1
    return best if wires.path in (rates.inside, MNNVL) else _with_burst(best, wires, case.get("size"), rates)


def asked(row: Limit, case: Mapping[str, str | int], rates: LineRate, measured: float | None = None) -> float:
    """What a row asks of a case, in the unit of its metric."""
    return row.value * (bound(case, rates, measured) if row.kind == "min_of_bound" else 1)


def _with_burst(best: float, w: Wires, size: str | int | None, rates: LineRate) -> float:
    """After a pause a token bucket lets a burst pass at once, so that t >= S factor/best - burst/B."""
    if not rates.network_burst_bytes or not isinstance(size, int) or size <= 0:
        return best
    shortest_s = size * busbw_factor(w.collective, w.n) / best / 1e9 - rates.network_burst_bytes / w.B / 1e9
    return busbw(w.collective, w.n, size, shortest_s) if shortest_s > 0 else math.inf


def inside_bound(w: Wires) -> float:
    """One node: V, as every rank sends its busbw through its own link; more with NVLS, see `_nvls_inside`."""
    return _nvls_inside(w) if w.algorithm == "nvls" and w.collective == "all_reduce" else w.V


def inside_ceiling(w: Wires) -> float:
    """One node, whichever algorithm the library picks."""
    return max(w.V, _nvls_inside(w)) if w.nvls and w.collective == "all_reduce" else w.V


def _nvls_inside(w: Wires) -> float:
    """All_reduce in the NVLink switches: each rank sends S once and S/g of the sum, so S(g+1)/g through V.

    busbw = 2(n-1)/n S/t <= 2(n-1)/n g/(g+1) V: 1.56 V for 8 GPUs. Measured on Hopper: 1.07 V
    (NVIDIA/dgxc-benchmarking@841f546 nccl/README.md:83). With k nodes the same holds inside each of them.
    """
    return 2 * (w.n - 1) / w.n * w.g / (w.g + 1) * w.V


def network_bound(w: Wires) -> float:
    """Several nodes, by the algorithm that NCCL and gloo run.

    Ring (also the chain of broadcast and reduce): each edge between nodes carries the busbw, and rings are
    spread over all NICs of a node and pass all its ranks: min(B, V) (sjeaugey in NVIDIA/nccl-tests#160 and
    #196). Send_recv shifts by one rank, so one rank per node sends to another node, by one NIC: r. Gather and
    scatter: the root exchanges n-g of n shares with other nodes, by its one NIC: r(n-1)/(n-g). Bisection
    shifts by n//2 ranks: every rank sends to another node, and nothing stays inside one, see `_bisection`.
    """
    if w.collective == "all_reduce" and w.algorithm in ("tree", "nvls"):
        return min(hierarchical(w), _across_inside(w))
    return _NETWORK_BOUNDS[w.kind](w)


def network_ceiling(w: Wires) -> float:
    """Several nodes, any algorithm: what must leave or enter a node through B, and a rank through V.

    Broadcast and reduce: S enters each node once (B), and each rank gets all but its NIC's part of it from
    its neighbours: Vg/(g-1). Gather and scatter: the root gets n-g of n shares through all NICs of its node,
    and can receive no more than V + r.
    """
    if w.kind == "chain":
        return min(w.B, w.V * w.g / (w.g - 1)) if w.g > 1 else w.B
    if w.kind == "root":
        return min(hierarchical(w), w.V + w.r) if w.g > 1 else hierarchical(w)
    if w.kind == "ring":
        across = max(hierarchical(w), _sharp(w)) if w.collective == "all_reduce" else hierarchical(w)
        return min(across, _across_inside(w))
    return network_bound(w)


def hierarchical(w: Wires) -> float:
    """Reduce inside each node, exchange, distribute inside: B(n-1)/(n-g) = b(n-1)/(k-1) with b = B/g.

    A node must receive the n-g of n shares that other nodes hold (for all_reduce in each of the two phases),
    so t >= S(n-g)/n / B with busbw = (n-1)/n S/t. Two nodes of 8: 1.875 B, which is why a two-node
    all_reduce prints more than its NICs carry (stas00/ml-engineering@744d01e network/README.md:1455;
    the tree at two nodes: NVIDIA/nccl#812).
    """
    return w.B * (w.n - 1) / (w.n - w.g)


def _all_to_all(w: Wires) -> float:
    """Each of a node's g ranks sends n-g of n shares away: t >= g S(n-g)/n / B, busbw <= (B/g)(n-1)/(n-g).

    Source: sjeaugey in NVIDIA/nccl-tests#130 and #267.
    """
    return w.B / w.g * (w.n - 1) / (w.n - w.g)


def _bisection(w: Wires) -> float:
    """Each of a node's g ranks sends and receives S by NIC, as g <= n//2 <= n-g: t >= gS/B, busbw <= B/g.

    That is r where every rank has its own NIC, and a rank's part of the NIC that they share otherwise.
    """
    return w.B / w.g


def _sharp(w: Wires) -> float:
    """All_reduce in the InfiniBand switches: each node sends S once: busbw = 2(n-1)/n S/t <= 2(n-1)/n B."""
    return 2 * (w.n - 1) / w.n * w.B if w.sharp else 0.0


def _across_inside(w: Wires) -> float:
    """How much of an exchange across nodes the link inside a node allows.

    Of the n shares a rank gets those of its own column (its NIC's) by NIC and the k(g-1) others by V:
    V(n-1)/(k(g-1)); an all_reduce with NVLS may reach `_nvls_inside` instead.
    """
    if w.g == 1:
        return math.inf
    ring = w.V * (w.n - 1) / (w.k * (w.g - 1))
    return max(ring, _nvls_inside(w)) if w.nvls and w.collective == "all_reduce" else ring


_NETWORK_BOUNDS: Mapping[str, Callable[[Wires], float]] = {
    "ring": lambda w: min(w.B, w.V),
    "chain": lambda w: min(w.B, w.V),
    "shares": _all_to_all,
    "root": lambda w: w.r * (w.n - 1) / (w.n - w.g),
    "next": lambda w: min(w.r, w.V),
    "half": _bisection,
}


def nic_bound(w: Wires) -> float:
    """Nothing passes inside a node (P2P and SHM off): every rank sends its busbw through its own NIC: r.

    Where ranks share a NIC this is loose, as r is the whole NIC. A bisection uses only NICs on any path, so
    its bound is the one across nodes.
    """
    return _bisection(w) if w.kind == "half" else w.r


def nic_ceiling(w: Wires) -> float:
    """The same with SHARP, which may halve what an all_reduce of several nodes sends."""
    reduced = w.sharp and w.k > 1 and w.collective == "all_reduce"
    return nic_bound(w) * (2 * (w.n - 1) / w.n if reduced else 1)


def _wires(case: Mapping[str, str | int], rates: LineRate, measured: float | None) -> Wires:
    collective, path, algorithm = (str(case.get(key, "")) for key in ("collective", "path", "algorithm"))
    k, g = _count(case, "nodes"), _count(case, "ranks_per_node")
    if collective not in COLLECTIVES or algorithm not in ALGORITHMS:
        raise BoundError(f"collective {collective or '?'} {algorithm} has no bus bandwidth")
    if g * k < 2:
        raise BoundError(f"{collective} over one rank moves no data")
    if not {rates.inside: k == 1, "network": k > 1, "nic": True, MNNVL: k > 1}.get(path, False):
        raise BoundError(f"path {path or '?'} cannot be measured on {k} node(s) of this hardware")
    if algorithm == "nvls" and not rates.nvls:
        raise BoundError("the case ran by NVLS, and [line_rate] does not say nvls = true")
    if path == MNNVL:  # to NCCL one node: every rank has the same NVLink to all others
        rate = _rate(rates, MNNVL, measured)
        return Wires(collective, path, algorithm, g * k, 1, rate, 0.0, 0.0, rates.nvls, False)
    across = 0.0 if path == rates.inside else _rate(rates, "network", measured)
    inside = _rate(rates, rates.inside, measured) if path == rates.inside else _known(rates, measured)
    per_node = across if rates.network_is_per_node else across * g
    return Wires(collective, path, algorithm, g, k, inside, across, per_node, rates.nvls, rates.sharp)


def _count(case: Mapping[str, str | int], name: str) -> int:
    value = case.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BoundError(f"the case does not say its {name}, so that its bound is not known")
    return value


def _rate(rates: LineRate, link: str, measured: float | None) -> float:
    if link not in rates.links:
        raise BoundError(f"[line_rate] says nothing about {link}")
    rate = rates.links[link]
    if rate is not None:
        return rate
    if measured is None or not math.isfinite(measured) or measured <= 0:
        raise BoundError("the bound is the copy rate measured in the same run, and none was measured")
    return measured


def _known(rates: LineRate, measured: float | None) -> float:
    try:
        return _rate(rates, rates.inside, measured)
    except BoundError:
        return math.inf  # an unknown link inside only makes the bound looser
