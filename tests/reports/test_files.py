from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports import atomic, lists, verdict_file
from reports.record import BlameKind, Outcome, Record
from reports.verdict import NodeVerdict, Standing, decide
from tests.reports import making
from tests.reports.making import PAIR, alone, blame, check, green, green_checks, journal_of


def rejected() -> list[Record]:
    corrupt = check(PAIR, outcome=Outcome.FAIL, blame=(blame(BlameKind.WRONG_DATA, "gpu02"),))
    return journal_of(*green_checks()[:2], corrupt)


def written(records: list[Record], directory: Path) -> dict[str, str]:
    lists.write(directory, decide(records))
    return {standing.value: (directory / f"{standing.value}.txt").read_text() for standing in Standing}


def hosts(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_the_verdict_file_says_everything_that_a_gate_needs(tmp_path: Path) -> None:
    verdict_file.write(tmp_path / "verdict.json", rejected(), decide(rejected()))
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


def test_the_verdict_file_lists_what_never_reported_and_what_cannot_be_believed() -> None:
    records = journal_of(*green_checks())
    records[-2] = check("stray")
    data = json.loads(json.dumps(verdict_file.document(records, decide(records))))
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


@pytest.mark.parametrize("records", [[], green()[:-1], green()[:1]], ids=["nothing", "no end", "head only"])
def test_half_a_run_has_a_verdict_file_too(records: list[Record], tmp_path: Path) -> None:
    verdict_file.write(tmp_path / "verdict.json", records, decide(records))
    data = json.loads((tmp_path / "verdict.json").read_text())
    assert data["exit_status"] == 2
    assert data["run"]["cut_short"]


def test_the_lists_are_hosts_files_with_reasons(tmp_path: Path) -> None:
    text = written(rejected(), tmp_path)
    assert hosts(text["rejected"]) == ["gpu02 slots=8"]
    assert hosts(text["unproven"]) == ["gpu01 slots=8"]
    assert "# gpu02: test_busbw[all_reduce-network]: the wrong data of gpu02 is to blame" in text["rejected"]
    assert "# gpu01: " in text["unproven"]


def test_an_empty_list_still_says_what_it_is_for(tmp_path: Path) -> None:
    text = written(rejected(), tmp_path)
    assert hosts(text["accepted"]) == []
    assert "accepted for workload dense on hardware h100, run r1" in text["accepted"]
    assert "0 of 2 nodes" in text["accepted"]


def test_accepted_nodes_keep_their_line(tmp_path: Path) -> None:
    head = making.run(hosts={"gpu01": "ops@gpu01  slots=8 addr=10.0.0.1", "gpu02": "gpu02"})
    text = written(journal_of(*green_checks(), head=head), tmp_path)
    assert hosts(text["accepted"]) == ["ops@gpu01 slots=8 addr=10.0.0.1", "gpu02"]
    assert hosts(text["rejected"]) == hosts(text["unproven"]) == []


def test_a_selection_says_why_the_list_is_empty(tmp_path: Path) -> None:
    text = written(journal_of(*green_checks(), head=making.run(selection="-k x")), tmp_path)
    assert hosts(text["accepted"]) == []
    assert "# nobody is accepted: a selection accepts nobody (-k x)" in text["accepted"]


def test_a_range_is_never_handed_over_for_one_of_its_nodes() -> None:
    node = NodeVerdict("gpu07", Standing.ACCEPTED, "", (), "ops@gpu[01-16] slots=8")
    assert lists.hosts_line(node) == "ops@gpu07 slots=8"


def test_a_reason_cannot_smuggle_a_host_into_a_list(tmp_path: Path) -> None:
    evil = check(alone("gpu01"), ["gpu01"], Outcome.FAIL, reason="slow\ngpu99 slots=8")
    head = making.run(hosts={"gpu01": "gpu01\ngpu98", "gpu02": "gpu02"})
    text = written(journal_of(evil, *green_checks()[1:], head=head), tmp_path)
    assert hosts(text["rejected"]) == ["gpu01 gpu98"]  # one line, which the hosts file's grammar refuses
    assert not any(line.startswith("gpu9") for body in text.values() for line in body.splitlines())


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "accepted.txt"
    atomic.write_text(path, "old\n")

    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="no"):
        atomic.write_text(path, "new\n")
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_reports_can_be_read_by_the_ci_server(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "x", "")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644
