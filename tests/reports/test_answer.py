from __future__ import annotations

from pathlib import Path

from reports.answer import console_lines, hosts_line, write_lists
from reports.begin import LISTS
from reports.decision import NodeVerdict, Standing, decide
from reports.record import NodeRecord, Outcome, Record
from tests.each import each
from tests.reports import making
from tests.reports.making import alone, check, green, green_checks, hosts, journal_of


def written(records: list[Record], directory: Path) -> dict[str, str]:
    write_lists(directory, decide(records))
    return {name.removesuffix(".txt"): (directory / name).read_text() for name in LISTS}


def test_the_lists_are_hosts_files_with_reasons(tmp_path: Path) -> None:
    text = written(making.rejected(), tmp_path)
    assert hosts(text["rejected"]) == ["gpu02 slots=8"]
    assert hosts(text["unproven"]) == ["gpu01 slots=8"]
    assert "# gpu02: test_busbw[all_reduce-network]: the wrong data of gpu02 is to blame" in text["rejected"]
    assert "# gpu01: " in text["unproven"]


def test_an_empty_list_still_says_what_it_is_for(tmp_path: Path) -> None:
    text = written(making.rejected(), tmp_path)
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
    assert hosts_line(node) == "ops@gpu07 slots=8"


def test_a_reason_cannot_smuggle_a_host_into_a_list(tmp_path: Path) -> None:
    evil = check(alone("gpu01"), ["gpu01"], Outcome.FAIL, reason="slow\ngpu99 slots=8")
    head = making.run(hosts={"gpu01": "gpu01\ngpu98", "gpu02": "gpu02"})
    text = written(journal_of(evil, *green_checks()[1:], head=head), tmp_path)
    assert hosts(text["rejected"]) == ["gpu01 gpu98"]  # one line, which the hosts file's grammar refuses
    assert not any(line.startswith("gpu9") for body in text.values() for line in body.splitlines())


def test_a_line_per_node_and_one_for_the_run() -> None:
    assert console_lines(decide(green()), "out/report.html") == [
        "accepted  gpu01  2 checks passed, none speaks against it",
        "accepted  gpu02  2 checks passed, none speaks against it",
        "2 accepted, 0 rejected, 0 unproven for workload dense on hardware h100; details: out/report.html",
    ]


def test_the_bad_nodes_come_last_and_say_where_to_look() -> None:
    failed = check(alone("gpu01"), ["gpu01"], Outcome.FAIL, reason="7 of 8 GPUs")
    shown = console_lines(decide(journal_of(failed, *green_checks()[1:])))
    assert shown[0].startswith("accepted  gpu02")
    assert shown[1] == f"rejected  gpu01  test_gpus[gpu01]: 7 of 8 GPUs  (see {alone('gpu01')})"


def test_a_run_that_accepts_nobody_says_why() -> None:
    assert "nobody is accepted: the run was cut short" in console_lines(decide(green()[:-1]))[-1]


@each(("number", "first"), [(32, "accepted  gpu001"), (33, "accepted  33 nodes: gpu[001-033]")])
def test_many_accepted_nodes_share_a_line(number: int, first: str) -> None:
    names = [f"gpu{index:03d}" for index in range(1, number + 1)]
    passed = check("t.py::test_all", names)
    ready = [NodeRecord(name, "ready") for name in names]
    checks = (making.SELF, passed)
    shown = console_lines(
        decide([making.run(nodes=names), making.plan(*checks), *ready, *checks, making.end()])
    )
    assert shown[0].startswith(first)
    assert len(shown) == (33 if number == 32 else 2)
