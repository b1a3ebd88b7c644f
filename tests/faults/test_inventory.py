"""Lab nodes that look like recorded nodes with 8 H100, and lab nodes as they are: judged without a rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.cluster.job import WITHOUT_GPUS
from tests.faults.runs import Finished, accept, clean
from tests.fixtures.node.inventory.h100_node import write_node
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.untimed, pytest.mark.usefixtures("require_lab")]

INVENTORY = ("--workload", "nodes", "-k", "test_inventory")


def dress(lab: Lab, folder: Path, **faults: dict[str, Any]) -> None:
    """Let every node of a lab look like a different H100 node, the named ones with faults."""
    for machine, node in enumerate(lab.nodes, 1):
        write_node(folder / node, machine=machine, **faults.get(node, {}))
        lab.dress(node, folder / node)


def test_a_node_that_lacks_a_gpu_is_rejected_for_that_although_no_rank_can_start(tmp_path: Path) -> None:
    """Beside one that can start some: without any the suite cannot test itself, and rejects nobody."""
    with Lab.up(nodes=2, slots=8) as lab:
        dress(lab, tmp_path, n01={"missing_gpu": 2})
        done = accept(lab, tmp_path / "out", "--workload", "nodes", "-k", "test_inventory or test_memory")
        assert clean(lab)
    assert done.status == 1, done.output
    assert done.listed("rejected") == ["n01"]
    said = "test_inventory[gpus-n01]: n01: its number of GPUs is 7, and h100-sxm5"
    assert done.reason("n01").startswith(said)
    own = [check for check in done.checks() if check["nodes"] == ["n01"]]
    others = [check for check in own if "test_inventory[" not in check["id"]]
    assert {check["outcome"] for check in others} == {"unchecked"}
    assert {check["reason"].partition(":")[0] for check in others} == {"n01 is unusable"}
    assert found_at(done, "ecc") == "pass"


def found_at(done: Finished, subject: str) -> str:
    """The outcome of a subject on the first node."""
    return str(done.inventory()["n01", subject]["outcome"])


def test_lab_nodes_as_they_are_have_a_host_versions_and_a_network(tmp_path: Path) -> None:
    with Lab.up(nodes=2, rate="200mbit") as lab:
        done = accept(lab, tmp_path, *INVENTORY, "--hardware", "lab-200mbit")
        assert clean(lab)
    assert done.status == 0, done.output
    ends = {"pass": ["host", "nics", "peers", "versions"], "n/a": ["clocks", "ecc", "gpus", "nvlink", "pcie"]}
    for node in lab.nodes:
        checks = {subject: check for (name, subject), check in done.inventory().items() if name == node}
        assert {
            end: sorted(subject for subject, check in checks.items() if check["outcome"] == end)
            for end in ends
        } == ends
        met = checks["host"]["recorded"]
        assert 0 < met["login_s"] < 60
        assert abs(met["clock_offset_s"]) < 1
        assert checks["peers"]["recorded"]["compared_with"] == [name for name in lab.nodes if name != node]
    records = map(json.loads, (done.report / "results.jsonl").read_text().splitlines())
    jobs = [record for record in records if record["type"] == "job"]
    # the inventory needs no rank: the only jobs are those of the self-check
    assert all(WITHOUT_GPUS.items() <= job["environment"].items() for job in jobs)
