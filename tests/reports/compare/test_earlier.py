"""What checks took is read off the journals of earlier runs of the same hardware, without their samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from reports.begin import JOURNAL
from reports.compare.earlier import Earlier, earlier, history, kind_of, skim
from reports.record import CheckRecord, JobRecord, NodeRecord, Outcome, Record, Repeat, RunRecord
from tests.reports.making import save

TEST = "suites/zero/test_zero.py::test_it"


def check(name: str, seconds: float, nodes: Sequence[str] = ("a", "b"), **more: Any) -> CheckRecord:
    """Make the record of a check that passed."""
    fields: dict[str, Any] = {"outcome": Outcome.PASS, **more}
    return CheckRecord(f"{TEST}[{name}]", "suites.zero", name, tuple(nodes), seconds=seconds, **fields)


def measured(seconds: float) -> Mapping[str, Any]:
    """Make a measurement, with samples that are called as the figures are that are looked for."""
    ranks = [{"rank": 0, "result": {"seconds": [1.0, 2.0], "started": '},"started":"'}}]
    return {"ranks": ranks, "step": "zero.ddp", "parameters": {}, "seconds": seconds}


def write(
    runs: Path, name: str, *records: Record, hardware: str = "lab", hosts: Sequence[str] = ("a", "b")
) -> Path:
    """Leave a journal of a run on these hosts."""
    head = RunRecord(name, "2026-11-23", "here", ("pytest",), "zero", "auto", {host: host for host in hosts})
    nodes = (NodeRecord(host, "ready", "", hardware) for host in hosts)
    return save([head, *nodes, *records], runs / name)


def taken(runs: Path, nodes: int = 2, hardware: str = "lab") -> Earlier:
    """Read these runs as one on so many nodes would."""
    return earlier(history(runs), [hardware], nodes)


def test_the_start_of_a_job_is_not_what_its_first_check_takes(tmp_path: Path) -> None:
    job = JobRecord("1", ("a", "b"), {}, ({"pid": 1},), start_seconds=9.0)
    ended = JobRecord("1", ("a", "b"), {}, (), start_seconds=9.0, ended="the run is over")
    write(tmp_path, "1", job, check("x", 3.0), check("y", 2.0), ended)
    found = taken(tmp_path)
    assert found.same == {f"{TEST}[x]": 3.0, f"{TEST}[y]": 2.0}
    assert (found.first_start_s, found.start_s) == (9.0, None)


def test_a_check_of_every_node_took_what_the_longest_did(tmp_path: Path) -> None:
    one = check("x-a", 4.0, ["a"], measurement=measured(3.5))
    write(tmp_path, "1", one, check("x-b", 0.01, ["b"], measurement=measured(3.5)))
    assert taken(tmp_path).same == {f"{TEST}[x]": 4.0}


def test_a_test_that_was_handed_the_answer_says_what_measuring_took(tmp_path: Path) -> None:
    write(tmp_path, "1", check("x", 0.01, measurement=measured(3.5), properties={"started": "no"}))
    assert taken(tmp_path).same == {f"{TEST}[x]": 3.5}


def test_what_failed_took_a_search_as_well(tmp_path: Path) -> None:
    again = Repeat(("a",), Outcome.PASS, measurement=measured(50.0))
    fields: dict[str, Any] = {"outcome": Outcome.FAIL, "reason": 'it says "nodes":["z"]', "repeats": (again,)}
    bad = check("x", 300.0, measurement=measured(3.5), **fields)
    write(tmp_path, "1", bad, check("y", 300.0, outcome=Outcome.UNCHECKED))
    assert taken(tmp_path).same == {f"{TEST}[x]": 3.5}


def test_the_median_of_the_newest_three_on_as_many_nodes(tmp_path: Path) -> None:
    for number, seconds in enumerate((1000.0, 1.0, 2.0, 30.0)):
        write(tmp_path, f"2026112{number}", check("x", seconds))
    write(tmp_path, "20261129", check("x", 500.0), hosts=("a", "b", "c"))
    write(tmp_path, "20261130", check("x", 700.0), hardware="other")
    found = taken(tmp_path)
    assert (found.same, found.other) == ({f"{TEST}[x]": 2.0}, {f"{TEST}[x]": 500.0})
    assert found.runs == ("20261123", "20261122", "20261121")


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", '{"run_id": 1, "hosts": 3}\n', "no json\n"])
def test_what_is_no_journal_is_left_out(tmp_path: Path, text: str) -> None:
    path = tmp_path / "9" / JOURNAL
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    assert skim(path) is None
    write(tmp_path, "1", check("x", 1.0))
    assert taken(tmp_path).runs == ("1",)


def test_a_run_that_was_killed_says_what_it_did(tmp_path: Path) -> None:
    path = write(tmp_path, "1", check("x", 1.0))
    with path.open("ab") as file:
        file.write(b'{"type":"check","id":"torn')
    assert taken(tmp_path).same == {f"{TEST}[x]": 1.0}


def test_the_run_that_goes_on_is_no_earlier_one(tmp_path: Path) -> None:
    write(tmp_path, "1", check("x", 1.0))
    assert list(history(tmp_path, leave_out="1")) == []


@pytest.mark.parametrize(
    ("check_id", "nodes", "kind"),
    [
        ("t[all_reduce-inside-gpu-01]", ["gpu-01"], "t[all_reduce-inside]"),
        ("t[gpu-01]", ["gpu-01"], "t[]"),
        ("t[x-n.1_0a1b2c]", ["n.1"], "t[x]"),  # two names that are one to a CI server
        ("t[x-network]", ["a", "b"], "t[x-network]"),
        ("t[apart]", [], "t[apart]"),
    ],
)
def test_a_kind_of_check_is_the_same_on_any_node(check_id: str, nodes: list[str], kind: str) -> None:
    assert kind_of(check_id, nodes) == kind
