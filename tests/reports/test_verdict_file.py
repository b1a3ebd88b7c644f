from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from reports import verdict_file
from reports.decision import decide
from reports.record import CheckRecord, EndRecord, NodeRecord, Outcome, Record, Repeat
from tests.reports import making
from tests.reports.making import PAIR, check, green, green_checks, journal_of


def test_what_a_file_cannot_judge_is_said_also_where_the_file_was_not_named(tmp_path: Path) -> None:
    said = "trays alone"
    nodes = [NodeRecord(name, "ready", hardware="gb", facts={"judges": said}) for name in making.NODES]
    records: list[Record] = [making.run(notes=("read me", f"other judges {said}")), *nodes, making.end()]
    verdict_file.write(tmp_path / "verdict.json", records, decide(records))
    notes = json.loads((tmp_path / "verdict.json").read_text())["run"]["notes"]
    assert notes == ["read me", "other judges trays alone", "gb judges trays alone"]


def test_the_verdict_file_says_everything_that_a_gate_needs(tmp_path: Path) -> None:
    verdict_file.write(tmp_path / "verdict.json", making.rejected(), decide(making.rejected()))
    data = json.loads((tmp_path / "verdict.json").read_text())
    assert data["schema"] == 1
    assert data["exit_status"] == 1
    assert (data["workload"], data["hardware"], data["run"]["id"]) == ("dense", "h100", "r1")
    assert [(node["node"], node["verdict"]) for node in data["nodes"]] == [
        ("gpu01", "unproven"),
        ("gpu02", "rejected"),
    ]
    assert data["nodes"][1]["checks"] == [PAIR]
    assert data["nodes"][1]["reason"]
    assert data["counts"]["nodes"] == {"accepted": 0, "rejected": 1, "unproven": 1}
    assert data["counts"]["checks"] == {
        "planned": 4,
        "pass": 3,
        "fail": 1,
        "unchecked": 0,
        "n/a": 0,
        "not reported": 0,
        "without a node": 0,
    }
    assert data["blame"][0]["kind"] == "wrong data"
    assert data["blame"][0]["check"] == PAIR
    assert data["waits"] == [{"for": "the start of job job-1", "nodes": ["gpu01", "gpu02"], "seconds": 4.5}]


def test_the_verdict_file_says_where_the_time_went() -> None:
    searched = {"search": {"sentence": "n1", "rounds": 2, "seconds": 6.0}}
    again = Repeat(("gpu01",), Outcome.PASS, seconds=3.0)
    slow = replace(check(PAIR), seconds=20.0, recorded=searched, repeats=(again,))
    records = [slow if getattr(one, "id", "") == PAIR else one for one in journal_of(*green_checks())]
    records = [replace(one, seconds=40.0) if isinstance(one, EndRecord) else one for one in records]
    others = sum(one.seconds for one in records if isinstance(one, CheckRecord) and one is not slow)
    assert verdict_file.time_of(records) == {
        "measuring": 11.0 + others,
        "starting jobs": 4.5,
        "searching": 6.0,
        "measuring again": 3.0,
        "connecting and the rest": 40.0 - 11.0 - others - 13.5,
    }


def test_the_verdict_file_lists_what_never_reported_and_what_cannot_be_believed() -> None:
    records = journal_of(*green_checks())
    records[-2] = check("stray")
    data = json.loads(verdict_file.text(records, decide(records)))
    assert data["not_reported"] == [{"check": PAIR, "nodes": ["gpu01", "gpu02"], "partly": False}]
    assert data["faults"][0]["check"] == "stray"


def test_outcomes_and_what_never_reported_make_up_the_plan() -> None:
    for records, silent, partly in (
        (green(), 0, 0),
        ([one for one in green() if getattr(one, "id", "") != PAIR], 1, 0),
        ([*green()[:-2], check(PAIR, ["gpu01"]), green()[-1]], 0, 1),
    ):
        counts = verdict_file.check_counts(decide(records))
        assert (counts["not reported"], counts.pop("without a node")) == (silent, partly)
        assert counts.pop("planned") == sum(counts.values())
