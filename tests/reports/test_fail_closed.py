from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from reports.decision import Standing, decide
from reports.record import (
    BlameKind,
    CheckRecord,
    EndRecord,
    NodeRecord,
    Outcome,
    PlanRecord,
    Record,
    RunRecord,
)
from tests.each import each
from tests.reports import making
from tests.reports.making import (
    ALL_ACCEPTED,
    NEITHER,
    PAIR,
    blame,
    check,
    green,
    green_checks,
    journal_of,
    node,
    standings,
    status,
    with_pair,
)


def spoiled(nodes: Iterable[str] = making.NODES, **changes: Any) -> list[Record]:
    """A green run in which the check of both nodes reports something else."""
    return [*green()[:-2], check(PAIR, nodes, **changes), green()[-1]]


def planned(*plans: Iterable[CheckRecord]) -> list[Record]:
    """A green run with these plans."""
    return [green()[0], *(making.plan(*plan) for plan in plans), *green()[2:]]


OWN, FAILED = [making.SELF, *green_checks()[:2]], replace(making.GREEN, outcome=Outcome.FAIL)
UNBELIEVABLE: list[tuple[str, list[Record]]] = [
    ("reported 2 times", [*green()[:-1], check(PAIR), green()[-1]]),
    ("test_stray reported but was never planned", [*green()[:-1], check("x.py::test_stray"), green()[-1]]),
    ("reported for gpu03, which its plan does not name", spoiled((*making.NODES, "gpu03"))),
    ("the journal holds 2 plans", planned(OWN, green_checks()[2:])),
    ("was planned 2 times", planned([*OWN, check(PAIR), check(PAIR)])),
    ("passed but recorded nothing", spoiled(judgements=())),
    ("passed although busbw is fail", spoiled(judgements=(making.GREEN, FAILED))),
    (
        "busbw has no value to hold against its limit",
        spoiled(judgements=(replace(making.GREEN, value=math.nan),)),
    ),
    (
        "passed although busbw has no value to hold",
        spoiled(judgements=(replace(making.GREEN, value=None),)),
    ),
    ("passed although its evidence blames a node", spoiled(blame=(blame(BlameKind.NIC, "gpu01"),))),
    ("blames gpu09", spoiled(outcome=Outcome.FAIL, blame=(blame(BlameKind.NODE, "gpu09"),))),
    ("is n/a without a reason", spoiled(outcome=Outcome.NOT_APPLICABLE, reason=" ")),
]


@each(("fault", "records"), UNBELIEVABLE)
def test_a_report_that_cannot_be_believed_is_an_error(fault: str, records: list[Record]) -> None:
    verdict = decide(records)
    assert [entry.sentence for entry in verdict.faults if fault in entry.sentence]
    assert making.nobody_accepted(records)
    assert not verdict.standing(Standing.REJECTED)
    assert status(records) == 2


def without(kind: type[Record]) -> list[Record]:
    return [record for record in green() if not isinstance(record, kind)]


CUT_SHORT = {
    "no records": [],
    "no head": without(RunRecord),
    "no plan": without(PlanRecord),
    "no end": without(EndRecord),
    "said so": [*green()[:-1], making.end(cut_short="SIGTERM")],
    "said so twice": [*green(), making.end(cut_short="torn")],
    "two ends": [*green(), making.end()],
    "goes on": [*green(), NodeRecord("gpu01", "ready")],
    "interrupted": [*green()[:-1], making.end(pytest_status=2)],
    "internal error": [*green()[:-1], making.end(pytest_status=3)],
}


@each("name", CUT_SHORT)
def test_a_run_that_was_cut_short_accepts_nobody(name: str) -> None:
    records = CUT_SHORT[name]
    assert making.nobody_accepted(records)
    assert decide(records).cut_short
    assert status(records) == 2


def test_a_run_cut_short_says_why_for_each_node() -> None:
    assert "SIGTERM" in node(CUT_SHORT["said so"], "gpu01").reason


def test_pytest_failing_without_a_failed_check_accepts_nobody() -> None:
    records = journal_of(*green_checks(), status=1)
    assert standings(records) == NEITHER
    assert status(records) == 2


@each("hardware", ["none", ""])
def test_without_a_hardware_file_nobody_is_accepted(hardware: str) -> None:
    records = journal_of(*green_checks(), head=making.run(hardware=hardware))
    assert standings(records) == NEITHER
    assert status(records) == 2


def test_hardware_that_no_file_knows_is_not_accepted() -> None:
    records = journal_of(*green_checks(), head=making.run(hardware="auto"))
    assert standings(records) == ALL_ACCEPTED
    assert decide(records).hardware == "h100"
    records[3] = NodeRecord("gpu02", "ready", hardware="")
    assert standings(records) == {"gpu01": "accepted", "gpu02": "unproven"}


def test_a_node_that_the_hosts_do_not_name_is_not_accepted() -> None:
    records = journal_of(*green_checks(), head=making.run(nodes=["gpu01"]))
    assert standings(records) == {"gpu01": "accepted", "gpu02": "unproven"}


def selected(*checks: CheckRecord) -> list[Record]:
    return journal_of(*checks, head=making.run(selection="-k busbw"))


def test_a_selection_accepts_nobody_and_ends_as_pytest_would() -> None:
    assert standings(selected(*green_checks())) == NEITHER
    assert "-k busbw" in node(selected(*green_checks()), "gpu01").reason
    assert status(selected(*green_checks())) == 0


@each("outcome", [Outcome.FAIL, Outcome.UNCHECKED])
def test_a_selection_with_a_red_check_ends_with_1(outcome: Outcome) -> None:
    assert status(selected(check(PAIR, outcome=outcome))) == 1


def test_a_selection_in_which_a_check_is_silent_ends_with_1() -> None:
    silent = check(PAIR)
    assert status([record for record in selected(*green_checks()[:2], silent) if record is not silent]) == 1


def test_a_selection_that_was_cut_short_ends_with_2() -> None:
    assert status(selected(check(PAIR, outcome=Outcome.FAIL))[:-1]) == 2


@each("selection", ["", "-k nothing"])
def test_nothing_collected_is_5_even_when_cut_short(selection: str) -> None:
    records: list[Record] = [making.run(selection=selection), PlanRecord(()), making.end(pytest_status=5)]
    assert status(records) == 5
    assert status(records[:-1]) == 5
    assert "nothing was planned" in decide(records).refusals
    assert making.nobody_accepted(records)


def test_cut_short_comes_before_rejected() -> None:
    assert status(with_pair(Outcome.FAIL, blame(BlameKind.NODE, "gpu02"))[:-1]) == 2
