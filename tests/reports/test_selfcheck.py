"""A run whose self-check did not pass says nothing of any node: nobody is accepted, nobody is rejected."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from reports.decision import decide
from reports.record import Blame, BlameKind, CheckRecord, Outcome, Record
from tests.each import each
from tests.reports import making
from tests.reports.making import (
    PAIR,
    SELF,
    check,
    green,
    green_checks,
    journal_of,
    letters,
    status,
    told,
)

BLAMED = Blame(BlameKind.WRONG_DATA, ("gpu02",), "the data of rank 1 on gpu02 are wrong", 1, "cpu")


def with_self_check(own: CheckRecord) -> list[Record]:
    """A run in which a node is convicted, with this word of its self-check."""
    corrupt = check(PAIR, outcome=Outcome.FAIL, blame=(BLAMED,))
    return journal_of(own, *green_checks()[:2], corrupt)


def ended(outcome: Outcome, **changes: Any) -> CheckRecord:
    """A self-check that ended otherwise."""
    return replace(SELF, outcome=outcome, reason="it saw nothing", judgements=(), **changes)


def unplanned() -> list[Record]:
    """A run with a convicted node that has no self-check at all."""
    records = with_self_check(SELF)
    checks = [one for one in records if isinstance(one, CheckRecord) and one != SELF]
    return [records[0], making.plan(*checks), *records[2:5], *checks, records[-1]]


MET = replace(SELF, blame=(BLAMED,))
SOME = making.run(selection="-k busbw")
OTHER = ended(Outcome.FAIL, id=f"{SELF.id}2", name="test_two")


@each(
    ("records", "expected", "ends", "words"),
    [
        (with_self_check(SELF), "ur", 1, ""),
        (journal_of(MET, *green_checks()), "au", 2, f"gpu02: {SELF.name}: the data of rank 1 on gpu02 are"),
        (journal_of(MET, *green_checks(), head=SOME), "uu", 1, "a selection accepts nobody"),
        (
            with_self_check(ended(Outcome.FAIL)),
            "uu",
            2,
            f"gpu02: the self-check did not pass: {SELF.name}: it saw",
        ),
        (with_self_check(ended(Outcome.UNCHECKED)), "uu", 2, "gpu02: the self-check did not pass: "),
        (with_self_check(ended(Outcome.NOT_APPLICABLE)), "uu", 2, "gpu02: the self-check did not pass: "),
        ([one for one in green() if one != SELF], "uu", 2, f"{SELF.name} has not reported"),
        (unplanned(), "uu", 2, "the self-check did not pass: it was not planned"),
        (
            journal_of(SELF, OTHER, *green_checks()),
            "uu",
            2,
            "the self-check did not pass: test_two: it saw nothing",
        ),
        ([*green()[:-1], SELF, green()[-1]], "uu", 2, "reported 2 times"),
        (with_self_check(replace(SELF, judgements=())), "uu", 2, "passed but recorded nothing"),
    ],
)
def test_without_a_good_self_check_nobody_is_accepted_or_rejected(
    records: list[Record], expected: str, ends: int, words: str
) -> None:
    assert (letters(records), status(records)) == (expected, ends)
    assert words in told(records)


def test_the_run_itself_says_that_its_self_check_failed() -> None:
    verdict = decide(with_self_check(ended(Outcome.FAIL)))
    assert verdict.refusals[0].startswith(f"the self-check did not pass: {SELF.name}: it saw nothing")
    assert {node.reason for node in verdict.nodes} == {verdict.refusals[0]}


@each(("kind", "expected"), [(BlameKind.WRONG_DATA, "ar"), (BlameKind.DEVICE, "ur")])
def test_wrong_data_of_either_of_two_nodes_are_those_of_the_one_that_is_convicted_of_them(
    kind: BlameKind, expected: str
) -> None:
    """A device that is convicted of being slow explains no wrong data."""
    both = Blame(BlameKind.WRONG_DATA, ("gpu01", "gpu02"), "wrong data at rank 1 on gpu02")
    first, second, pair = green_checks()
    own = replace(BLAMED, kind=kind, evidence=("its own",))
    bad = check(second.id, ["gpu02"], Outcome.FAIL, blame=(own,))
    records = journal_of(replace(SELF, blame=(both,)), first, bad, pair)
    assert (letters(records), status(records)) == (expected, 1)
    said = [one.blame for one in decide(records).blame]
    assert said == ([own] if expected == "ar" else [both, own])
    unexplained = journal_of(replace(SELF, blame=(both,)), first, second, pair)
    assert letters(unexplained) == "uu"


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
    text = making.page(records, tmp_path)
    trouble = text[text.index('<section id="trouble">') : text.index('<section id="checks">')]
    assert "<b>rank 1 on gpu02 exited with status 3</b>" in trouble
    [anchor] = re.findall(r'id="(check-\d+)"', trouble)
    assert text.count(f'id="{anchor}"') == 1
    [page] = tmp_path.glob("checks-selfcheck.html")
    assert f'<tbody id="{anchor}">' in page.read_text()
