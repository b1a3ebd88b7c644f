"""Limits for more nodes than a file has rows for, derived from its rows where its [beyond] says so.

The rows are for up to m nodes, and k > m were measured. In a ring the load of a NIC does not depend on k, and
the bound of an all-to-all is a formula (thresholds/bounds.py), so a busbw keeps its share of the bound. What
grows is the number of messages that wait for each other in a ring or chain:

    latency(k)  = latency(m) k/m
    busbw(k)    = S f / (S f / (busbw(m) bound(k)/bound(m)) + p (k - m) ((g - 1) v + h))

with nccl-tests' factor f for k nodes of g ranks, p = 2 passes for an all_reduce and 1 for others, and the
hop times of NCCL's own model: v by NVLink, h by the network (h for all hops where NICs are used alone). Where
a rank sends to every other, or a root to all, the parts get smaller with k and the exchange keeps less of its
bound: EXCHANGED per doubling of nodes. Token exchanges scale likewise. An edge has its one NIC for any k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from fixtures.wire.collectives import COLLECTIVES
from thresholds.bounds import bound
from thresholds.hardware import Beyond, Hardware, Limit
from thresholds.metrics import busbw_factor
from thresholds.units import METRICS

Case = Mapping[str, str | int]
TOKENS = ("dispatch", "combine")
INSIDE_HOP_US = 3.4  # by NVLink with NCCL's Simple protocol: NVIDIA/nccl@5067397 src/graph/tuning.cc
# An all_to_all on B300 with 800 Gb/s per GPU: 74.4 of 102.8 GB/s on 32 nodes, and 84.0 of 105.8 on 16:
# awslabs/awsome-distributed-ai@95b939c micro-benchmarks/expert-parallelism/ep-backend-comparison/RESULTS.md
EXCHANGED = (74.4 / 102.8) / (84.0 / 105.8)


def fewer(hardware: Hardware, case: Case) -> dict[str, str | int] | None:
    """Give the same case on the most nodes that the file has rows for, if this case has more; else None."""
    most, nodes = hardware.beyond, case.get("nodes")
    if most is None or not isinstance(nodes, int) or nodes <= most.nodes:
        return None
    return {**case, "nodes": most.nodes}


def limit(hardware: Hardware, metric: str, row: Limit, case: Case, there: Case) -> Limit:
    """Make the limit of a case from the row for the most nodes."""
    assert hardware.beyond is not None
    rates, grown = hardware.line_rate, int(case["nodes"]) / int(there["nodes"])
    value, kind = row.value, row.kind
    if METRICS[metric].unit == "us":
        value *= grown
    elif metric in TOKENS:
        here, most = ({**one, "collective": "all_to_all"} for one in (case, there))
        value *= _kept(here, grown) * bound(here, rates) / bound(most, rates)
    elif METRICS[metric].bounded:
        asked = value if kind == "min_of_bound" else value / bound(there, rates)
        value, kind = _waiting(asked * _kept(case, grown) * bound(case, rates), case, hardware.beyond), "min"
    said = f"{row.source}; of {there['nodes']} nodes, and from there on by thresholds/beyond.py"
    return replace(row, kind=kind, value=value, source=said, derived=True)


def _kept(case: Case, grown: float) -> float:
    """Give the factor by which a collective's share of its bound falls from the most nodes to this case."""
    exchanged = COLLECTIVES[str(case["collective"])].bound in ("shares", "root")
    return EXCHANGED ** math.log2(grown) if exchanged else 1.0


def _waiting(busbw: float, case: Case, most: Beyond) -> float:
    """Give the bus bandwidth, GB/s, that is left when a ring waits for the hops of more nodes."""
    collective, nodes, ranks = str(case["collective"]), int(case["nodes"]), int(case["ranks_per_node"])
    gigabytes = int(case.get("size", 0)) * busbw_factor(collective, nodes * ranks) / 1e9
    if not gigabytes or COLLECTIVES[collective].bound not in ("ring", "chain"):
        return busbw
    inside = most.hop_us if case["path"] == "nic" else INSIDE_HOP_US
    passes = 2 if collective == "all_reduce" else 1
    waits_us = passes * (nodes - most.nodes) * ((ranks - 1) * inside + most.hop_us)
    return gigabytes / (gigabytes / busbw + waits_us / 1e6)
