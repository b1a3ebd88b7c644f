"""Rounds and searches over shaped links: what is bad is found bad in every round, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from tests.faults.cases.controller import Controller, Round, controller, schedule
from tests.faults.trial import Campaign, draw
from tests.lab import Lab
from tests.lab.pytest_support import lab_of

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]
Ways = set[tuple[str, str]]


lab = lab_of(nodes=4, rate="200mbit")


@pytest.fixture(scope="module")
def tried(lab: Lab) -> Iterator[Controller]:
    """One controller for all tests, so that what it remembers of healthy links is used with every fault."""
    with controller(lab) as opened:
        yield opened


def all_ways(found: Round) -> Ways:
    return {ends for trial in found.trials for ends in (trial.group, trial.group[::-1]) if len(ends) == 2}


def holds(tried: Controller, pairs: Iterable[tuple[str, str]], bad: Ways) -> Round:
    """Exactly these of the routes between the pairs are bad, and all others are good.

    A healthy route may be bad once, as a search allows for (`Rules.false_alarm`), and not again.
    """
    found = tried.pairs(*pairs)
    if found.bad > bad & all_ways(found):
        found = tried.pairs(*pairs)
    assert (found.bad, found.unknown) == (bad & all_ways(found), []), found.sentences
    assert found.good == all_ways(found) - bad
    return found


@pytest.mark.parametrize("hogs", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_healthy_lab_has_no_more_bad_readings_in_ten_rounds_than_a_search_allows_for(
    lab: Lab, tried: Controller, hogs: int
) -> None:
    """One in a hundred (`Rules.false_alarm`): of these 80 on a busy machine two at most, and none twice."""
    lab.hog("n02", hogs)
    try:
        found = [tried.pairs(*pairs) for pairs in schedule(lab.nodes, 10)]
        found += [tried.alone(*lab.nodes) for _ in range(10)]
    finally:
        lab.unhog("n02")
    said = [sentence for one in found for sentence in one.sentences]
    bad = [way for one in found for way in one.bad]
    assert [why for one in found for why in one.unknown] == []
    assert all(all_ways(one) <= one.good | one.bad for one in found)
    assert len(bad) == len(set(bad)) <= 2, said


@pytest.mark.parametrize(
    ("direction", "sends", "receives"),
    [pytest.param("both", True, True, marks=pytest.mark.long), ("tx", True, False), ("rx", False, True)],
)
def test_a_node_that_is_a_tenth_slower_is_bad_in_its_direction_and_nobody_else_is(
    lab: Lab, tried: Controller, direction: str, sends: bool, receives: bool
) -> None:
    lab.shape("n03", "180mbit", direction)  # type: ignore[arg-type]
    try:
        others = [node for node in lab.nodes if node != "n03"]
        slow = {("n03", node) for node in others if sends} | {(node, "n03") for node in others if receives}
        for pairs in schedule(lab.nodes, 4):
            found = holds(tried, pairs, slow)
            assert all("MB/s where the others have 24." in sentence for sentence in found.sentences)
    finally:
        lab.heal("n03")


def test_a_way_that_is_many_times_slower_is_still_one_way(lab: Lab, tried: Controller) -> None:
    lab.shape("n02", "30mbit", "tx")
    try:
        for pairs in schedule(lab.nodes, 2):
            holds(tried, pairs, {("n02", node) for node in lab.nodes})
    finally:
        lab.heal("n02")


@pytest.mark.long
def test_a_cable_that_comes_loose_now_and_then_is_seen_with_more_than_one_partner(
    lab: Lab, tried: Controller
) -> None:
    lab.flap("n03", 0.2, 1.0)
    try:
        seen = [tried.pairs(*pairs).bad for pairs in schedule(lab.nodes, 6)]
    finally:
        lab.unflap("n03")
        lab.heal("n03")
    assert all("n03" in ends for bad in seen for ends in bad)
    assert len({frozenset(ends) for bad in seen for ends in bad}) > 1


def test_one_path_that_is_slow_is_one_way(lab: Lab, tried: Controller) -> None:
    lab.shape_path("n02", "n04", "160mbit")
    try:
        for pairs in schedule(lab.nodes, 3):
            holds(tried, pairs, {("n02", "n04")})
    finally:
        lab.heal("n02")


@pytest.mark.long
def test_two_nodes_of_four_that_are_slow_at_once(lab: Lab, tried: Controller) -> None:
    for node in ("n01", "n04"):
        lab.shape(node, "180mbit")
    try:
        slow = {(a, b) for a in lab.nodes for b in lab.nodes if a != b and {a, b} & {"n01", "n04"}}
        for pairs in schedule(lab.nodes, 3):
            holds(tried, pairs, slow)
    finally:
        for node in ("n01", "n04"):
            lab.heal(node)


def test_a_pair_that_reaches_each_other_no_more_is_bad_and_the_others_are_good(
    lab: Lab, tried: Controller
) -> None:
    lab.blackhole("n02", "n03")
    try:
        found = holds(tried, [("n02", "n03"), ("n01", "n04")], {("n02", "n03"), ("n03", "n02")})
        assert found.seconds < 25
        holds(tried, [("n01", "n03"), ("n02", "n04")], set())
    finally:
        lab.heal("n02")


@pytest.mark.long
def test_packets_of_one_size_that_are_lost_one_way_are_that_way(lab: Lab, tried: Controller) -> None:
    """Small messages pass both ways, and large ones from n02 do not."""
    lab.mtu("n02", 9000)
    lab.mtu("n03", 9000)  # so that the two agree on large packets, which the switch between them drops
    try:
        found = tried.pairs(("n02", "n03"), ("n01", "n04"))
        assert ("n02", "n03") in found.bad
        assert found.bad <= {("n02", "n03"), ("n03", "n02")}
        assert {("n01", "n04"), ("n04", "n01")} <= found.good
    finally:
        lab.heal("n02")
        lab.heal("n03")


@pytest.mark.long
def test_ranks_that_share_a_nic_are_one_way() -> None:
    with Lab.up(nodes=4, rate="200mbit", slots=2) as lab, controller(lab) as tried:
        lab.shape("n03", "180mbit", "tx")
        for pairs in schedule(lab.nodes, 3):
            found = holds(tried, pairs, {("n03", node) for node in lab.nodes})
            assert {reading.route.rail for trial in found.trials for reading in trial.readings} == {0}


def test_nobody_is_called_good_for_being_as_slow_as_its_only_partner() -> None:
    """With two nodes there are no others: the hardware file says what a way must do."""
    with Lab.up(nodes=2, rate="200mbit") as lab, controller(lab) as tried:
        holds(tried, [("n01", "n02")], set())
        lab.shape("n02", "160mbit")
        holds(tried, [("n01", "n02")], {("n01", "n02"), ("n02", "n01")})
        lab.shape("n02", "200mbit", "rx")
        holds(tried, [("n01", "n02")], {("n02", "n01")})


@pytest.mark.long
@pytest.mark.parametrize("nodes", [4, 8, 16, 32])
def test_a_search_among_many_names_the_one_link_that_is_a_tenth_slow(nodes: int, campaign: Campaign) -> None:
    """All links together stay below 800 Mbit/s, so that one machine can be all of these nodes."""
    with Lab.up(nodes, "25mbit") as lab, controller(lab, mbit=25.0) as links:
        [slow] = draw(lab.nodes, 1, campaign.seed, f"slow link of {nodes}", 0)
        lab.shape(slow, "22.5mbit")
        found = links.search(campaign.seed)
    print(f"{found.rounds} rounds, {found.seconds:.0f} s")
    assert found.named == [["nic", [slow]]], found.sentence
