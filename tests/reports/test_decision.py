"""Who is accepted, rejected or unproven, and the exit status that says so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reports.decision import Standing, decide
from reports.record import (
    CONVICTING,
    BlameKind,
    CheckRecord,
    EndRecord,
    Judgement,
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
    PAIR,
    alone,
    blame,
    check,
    green,
    green_checks,
    journal_of,
    letters,
    node,
    standings,
    status,
    told,
    with_pair,
)

ONE, TWO, BOTH = green_checks()
WRONG = blame(BlameKind.WRONG_DATA, "gpu02")
OF_ALL = check("suites/soak/test_red.py::test_red", [], Outcome.FAIL)
SILENT = check("suites/soak/test_red.py::test_red", [])
BARE = Judgement("wrong", Outcome.PASS, "", value=0.0)


def failed_alone(*more: CheckRecord, **changes: object) -> list[Record]:
    """A run in which a check of the first node alone fails."""
    return journal_of(check(alone("gpu01"), ["gpu01"], Outcome.FAIL, **changes), *(more or (TWO, BOTH)))


def but(records: list[Record], *gone: Record | type[Record]) -> list[Record]:
    """The run without these records, or without all of a kind."""
    kinds = tuple(one for one in gone if isinstance(one, type))
    return [one for one in records if one not in gone and not isinstance(one, kinds)]


def spoiled(nodes: Iterable[str] = making.NODES, **changes: Any) -> list[Record]:
    """A green run in which the check of both nodes reports something else."""
    return [*green()[:-2], check(PAIR, nodes, **changes), green()[-1]]


def with_node(records: list[Record], place: int, name: str, state: str, why: str = "") -> list[Record]:
    """The run with one more word about a node."""
    return [*records[:place], NodeRecord(name, state, why), *records[place:]]


def nothing(selection: str) -> list[Record]:
    """A run in which nothing was collected."""
    return [making.run(selection=selection), PlanRecord(()), making.end(pytest_status=5)]


def headed(*checks: CheckRecord, **changes: Any) -> list[Record]:
    """The run of these checks (a green one) under another head."""
    return journal_of(*(checks or green_checks()), head=making.run(**changes))


# Standings are initials in the order of the nodes, and ? where another row says them.
RUNS: list[tuple[list[Record], str, int, str]] = [
    (green(), "aa", 0, ""),
    (with_pair(Outcome.NOT_APPLICABLE), "aa", 0, ""),
    (
        journal_of(ONE, check(PAIR, outcome=Outcome.NOT_APPLICABLE)),
        "au",
        2,
        "gpu02: no check judged this node",
    ),
    (journal_of(ONE, TWO, check(PAIR, judgements=(BARE,))), "aa", 0, ""),
    # failures, and whom their evidence names
    (with_pair(Outcome.FAIL), "uu", 2, "gpu01: test_busbw[all_reduce-network]: because of fail"),
    *((with_pair(Outcome.FAIL, blame(kind, "gpu02")), "ur", 1, "gpu02 is to blame") for kind in CONVICTING),
    *((with_pair(Outcome.FAIL, blame(kind, *making.NODES)), "uu", 2, "") for kind in CONVICTING),
    *((with_pair(Outcome.FAIL, blame(kind, "gpu02")), "uu", 2, "") for kind in set(BlameKind) - CONVICTING),
    (with_pair(Outcome.UNCHECKED, blame(BlameKind.NODE, "gpu02")), "uu", 2, ""),
    (failed_alone(), "ra", 1, ""),
    (failed_alone(blame=(blame(BlameKind.SOFTWARE, "gpu01"),)), "ua", 2, ""),
    (journal_of(check(alone("gpu01"), ["gpu01"], Outcome.UNCHECKED), TWO, BOTH), "ua", 2, ""),
    # wrong data outrank whatever became of the check and of the run
    *((with_pair(outcome, WRONG), "?r", 1, "gpu02: test_busbw") for outcome in Outcome),
    (with_node(with_pair(Outcome.FAIL, WRONG), -1, "gpu02", "lost", "its channel closed"), "?r", 1, ""),
    (with_pair(Outcome.FAIL, WRONG)[:-1], "ur", 2, ""),
    (headed(ONE, TWO, check(PAIR, outcome=Outcome.FAIL, blame=(WRONG,)), selection="-k x"), "ur", 1, ""),
    # nodes that are not there, and checks that did not report
    (
        with_node(journal_of(ONE), 3, "gpu02", "unreachable", "no answer on port 22"),
        "au",
        2,
        "gpu02: unreachable: no answer on port 22",
    ),
    ([one for one in green() if getattr(one, "name", "") != "gpu02"], "au", 2, "nothing was ever heard"),
    (but(green(), BOTH), "uu", 2, f"not reported: {PAIR}"),
    ([*green()[:-2], check(PAIR, ["gpu01"]), green()[-1]], "au", 2, f"gpu02: not reported: {PAIR}"),
    (journal_of(*green_checks(), OF_ALL), "uu", 2, "gpu02: test_red"),
    (but(journal_of(*green_checks(), SILENT), SILENT), "uu", 2, "gpu02: not reported"),
    ([making.run(nodes=[]), making.plan(making.SELF), making.SELF, making.end()], "", 2, ""),
    (
        failed_alone(reason="\x1b[31mtoo slow\nand more\x1b[0m"),
        "ra",
        1,
        "gpu01: test_gpus[gpu01]: too slow\n",
    ),
    # what forbids the run as a whole to accept anybody
    (journal_of(*green_checks(), status=1), "uu", 2, "no check says what"),
    (headed(hardware="none"), "uu", 2, "no hardware file was used"),
    (headed(hardware=""), "uu", 2, "no hardware file was used"),
    (headed(hardware="auto"), "aa", 0, ""),
    (
        but(with_node(headed(hardware="auto"), 2, "gpu02", "ready"), making.ready()[1]),
        "au",
        2,
        "no hardware file",
    ),
    (headed(nodes=["gpu01"]), "au", 2, "gpu02: the run's hosts do not name this node"),
    # a selection accepts nobody and ends as pytest would
    (headed(selection="-k busbw"), "uu", 0, "gpu01: a selection accepts nobody (-k busbw)"),
    (headed(check(PAIR, outcome=Outcome.FAIL), selection="-k busbw"), "uu", 1, ""),
    (headed(check(PAIR, outcome=Outcome.UNCHECKED), selection="-k busbw"), "uu", 1, ""),
    (but(headed(selection="-k busbw"), BOTH), "uu", 1, ""),
    ([*headed(selection="not collected: test_zero.py")[:-1], making.end(pytest_status=1)], "uu", 1, ""),
    (headed(check(PAIR, outcome=Outcome.FAIL), selection="-k busbw")[:-1], "uu", 2, ""),
    # nothing collected is 5, and cut short comes before rejected
    (nothing(""), "uu", 5, "nothing was planned"),
    (nothing("-k nothing"), "uu", 5, "nothing was planned"),
    (nothing("")[:-1], "uu", 5, "nothing was planned"),
    (nothing("-k nothing")[:-1], "uu", 5, "nothing was planned"),
    (with_pair(Outcome.FAIL, blame(BlameKind.NODE, "gpu02"))[:-1], "ur", 2, ""),
]


@each(("records", "expected", "ends", "words"), RUNS)
def test_every_node_has_its_standing_and_the_run_its_status(
    records: list[Record], expected: str, ends: int, words: str
) -> None:
    found = letters(records)
    assert (expected.replace("?", found[:1]), ends) == (found, status(records))
    assert words in told(records)


def test_a_verdict_names_the_checks_behind_it_and_what_they_blame() -> None:
    assert node(green(), "gpu01").checks == (alone("gpu01"), PAIR)
    assert decide(green()).refusals == ()
    [named] = decide(failed_alone()).blame
    assert (named.check, named.blame.kind, named.blame.nodes) == (alone("gpu01"), BlameKind.NODE, ("gpu01",))
    corrupt = check(PAIR, outcome=Outcome.FAIL, blame=(WRONG,))
    both = node(journal_of(ONE, check(alone("gpu02"), ["gpu02"], Outcome.FAIL), corrupt), "gpu02")
    assert "wrong data of gpu02" in both.reason
    assert both.checks == (PAIR, alone("gpu02"))
    [silent] = decide(but(green(), BOTH)).not_reported
    assert (silent.check, silent.nodes) == (PAIR, making.NODES)
    assert decide(headed(hardware="auto")).hardware == "h100"


def planned(*plans: Iterable[CheckRecord]) -> list[Record]:
    """A green run with these plans."""
    return [green()[0], *(making.plan(*plan) for plan in plans), *green()[2:]]


FAILED = replace(making.GREEN, outcome=Outcome.FAIL)
OWN = [making.SELF, ONE, TWO]
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


CUT_SHORT = {
    "no records": [],
    "no head": but(green(), RunRecord),
    "no plan": but(green(), PlanRecord),
    "no end": but(green(), EndRecord),
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
    assert name != "said so" or "SIGTERM" in node(records, "gpu01").reason


CHECKS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(making.NODES), min_size=1).map(sorted),
        st.sampled_from(Outcome),
        st.sampled_from([None, *BlameKind]),
        st.booleans(),
    ),
    max_size=6,
)


@given(CHECKS)
def test_nothing_is_accepted_that_was_not_passed_by_every_planned_check(
    drawn: list[tuple[list[str], Outcome, BlameKind | None, bool]],
) -> None:
    """Against the rule in its shortest form, over every mixture of outcomes, blame and silence."""
    planned = [
        check(f"check {index}", nodes, outcome, blame=(blame(kind, nodes[0]),) if kind else ())
        for index, (nodes, outcome, kind, _) in enumerate(drawn)
    ]
    records = journal_of(*planned)
    silent = {f"check {index}" for index, (*_, reports) in enumerate(drawn) if not reports}
    records = [record for record in records if not (isinstance(record, CheckRecord) and record.id in silent)]
    good = (Outcome.PASS, Outcome.NOT_APPLICABLE)
    for name in making.NODES:
        mine = [one for one in planned if name in one.nodes]
        if node(records, name).standing is Standing.ACCEPTED:
            assert all(one.outcome in good and one.id not in silent for one in mine)
            assert any(one.outcome is Outcome.PASS for one in mine)
    if status(records) == 0:
        assert standings(records) == ALL_ACCEPTED


def test_a_node_that_is_gone_is_named_also_where_no_check_says_so() -> None:
    gone = [NodeRecord("gpu02", "unusable", "nobody reaches it"), *making.ready("gpu01")]
    records = [*journal_of(check(alone("gpu01"), ["gpu01"])), *gone]
    [named] = decide(records).blame
    assert (named.check, named.blame.kind, named.blame.nodes) == ("", BlameKind.LOST, ("gpu02",))
    assert named.blame.sentence == "gpu02 is unusable: nobody reaches it"


def test_a_node_that_a_check_names_or_that_was_set_aside_is_not_named_again() -> None:
    named = check(PAIR, ["gpu01", "gpu02"], Outcome.UNCHECKED, blame=(blame(BlameKind.CRASH, "gpu02"),))
    lost, aside = NodeRecord("gpu02", "lost", "silence"), NodeRecord("gpu01", "set aside", "slow")
    assert [one.check for one in decide([*journal_of(named), lost, aside]).blame] == [PAIR]
