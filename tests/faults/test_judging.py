"""A report is compared with its row: what is missed, misnamed or unjust is told apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.faults.judging import Judged, Said, judge, judge_each
from tests.faults.rows.row import Expect, Names, harmless, on_path, rejected, unproven

NODES = ("n01", "n02", "n03", "n04")
Blame = tuple[str, tuple[str, ...], str]
NIC: Blame = ("nic", ("n02",), "n02's link is slow when it sends")


def said(standing: Mapping[str, str], *blame: Blame, status: int = 1) -> Said:
    everybody = {node: standing.get(node, "accepted") for node in NODES}
    reasons = {node: f"{node} is {word}" for node, word in everybody.items()}
    return Said(status, everybody, reasons, blame, junit=("rank 1 on n02 is slow",) if status else ())


def held(expect: Expect, what: Said, *drawn: str) -> Judged:
    return judge(expect, drawn or ("n02",), NODES, what)


def test_a_fault_that_is_found_by_name_is_right() -> None:
    expect = rejected("nic", words=("{node}'s link is slow when it sends",), junit=("rank {rank}", "{node}"))
    assert held(expect, said({"n02": "rejected"}, NIC)) == Judged(noticed=True, misnamed=(), wrong=())


@pytest.mark.parametrize(
    ("what", "noticed", "words"),
    [
        pytest.param(said({}, status=0), False, "exit status 0, not 1", id="green"),
        pytest.param(said({}, NIC), False, "n02 is accepted, not rejected", id="accepted"),
        pytest.param(
            *(said({"n02": "rejected"}, ("nic", ("n02",), "slow")), False),
            *("nothing says 'when it sends'",),
            id="words",
        ),
        pytest.param(
            *(said({"n02": "rejected"}, ("node", ("n02",), "when it sends")), True),
            *("blamed for node, not for nic",),
            id="kind",
        ),
        pytest.param(
            said({"n02": "rejected"}, NIC, ("fabric", (), "")), True, "blamed for fabric", id="another"
        ),
        pytest.param(
            said({"n02": "rejected"}, ("node", (), "when it sends")), True, "nobody names n02", id="nobody"
        ),
        pytest.param(
            said({"n02": "rejected"}, NIC, ("nic", ("n03",), "")), True, "n03 named without", id="name"
        ),
        pytest.param(
            said({"n02": "rejected"}, NIC, ("path", ("n02", "n03"), "")), True, "n03 named", id="path"
        ),
    ],
)
def test_what_is_wrong_is_said(what: Said, noticed: bool, words: str) -> None:
    judged = held(rejected("nic", words=("when it sends",)), what)
    assert judged.noticed is noticed
    assert any(words in line for line in judged.wrong), judged.wrong


def test_all_words_for_junit_are_in_one_message() -> None:
    what = replace(said({"n02": "rejected"}, NIC), junit=("rank 1", "n02"))
    expect = rejected("nic", junit=("rank {rank}", "{node}"))
    assert held(expect, what).wrong == ("nothing in junit.xml says rank 1 and n02",)


def test_a_healthy_node_that_pays_for_another_is_wrong() -> None:
    judged = held(rejected("nic"), said({"n02": "rejected", "n04": "unproven"}, NIC))
    assert judged == Judged(True, (), ("n04 has no fault and is unproven: n04 is unproven",))
    judged = held(rejected("nic"), said({"n02": "rejected", "n04": "rejected"}, NIC))
    assert judged.misnamed == ("n04",)


def test_each_of_two_culprits_must_be_named() -> None:
    standing = {"n02": "rejected", "n03": "rejected"}
    one = held(rejected("nic"), said(standing, NIC), "n02", "n03")
    assert one.wrong == ("nobody names n03",)
    assert not held(rejected("nic"), said(standing, NIC, ("nic", ("n03",), "")), "n03", "n02").wrong


def test_of_several_faults_each_is_held_against_what_is_said_of_its_own_node() -> None:
    slow = rejected("nic", words=("when it sends",), junit=("rank {rank}", "{node}"))
    expected = {"n02": slow, "n03": unproven("lost"), "n04": harmless()}
    standing, lost = {"n02": "rejected", "n03": "unproven"}, ("lost", ("n03",), "it broke")
    others_ranks = replace(said(standing, NIC, lost), junit=("rank 0 on n02 is slow",))
    assert list(judge_each(expected, NODES, others_ranks)) == []
    both = ("nic", ("n03",), "n03's link is slow when it sends")
    wrong = list(judge_each(expected, NODES, said({**standing, "n04": "rejected"}, both, lost)))
    assert "n02: nothing says 'when it sends'" in wrong
    assert "n02: nobody names n02" in wrong
    assert "n03: somebody is blamed for nic" in wrong
    assert "n04: n04 is rejected, not accepted" in wrong
    stranger = said(standing, NIC, lost, ("path", ("n01", "n02"), ""))
    assert any("n01 named without a fault" in line for line in judge_each(expected, NODES, stranger))


def test_a_direction_has_an_order_and_a_path_has_none() -> None:
    both = {"n01": "unproven", "n03": "unproven"}
    way: Blame = ("link direction", ("n03", "n01"), "")
    path: Blame = ("path", ("n03", "n01"), "")
    of_way, of_path = on_path("link direction", names=Names.WAY), on_path("path", names=Names.PAIR)
    assert not held(of_way, said(both, way, status=2), "n03", "n01").wrong
    assert held(of_way, said(both, way, status=2), "n01", "n03").wrong == ("nobody names n01 and n03",)
    assert not held(of_path, said(both, path, status=2), "n01", "n03").wrong
    assert held(of_path, said({"n02": "rejected"}, path, status=2), "n01", "n03").wrong
    everybody = dict.fromkeys(NODES, "unproven")
    assert held(of_path, said(everybody, path, status=2), "n01", "n03").wrong


def test_of_a_fault_that_is_nobodys_no_node_may_be_named() -> None:
    everybody = dict.fromkeys(NODES, "unproven")
    fabric = Expect((2,), ("unproven",), ("fabric",), Names.NOBODY, healthy=("unproven",))
    assert not held(fabric, said(everybody, ("fabric", (), ""), status=2), *NODES).wrong
    wrong = held(fabric, said(everybody, ("fabric", ("n01",), ""), status=2), *NODES)
    assert wrong.misnamed == ("n01",)
    assert "nobody names the part" in wrong.wrong


def test_where_nothing_is_wrong_nothing_may_be_said() -> None:
    assert not held(harmless(), said({}, status=0)).wrong
    assert held(harmless(), said({}, ("lost", ("n02",), ""), status=0)).wrong
    assert held(harmless(), said({"n02": "unproven"}, status=2)).wrong


def test_a_green_junit_beside_a_fault_and_a_red_one_beside_none_are_wrong() -> None:
    found = replace(said({"n02": "rejected"}, NIC), junit=())
    assert held(rejected("nic"), found).wrong == ("junit.xml is green",)
    assert held(harmless(), replace(said({}, status=0), junit=("slow",))).wrong == ("junit.xml is red",)


def test_a_run_without_a_verdict_accepts_nobody() -> None:
    nothing = Said(-9, {}, {}, junit=("nothing was reported",))
    expect = Expect((-9,), ("missing",), names=Names.NOBODY, healthy=("missing",))
    assert not held(expect, nothing).wrong
    assert held(unproven("lost"), nothing).wrong
