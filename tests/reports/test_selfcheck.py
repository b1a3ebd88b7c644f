"""A run whose self-check did not pass says nothing of any node: nobody is accepted, nobody is rejected."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from reports.decision import decide
from reports.page import html
from reports.record import Blame, BlameKind, CheckRecord, Outcome, PlanRecord, Record
from tests.each import each
from tests.reports import making
from tests.reports.making import (
    NEITHER,
    PAIR,
    SELF,
    check,
    green,
    green_checks,
    journal_of,
    standings,
    status,
)

BLAMED = Blame(BlameKind.WRONG_DATA, ("gpu02",), "the data of rank 1 on gpu02 are wrong", 1, "cpu")


def with_self_check(own: CheckRecord) -> list[Record]:
    """A run in which a node is convicted, with this word of its self-check."""
    corrupt = check(PAIR, outcome=Outcome.FAIL, blame=(BLAMED,))
    return journal_of(own, *green_checks()[:2], corrupt)


def test_after_a_good_self_check_nodes_are_accepted_and_rejected() -> None:
    assert standings(green()) == making.ALL_ACCEPTED
    assert standings(with_self_check(SELF)) == {"gpu01": "unproven", "gpu02": "rejected"}
    assert status(with_self_check(SELF)) == 1


def test_whom_a_good_self_check_met_is_unproven_for_that_and_nobody_else() -> None:
    records = journal_of(replace(SELF, blame=(BLAMED,)), *green_checks())
    assert standings(records) == {"gpu01": "accepted", "gpu02": "unproven"}
    assert status(records) == 2
    (reason,) = [one.reason for one in decide(records).nodes if one.node == "gpu02"]
    assert reason == f"{SELF.name}: the data of rank 1 on gpu02 are wrong"


def test_a_selection_of_green_checks_is_red_when_its_self_check_met_somebody() -> None:
    some = making.run(selection="-k busbw")
    assert status(journal_of(*green_checks(), head=some)) == 0
    assert status(journal_of(replace(SELF, blame=(BLAMED,)), *green_checks(), head=some)) == 1


@each("outcome", [Outcome.FAIL, Outcome.UNCHECKED, Outcome.NOT_APPLICABLE])
def test_after_a_bad_self_check_the_whole_run_is_unproven(outcome: Outcome) -> None:
    records = with_self_check(replace(SELF, outcome=outcome, reason="it saw nothing", judgements=()))
    assert standings(records) == NEITHER
    assert status(records) == 2
    verdict = decide(records)
    assert verdict.refusals[0].startswith(f"the self-check failed: {SELF.name}: it saw nothing")
    assert {node.reason for node in verdict.nodes} == {verdict.refusals[0]}


def test_a_self_check_that_says_nothing_is_a_bad_one() -> None:
    records = [record for record in green() if not (isinstance(record, CheckRecord) and record.id == SELF.id)]
    assert standings(records) == NEITHER
    assert f"{SELF.name} has not reported" in decide(records).refusals[0]


def test_a_run_without_a_self_check_accepts_and_rejects_nobody() -> None:
    records: list[Record] = []
    for record in with_self_check(SELF):
        if isinstance(record, PlanRecord):
            records.append(PlanRecord(tuple(one for one in record.checks if one.id != SELF.id)))
        elif not (isinstance(record, CheckRecord) and record.id == SELF.id):
            records.append(record)
    assert standings(records) == NEITHER
    assert status(records) == 2
    assert "it was not planned" in decide(records).refusals[0]


def test_one_bad_word_is_enough() -> None:
    other = replace(SELF, id=f"{SELF.id}2", name="test_two", outcome=Outcome.FAIL, reason="no", judgements=())
    assert standings(journal_of(SELF, other, *green_checks())) == NEITHER


def test_a_self_check_that_reports_twice_is_not_believed() -> None:
    records = green()
    records.insert(-1, SELF)
    assert standings(records) == NEITHER


def test_a_pass_that_compared_nothing_is_not_believed() -> None:
    assert standings(with_self_check(replace(SELF, judgements=()))) == NEITHER


def test_an_unreachable_node_keeps_its_own_reason() -> None:
    bad = replace(SELF, outcome=Outcome.UNCHECKED, reason="no two ranks", judgements=())
    records = [
        replace(record, state="unreachable", reason="no route") if record in making.ready("gpu01") else record
        for record in journal_of(bad, *green_checks())
    ]
    assert making.node(records, "gpu01").reason == "unreachable: no route"


def test_a_check_that_passed_and_met_somebody_is_told_with_its_blame(tmp_path: Path) -> None:
    met = replace(SELF, blame=(Blame(BlameKind.CRASH, ("gpu02",), "rank 1 on gpu02 exited with status 3"),))
    records = journal_of(met, *green_checks())
    html.write(tmp_path, records, decide(records))
    text = (tmp_path / "report.html").read_text()
    trouble = text[text.index('<section id="trouble">') : text.index('<section id="checks">')]
    assert "<b>rank 1 on gpu02 exited with status 3</b>" in trouble
    [anchor] = re.findall(r'id="(check-\d+)"', trouble)
    assert text.count(f'id="{anchor}"') == 1
    assert f'<a href="#{anchor}">{SELF.name}</a>' in text[text.index('<section id="checks">') :]
