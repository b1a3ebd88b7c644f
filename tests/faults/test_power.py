"""Nodes that lose power cost nobody else the verdict, beside another fault."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults.cases.controller import in_phase
from tests.faults.runs import Running
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

COLLECTIVES = ("--hardware", "lab-200mbit", "--workload", "nodes,collectives")


def started(jobs: int, journal: str) -> bool:
    """Say whether so many jobs have had ranks."""
    return journal.count('"ended":""') == jobs


def test_who_loses_power_costs_nobody_the_verdict_beside_a_slow_link(tmp_path: Path) -> None:
    """One in the first all_reduce, one in its repeat, which runs in a job of its own."""
    with Lab.up(nodes=6, rate="200mbit") as lab:
        lab.shape("n02", "180mbit")
        running = Running(lab, tmp_path, *COLLECTIVES)
        for node, jobs in (("n03", 2), ("n05", 3)):  # the first is the self-check's
            running.wait_for(partial(started, jobs), 600)
            in_phase(lab, node, "timed 1048576")
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
