"""Floors of the parallel steps' own patterns ask for no more than a rank's part of the NICs, nor far less."""

from __future__ import annotations

import itertools

from suites.pipeline.issued import ranks_of
from suites.pipeline.test_pipeline import SIZE
from tests.each import each
from tests.thresholds.files import case
from tests.thresholds.shipped.test_beyond import CLUSTERS
from thresholds.derived import floor
from thresholds.hardware import Hardware
from thresholds.lookup import Case, find

NICS = {"gcp-a3-high": 4}  # of files that cannot expect a number: these are no RDMA devices


def part(file: Hardware, nodes: int) -> float:
    """GB/s that each rank of an edge between nodes has, where all pipelines cross there at once."""
    ranks, rate = int(file.expect["gpus_per_node"]), file.line_rate.links["network"]
    assert rate
    if not file.line_rate.network_is_per_node:
        return rate
    nics = NICS.get(file.name) or int(file.expect["nics_per_node"])
    pipelines = nodes * ranks // ranks_of(nodes * ranks, SIZE["most"])
    return rate / nics / min(pipelines, ranks // nics)


@each("file", CLUSTERS)
def test_an_edge_is_asked_for_half_of_its_part_of_a_nic_or_for_a_third(file: Hardware) -> None:
    """One rank of each pipeline crosses, and they are neighbours: those of one NIC have a part of it each."""
    for nodes in range(2, 17):
        asked: Case = {"step": "pipeline.edges", "path": "network", "nodes": nodes, "ranks_per_node": 8}
        row = find(file, "edge", asked)
        assert row.value <= part(file, nodes) / 2, nodes
        if "one message may use one of them" not in row.source:
            assert row.value > 0.3 * part(file, nodes), nodes


@each(("file", "nodes"), itertools.product(CLUSTERS, (2, 4, 16)))
def test_tokens_are_asked_for_half_of_an_all_to_all_over_the_same_wires(file: Hardware, nodes: int) -> None:
    ranks = int(file.expect["gpus_per_node"])
    asked = {**case("all_to_all", nodes, ranks_per_node=ranks), "size": max(file.sweep.plateau)}
    even = floor(file, asked)[0]
    tokens: Case = {"step": "expert.throughput", "path": "network", "nodes": nodes, "ranks_per_node": ranks}
    for metric in ("dispatch", "combine"):
        assert 0.42 < find(file, metric, tokens).value / even < 0.52, (file.name, nodes)
