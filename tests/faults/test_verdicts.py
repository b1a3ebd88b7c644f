"""The whole command in the lab: healthy, with a slow link, a corrupted rank, a node that goes away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.at_work import in_phase
from tests.faults.runs import Finished, Running, accept
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

COLLECTIVES = ("--hardware", "lab-200mbit", "--workload", "nodes,collectives")
NODES = ["n01", "n02", "n03", "n04"]
LAST_ALONE = '"type":"check","id":"suites/nodes/test_repeatability'  # all_reduce is next
# Every tenth all_reduce on this node ends with the lowest bit of one element flipped.
CORRUPT = """
import torch
import torch.distributed as dist

calls, healthy = [], dist.all_reduce

def all_reduce(tensor, *arguments, **named):
    work = healthy(tensor, *arguments, **named)
    calls.append(None)
    if len(calls) % 10 == 0 and tensor.numel() > 100:
        tensor.view(torch.uint8)[4 * 17] ^= 1
    return work

dist.all_reduce = all_reduce
"""


def test_four_healthy_nodes_are_accepted(tmp_path: Path) -> None:
    with Lab.up(nodes=4, rate="200mbit") as lab:
        done = accept(lab, tmp_path, "--hardware", "lab-200mbit")
    assert (done.status, done.listed("accepted")) == (0, NODES), done.output
    assert done.faults() == []
    assert done.verdict["exit_status"] == 0


def test_one_slow_link_costs_its_node_and_nobody_else(tmp_path: Path) -> None:
    with Lab.up(nodes=4, rate="200mbit") as lab:
        lab.shape("n03", "180mbit")
        done = accept(lab, tmp_path, *COLLECTIVES)
    assert (done.status, done.listed("rejected")) == (1, ["n03"]), done.output
    assert done.listed("accepted") == ["n01", "n02", "n04"], done.output
    assert {blame["kind"] for blame in done.verdict["blame"]} == {"nic"}
    assert any("all_reduce busbw" in fault and "the link of n03 is slow" in fault for fault in done.faults())


@pytest.mark.long
def test_halves_behind_one_thin_link_miss_the_bisection_and_condemn_nobody(tmp_path: Path) -> None:
    """The two are neighbours in the ring, so that it sends one flow each way over that link."""
    with Lab.up(nodes=4, rate="200mbit") as lab:
        lab.split("n01,n04", "200mbit")
        ring = "test_busbw_holds and send_recv and network"
        done = accept(lab, tmp_path, *COLLECTIVES, "-k", f"test_bisection or ({ring})")
    assert done.status == 1, done.output
    assert (done.listed("rejected"), done.listed("unproven")) == ([], NODES)
    outcomes = {one["id"].rpartition("::")[2]: one["outcome"] for one in done.checks()}
    assert outcomes["test_busbw_holds_its_floor[send_recv-network]"] == "pass"
    assert outcomes["test_bisection_bandwidth_holds_its_floor[bisection-network]"] == "fail"
    (blame,) = done.verdict["blame"]
    assert blame["kind"] in ("fabric", "scale-only")
    assert blame["nodes"] == []


def test_a_corrupted_rank_is_rejected_by_name(tmp_path: Path) -> None:
    with Lab.up(nodes=4, rate="200mbit") as lab:
        lab.patch_torch("n02", CORRUPT)
        done = accept(lab, tmp_path, *COLLECTIVES)
    assert (done.status, done.listed("rejected")) == (1, ["n02"]), done.output
    assert done.listed("accepted") == ["n01", "n03", "n04"], done.output
    assert any("rank 1" in fault and "n02" in fault and "all_reduce" in fault for fault in done.faults())


def test_who_loses_power_costs_nobody_the_verdict_beside_a_slow_link(tmp_path: Path) -> None:
    """One in the first all_reduce, one between it and its repeat, while the next job starts."""
    with Lab.up(nodes=6, rate="200mbit") as lab:
        lab.shape("n02", "180mbit")
        running = Running(lab, tmp_path, *COLLECTIVES)
        running.wait_for(lambda journal: journal.count(LAST_ALONE) == len(lab.nodes), 300)
        for node, phase in (("n03", "timed 1048576"), ("n05", "import")):
            in_phase(lab, node, phase)
            lab.power_off(node)
        done = running.finish(500)
    assert (done.status, done.listed("rejected")) == (1, ["n02"]), done.output
    assert done.listed("unproven") == ["n03", "n05"], done.output
    assert done.listed("accepted") == ["n01", "n04", "n06"], done.output
    assert all(done.reason(node).startswith("lost: ") for node in ("n03", "n05"))
    (check,) = [
        one for one in done.checks() if one["name"] == "test_busbw_holds_its_floor[all_reduce-network]"
    ]
    assert check["reason"].startswith("n03 was lost during collectives.sweep: ")
    assert [len(one["nodes"]) for one in check["repeats"]] == [5, 4, 3]


@pytest.mark.parametrize("how", ["power_off", pytest.param("vanish", marks=pytest.mark.long)])
def test_a_node_that_goes_away_is_unproven_and_the_others_evidence_is_kept(tmp_path: Path, how: str) -> None:
    with Lab.up(nodes=4, rate="200mbit") as lab:
        running = Running(lab, tmp_path, *COLLECTIVES)
        running.wait_for(lambda journal: journal.count('"type":"check","id":"suites/collectives') >= 5)
        getattr(lab, how)("n04")
        done = running.finish(400)
    assert done.status == 2, done.output
    assert "n04" in done.listed("unproven")
    assert done.listed("rejected") == []
    assert done.reason("n04").startswith("lost: ")
    later = passed_without(done, "n04")
    assert later, "the three others were measured no more"


def passed_without(done: Finished, node: str) -> list[str]:
    """Checks across nodes that passed on the others after this one had gone."""
    return [
        check["id"]
        for check in done.checks()
        if check["outcome"] == "pass" and len(check["nodes"]) == 3 and node not in check["nodes"]
    ]
