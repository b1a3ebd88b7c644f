"""A report is held against its row: what is missed, misnamed or unjust is told apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.faults.matrix.judging import Judged, Said, judge
from tests.faults.matrix.row import Expect, Names, between, harmless, rejected, unproven

NODES = ("n01", "n02", "n03", "n04")
Blame = tuple[str, tuple[str, ...], str]
NIC: Blame = ("nic", ("n02",), "n02's link is slow when it sends")


def said(standing: Mapping[str, str], *blame: Blame, status: int = 1) -> Said:
    everybody = {node: standing.get(node, "accepted") for node in NODES}
    reasons = {node: f"{node} is {word}" for node, word in everybody.items()}
    return Said(status, everybody, reasons, blame, red=status != 0)


def held(expect: Expect, what: Said, *drawn: str) -> Judged:
    return judge(expect, drawn or ("n02",), NODES, what)


def test_a_fault_that_is_found_by_name_is_right() -> None:
    judged = held(rejected("nic", words=("when it sends",)), said({"n02": "rejected"}, NIC))
    assert (judged.right, judged.detected, judged.kind, judged.name) == (True, True, True, True)
    assert (judged.healthy, judged.of, judged.misnamed) == (3, 3, ())


@pytest.mark.parametrize(
    ("what", "flaw", "words"),
    [
        pytest.param(said({}, status=0), "detected", "exit status 0, not 1", id="green"),
        pytest.param(said({}, NIC), "detected", "n02 is accepted, not rejected", id="accepted"),
        pytest.param(
            said({"n02": "rejected"}, ("nic", ("n02",), "slow")), "detected", "nothing says", id="words"
        ),
        pytest.param(
            said({"n02": "rejected"}, ("node", ("n02",), "when it sends")),
            "kind",
            "blamed for node, not for nic",
            id="kind",
        ),
        pytest.param(
            said({"n02": "rejected"}, NIC, ("fabric", (), "")), "kind", "blamed for fabric", id="another"
        ),
        pytest.param(said({"n02": "rejected"}), "name", "nobody names n02", id="nobody"),
        pytest.param(
            said({"n02": "rejected"}, NIC, ("nic", ("n03",), "")), "name", "n03 named without", id="name"
        ),
        pytest.param(
            said({"n02": "rejected"}, NIC, ("path", ("n02", "n03"), "")), "name", "n03 named", id="path"
        ),
    ],
)
def test_what_is_wrong_is_said(what: Said, flaw: str, words: str) -> None:
    judged = held(rejected("nic", words=("when it sends",)), what)
    assert not judged.right
    assert not getattr(judged, flaw)
    assert any(words in line for line in judged.wrong), judged.wrong


def test_a_healthy_node_that_pays_for_another_is_wrong_and_counted() -> None:
    judged = held(rejected("nic"), said({"n02": "rejected", "n04": "unproven"}, NIC))
    assert (judged.detected, judged.healthy, judged.of) == (True, 2, 3)
    assert judged.wrong == ("n04 has no fault and is unproven: n04 is unproven",)
    judged = held(rejected("nic"), said({"n02": "rejected", "n04": "rejected"}, NIC))
    assert judged.misnamed == ("n04",)


def test_each_of_two_culprits_must_be_named() -> None:
    standing = {"n02": "rejected", "n03": "rejected"}
    one = held(rejected("nic"), said(standing, NIC), "n02", "n03")
    assert (one.name, one.wrong) == (False, ("nobody names n03",))
    assert held(rejected("nic"), said(standing, NIC, ("nic", ("n03",), "")), "n03", "n02").right


def test_a_direction_has_an_order_and_a_path_has_none() -> None:
    everybody = dict.fromkeys(NODES, "unproven")
    way: Blame = ("link direction", ("n03", "n01"), "")
    path: Blame = ("path", ("n03", "n01"), "")
    of_way, of_path = between("link direction", names=Names.WAY), between("path", names=Names.PAIR)
    assert held(of_way, said(everybody, way, status=2), "n03", "n01").right
    assert not held(of_way, said(everybody, way, status=2), "n01", "n03").name
    assert held(of_path, said(everybody, path, status=2), "n01", "n03").right
    assert not held(of_path, said({"n02": "rejected"}, path, status=2), "n01", "n03").right


def test_of_a_fault_that_is_nobodys_no_node_may_be_named() -> None:
    everybody = dict.fromkeys(NODES, "unproven")
    fabric = Expect((2,), ("unproven",), ("fabric",), Names.NOBODY, healthy=("unproven",))
    assert held(fabric, said(everybody, ("fabric", (), ""), status=2), *NODES).right
    wrong = held(fabric, said(everybody, ("fabric", ("n01",), ""), status=2), *NODES)
    assert (wrong.misnamed, wrong.name) == (("n01",), False)


def test_where_nothing_is_wrong_nothing_may_be_said() -> None:
    assert held(harmless(), said({}, status=0)).right
    assert not held(harmless(), said({}, ("lost", ("n02",), ""), status=0)).right
    assert not held(harmless(), said({"n02": "unproven"}, status=2)).right


def test_a_green_junit_beside_a_fault_and_a_red_one_beside_none_are_wrong() -> None:
    found = replace(said({"n02": "rejected"}, NIC), red=False)
    assert held(rejected("nic"), found).wrong == ("junit.xml is green",)
    assert held(harmless(), replace(said({}, status=0), red=True)).wrong == ("junit.xml is red",)


def test_a_run_without_a_verdict_accepts_nobody() -> None:
    nothing = Said(-9, {}, {})
    expect = Expect((-9,), ("missing",), names=Names.NOBODY, healthy=("missing",))
    assert held(expect, nothing).right
    assert not held(unproven("lost"), nothing).right
