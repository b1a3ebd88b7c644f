from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from reports.decision import Standing, decide
from reports.record import (
    CONVICTING,
    BlameKind,
    CheckRecord,
    Judgement,
    NodeRecord,
    Outcome,
    Record,
)
from tests.each import each
from tests.reports import making
from tests.reports.making import (
    ALL_ACCEPTED,
    NEITHER,
    PAIR,
    alone,
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


def test_a_run_in_which_everything_passed_accepts_its_nodes() -> None:
    assert standings(green()) == ALL_ACCEPTED
    assert status(green()) == 0
    assert node(green(), "gpu01").checks == (alone("gpu01"), PAIR)
    assert decide(green()).refusals == ()


def test_an_absent_thing_counts_as_neither() -> None:
    records = journal_of(*green_checks()[:2], check(PAIR, outcome=Outcome.NOT_APPLICABLE))
    assert standings(records) == ALL_ACCEPTED
    assert status(records) == 0


def test_a_node_without_a_passed_check_is_unproven() -> None:
    absent = check(PAIR, outcome=Outcome.NOT_APPLICABLE)
    records = journal_of(green_checks()[0], absent)
    assert standings(records) == {"gpu01": "accepted", "gpu02": "unproven"}
    assert node(records, "gpu02").reason == "no check judged this node"
    assert status(records) == 2


@each("kind", sorted(CONVICTING))
def test_a_failure_whose_evidence_names_a_node_rejects_that_node_only(kind: BlameKind) -> None:
    records = with_pair(Outcome.FAIL, blame(kind, "gpu02"))
    assert standings(records) == {"gpu01": "unproven", "gpu02": "rejected"}
    assert "gpu02 is to blame" in node(records, "gpu02").reason
    assert node(records, "gpu02").checks == (PAIR,)
    assert status(records) == 1


@each("kind", sorted(set(BlameKind) - CONVICTING))
def test_other_blame_rejects_nobody(kind: BlameKind) -> None:
    records = with_pair(Outcome.FAIL, blame(kind, "gpu02"))
    assert standings(records) == NEITHER
    assert status(records) == 2


@each("kind", sorted(CONVICTING))
def test_blame_that_names_two_nodes_convicts_neither(kind: BlameKind) -> None:
    assert standings(with_pair(Outcome.FAIL, blame(kind, "gpu01", "gpu02"))) == NEITHER


def test_a_failure_across_nodes_without_blame_rejects_nobody() -> None:
    records = with_pair(Outcome.FAIL)
    assert standings(records) == NEITHER
    assert node(records, "gpu01").reason == "test_busbw[all_reduce-network]: because of fail"
    assert status(records) == 2


def test_a_failure_of_one_node_alone_rejects_it() -> None:
    records = journal_of(check(alone("gpu01"), ["gpu01"], Outcome.FAIL), *green_checks()[1:])
    assert standings(records) == {"gpu01": "rejected", "gpu02": "accepted"}
    assert node(records, "gpu01").checks == (alone("gpu01"),)
    assert status(records) == 1
    [named] = decide(records).blame
    assert (named.check, named.blame.kind, named.blame.nodes) == (alone("gpu01"), BlameKind.NODE, ("gpu01",))


def test_a_failure_of_one_node_blamed_on_software_rejects_nobody() -> None:
    failed = check(alone("gpu01"), ["gpu01"], Outcome.FAIL, blame=(blame(BlameKind.SOFTWARE, "gpu01"),))
    assert standings(journal_of(failed, *green_checks()[1:]))["gpu01"] == "unproven"


def test_an_unchecked_check_leaves_its_nodes_unproven() -> None:
    records = journal_of(check(alone("gpu01"), ["gpu01"], Outcome.UNCHECKED), *green_checks()[1:])
    assert standings(records) == {"gpu01": "unproven", "gpu02": "accepted"}
    assert status(records) == 2


@each("outcome", list(Outcome))
def test_wrong_data_outranks_whatever_became_of_the_check(outcome: Outcome) -> None:
    records = with_pair(outcome, blame(BlameKind.WRONG_DATA, "gpu02"))
    assert standings(records)["gpu02"] == "rejected"
    assert status(records) == 1


def test_wrong_data_is_the_reason_even_among_other_evidence() -> None:
    failed = check(alone("gpu02"), ["gpu02"], Outcome.FAIL)
    corrupt = check(PAIR, outcome=Outcome.FAIL, blame=(blame(BlameKind.WRONG_DATA, "gpu02"),))
    records = journal_of(green_checks()[0], failed, corrupt)
    assert "wrong data of gpu02" in node(records, "gpu02").reason
    assert node(records, "gpu02").checks == (PAIR, alone("gpu02"))


def test_only_a_judged_failure_convicts_otherwise() -> None:
    assert standings(with_pair(Outcome.UNCHECKED, blame(BlameKind.NODE, "gpu02"))) == NEITHER


@each("ruin", ["lost", "cut short", "selection"])
def test_a_rejected_node_stays_rejected_whatever_else_happened(ruin: str) -> None:
    records = with_pair(Outcome.FAIL, blame(BlameKind.WRONG_DATA, "gpu02"))
    if ruin == "lost":
        records.insert(-1, NodeRecord("gpu02", "lost", "its channel closed"))
    elif ruin == "cut short":
        records.pop()
    else:
        records[0] = making.run(selection="-k busbw")
    assert standings(records)["gpu02"] == "rejected"


def test_a_node_that_is_not_ready_is_unproven_and_the_others_go_on() -> None:
    records = journal_of(green_checks()[0])
    records.insert(3, NodeRecord("gpu02", "unreachable", "no answer on port 22"))
    assert standings(records) == {"gpu01": "accepted", "gpu02": "unproven"}
    assert node(records, "gpu02").reason == "unreachable: no answer on port 22"


def test_a_node_nobody_ever_heard_of_is_unproven() -> None:
    records = [
        record for record in green() if not (isinstance(record, NodeRecord) and record.name == "gpu02")
    ]
    assert standings(records) == {"gpu01": "accepted", "gpu02": "unproven"}


def test_a_planned_check_that_never_reported_leaves_its_nodes_unproven() -> None:
    records = [record for record in green() if not (isinstance(record, CheckRecord) and record.id == PAIR)]
    assert standings(records) == NEITHER
    [silent] = decide(records).not_reported
    assert (silent.check, silent.nodes) == (PAIR, making.NODES)
    assert status(records) == 2


def test_a_check_that_left_out_a_planned_node_has_not_reported_for_it() -> None:
    records = green()
    records[-2] = check(PAIR, ["gpu01"])
    assert standings(records) == {"gpu01": "accepted", "gpu02": "unproven"}
    assert decide(records).not_reported[0].nodes == ("gpu02",)


def test_a_check_of_no_node_in_particular_speaks_about_all() -> None:
    of_all = check("suites/soak/test_red.py::test_red", [], Outcome.FAIL)
    records = journal_of(*green_checks(), of_all)
    assert standings(records) == NEITHER
    assert "test_red" in node(records, "gpu02").reason


def test_a_check_of_no_node_in_particular_that_is_silent_speaks_about_all() -> None:
    of_all = check("suites/soak/test_red.py::test_red", [])
    records = [record for record in journal_of(*green_checks(), of_all) if record is not of_all]
    assert standings(records) == NEITHER
    assert "not reported" in node(records, "gpu02").reason


def test_a_run_that_knows_of_no_node_accepts_none() -> None:
    selfcheck = check("suites/selfcheck/test_red.py::test_red", [])
    records: list[Record] = [making.run(nodes=[]), making.plan(selfcheck), selfcheck, making.end()]
    assert status(records) == 2


def test_the_reason_is_one_line() -> None:
    failed = check(alone("gpu01"), ["gpu01"], Outcome.FAIL, reason="\x1b[31mtoo slow\nand more\x1b[0m")
    assert node(journal_of(failed, *green_checks()[1:]), "gpu01").reason == "test_gpus[gpu01]: too slow"


CHECKS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(making.NODES), min_size=1).map(sorted),
        st.sampled_from(Outcome),
        st.sampled_from([None, *BlameKind]),
        st.booleans(),
    ),
    max_size=6,
)


@settings(deadline=None)
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


def test_sentences_of_judgements_are_not_needed_for_a_verdict() -> None:
    bare = Judgement("wrong", Outcome.PASS, "", value=0.0)
    assert standings(journal_of(*green_checks()[:2], check(PAIR, judgements=(bare,)))) == ALL_ACCEPTED


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
