"""Limits of more nodes than rows are for: no file lacks one, none asks more than healthy machines reached."""

from __future__ import annotations

import itertools
import math

import pytest

from fixtures.check import foresight, requests
from fixtures.check.plan import NETWORK, Planned
from fixtures.check.target import Target
from fixtures.wire.collectives import COLLECTIVES
from reports.record import Judgement, Outcome
from suites.collectives.test_collectives import sweep
from tests.each import each
from tests.thresholds.files import GOOD, case, changed, loaded, whole
from thresholds.beyond import TOKENS
from thresholds.bounds import bound, ceiling
from thresholds.hardware import Hardware
from thresholds.lookup import Case, LimitError, find, idle_rows, unused

# Every shipped file but those of one node, and of the lab, which has eight.
CLUSTERS = [
    file
    for file in whole().values()
    if "network" in file.line_rate.links and file.expect.get("gpus_per_node")
]


def test_which_files_judge_clusters() -> None:
    assert len(CLUSTERS) >= 20
    assert {name for name, file in whole().items() if file not in CLUSTERS} == {
        "aws-g6e",
        "cpu-local",
        "l40s",
        "lab-200mbit",
    }


@each(
    ("name", "asked", "healthy", "sick"),
    [
        # floors of 16 nodes x what their wires carry, less what more messages cost
        ("h100-sxm5-ndr400", case("all_reduce", 32), 340.0, 300.0),
        ("h100-sxm5-ndr400", case("all_reduce", 128), 350.0, 265.0),  # 350 is usual on 248: nccl-tests#283
        # 308 of 16 nodes, and 112 (7 x 3.4 + 14) us more: what NCCL's model has for a ring that is this long
        ("h200-ndr400", case("all_gather", 128), 267.5, 250.0),
        ("aws-p5", case("all_gather", 128), 221.0, 205.0),  # the same with 75 us of EFA for 14
        ("aws-p6-b200", case("all_to_all", 32), 0.7236 * 50 * 255 / 248, 0.6 * 50 * 255 / 248),
        ("h100-sxm5-ndr400", case("send_recv", 64), 47.0, 40.0),
    ],
)
def test_what_is_healthy_and_what_is_not_on_many_nodes(
    name: str, asked: Case, healthy: float, sick: float
) -> None:
    row = find(whole()[name], "busbw", asked)
    assert sick < row.value <= healthy


@each(
    ("hardware", "collective"),
    itertools.product(CLUSTERS, ("all_reduce", "all_gather", "all_to_all", "broadcast", "bisection")),
)
def test_a_limit_falls_slowly_with_nodes_and_never_passes_the_bound(
    hardware: Hardware, collective: str
) -> None:
    asked = {**case(collective, 16), "ranks_per_node": int(hardware.expect["gpus_per_node"])}
    asked["size"] = hardware.sweep.plateau[0]
    before = math.inf
    for nodes in (17, 32, 64, 128):
        row = find(hardware, "busbw", {**asked, "nodes": nodes})
        assert (row.kind, row.derived) == ("min", True)
        assert "thresholds/beyond.py" in row.source
        assert row.value <= min(before, ceiling({**asked, "nodes": nodes}, hardware.line_rate))
        before = row.value
    least = 0.6 if collective == "all_to_all" else 0.65
    at = find(hardware, "busbw", asked)
    floor = at.value * (bound(asked, hardware.line_rate) if at.kind == "min_of_bound" else 1)
    assert before > least * floor


def test_latency_grows_as_the_ranks_do_and_an_edge_has_its_one_nic() -> None:
    hardware = whole()["h100-sxm5-ndr400"]
    small = case("all_reduce", 16, size=16 << 10)
    most = find(hardware, "latency", small).value
    assert find(hardware, "latency", {**small, "nodes": 64}).value == pytest.approx(4 * most)
    edge: Case = {"step": "pipeline.edges", "path": "network", "nodes": 16, "ranks_per_node": 8}
    assert find(hardware, "edge", {**edge, "nodes": 128}).value == find(hardware, "edge", edge).value


@each(("file", "collective", "nodes"), itertools.product(CLUSTERS, COLLECTIVES, (128, 129, 2048)))
def test_small_messages_of_any_number_of_nodes_have_a_size_and_a_limit(
    file: Hardware, collective: str, nodes: int
) -> None:
    ranks = {f"n{number}": int(file.expect["gpus_per_node"]) for number in range(nodes)}
    [small] = sweep([collective])
    planned = Planned(small, NETWORK, tuple(ranks), "id", metrics=("latency",))
    target = Target(planned, ranks, file, "nccl", {})
    least = COLLECTIVES[collective].least_bytes(sum(ranks.values()))
    assert requests.latency_sizes(target) == (max(16 << 10, least),)
    assert not list(foresight.lacking(target))
    assert min(file.sweep.bandwidth) >= least  # the curve begins where there is a part for everybody


def test_nodes_of_more_than_the_rows_that_have_unlike_numbers_of_ranks_have_no_limit() -> None:
    """Then nothing says how many ranks a node has, and a row of the most nodes may not ask."""
    asked: Case = {"step": "expert.throughput", "path": "network", "nodes": 17, "ranks_per_node": 0}
    hardware = whole()["h100-sxm5-ndr400"]
    for metric in TOKENS:
        with pytest.raises(LimitError, match="ranks_per_node"):
            find(hardware, metric, asked)


def test_a_row_for_so_many_nodes_comes_first_and_without_the_table_nothing_follows() -> None:
    more = (
        changed('"2..4"', '"2..4"')
        .replace("[sweep]", "[beyond]\nnodes = 4\nhop_us = 14.0\n\n[sweep]")
        .replace('nodes = ">=5"', 'nodes = "5..6"')
    )
    hardware, asked = loaded(more), {**case("all_reduce", 7), "ranks_per_node": 2}
    assert find(hardware, "busbw", asked).value == pytest.approx(80.0, rel=0.01)
    with pytest.raises(LimitError, match="nobody measured more than four"):
        find(hardware, "busbw", {**asked, "nodes": 6})
    with pytest.raises(LimitError, match="nobody measured more than four"):
        find(loaded(GOOD), "busbw", asked)
    judged = Judgement("busbw", Outcome.PASS, "", 1.0, "GB/s", "", 1.0, "", asked)
    assert not [line for line in unused(hardware, [judged]) if "busbw" in line]
    assert [row.metrics for row in idle_rows(hardware, [("busbw", asked)])] == [("latency", "latency_p99")]
