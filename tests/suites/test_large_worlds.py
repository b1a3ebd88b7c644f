"""At 256 ranks: the Python of a rank grows no faster than the world, and ranks issue in one order."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from unittest import mock

import pytest

from fixtures.ranks import timing
from fixtures.ranks.collectives.collectives import Collective
from fixtures.ranks.study.traffic import Call, count_traffic
from fixtures.wire.collectives import BARRIER, COLLECTIVES
from tests.fixtures.ranks.gloo_world import context
from tests.suites import test_closed_forms as closed_forms
from tests.suites.fake_world import fake_world

LESS, SIZE = 64, 256
RANKS = (0, 1, 255)
MOST_GROWTH = 5.0  # of the calls in Python, where ranks are four times as many: a square would be 16
UNEVEN = ("all_to_all", "gather", "scatter")  # ranks may say different bytes of one of these
ONE_WAY = ("send", "recv")


def python_calls(function: Callable[[], object]) -> int:
    count = 0

    def seen(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def calls_of_collectives(size: int, rank: int) -> dict[str, int]:
    """Calls in Python of three iterations, each with the closed form of what must come."""

    def iterations(name: str) -> None:
        work = Collective(context(rank, size), name, "fp32", "sum", 64, fresh=True)
        for i in range(3):
            work.prepare(i)
            work.run(i)
            work.expectation(i)

    found = {}
    for name in COLLECTIVES.keys() - {BARRIER}:
        iterations(name)  # what is made once and kept
        found[name] = python_calls(partial(iterations, name))
    return found


def test_no_collective_costs_a_rank_the_square_of_the_world() -> None:
    few, many = (fake_world(size, size - 1, calls_of_collectives) for size in (LESS, SIZE))
    assert {name: many[name] / few[name] for name in few if many[name] > MOST_GROWTH * few[name]} == {}
    assert few.keys() > {"all_reduce", "all_to_all_v"}


Issued = tuple[str, int, tuple[int, ...]]  # what, its bytes, and among whom


def issued(size: int, rank: int, family: str) -> list[Issued]:
    """Every collective of all steps of a family, in the order in which this rank issues them."""
    # How often something is timed follows from times on which ranks agree: a rank alone cannot.
    alike = mock.patch.object(timing, "agree", lambda _, seconds: 0.01 if seconds else 0.0)
    with alike, count_traffic() as traffic:
        closed_forms.accounts(size, rank, family)
    return [said(call) for call in traffic.calls if call.op not in ONE_WAY]


def said(call: Call) -> Issued:
    return call.op, 0 if call.op in UNEVEN else call.bytes, call.ranks


def apart(orders: Mapping[int, Sequence[Issued]]) -> str:
    """Where two ranks first issue different collectives in the groups that both are in; "" if nowhere."""
    for one, other in itertools.combinations(orders, 2):
        mine, theirs = (
            [call for call in orders[rank] if {one, other} <= {*call[2]}] for rank in (one, other)
        )
        for number, (a, b) in enumerate(itertools.zip_longest(mine, theirs)):
            if a != b:
                words = [
                    f"{call[0]} of {call[1]} among {len(call[2])}" if call else "nothing" for call in (a, b)
                ]
                return f"ranks {one} and {other} differ in call {number}: {words[0]}, and {words[1]}"
    return ""


WORLD, PAIR, OTHER = (0, 1, 2), (0, 1), (1, 2)
SUM, PART, ELSE = ("all_reduce", 8, WORLD), ("all_gather", 8, PAIR), ("all_gather", 8, OTHER)


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        ({0: [SUM, PART], 1: [ELSE, SUM, PART]}, ""),
        (
            {0: [PART, SUM], 1: [ELSE, SUM, PART]},
            "0 and 1 differ in call 0: all_gather of 8 among 2, and all_re",
        ),
        (
            {0: [SUM, PART], 1: [SUM, PART], 2: []},
            "0 and 2 differ in call 0: all_reduce of 8 among 3, and nothing",
        ),
        ({0: [SUM], 1: [("all_reduce", 16, WORLD)]}, "all_reduce of 8 among 3, and all_reduce of 16 among 3"),
    ],
)
def test_orders_differ_where_both_ranks_take_part(orders: dict[int, list[Issued]], words: str) -> None:
    assert words in apart(orders)
    assert bool(words) == bool(apart(orders))


@pytest.mark.long
@pytest.mark.parametrize("family", closed_forms.CASES)
def test_ranks_of_a_large_world_issue_in_one_order(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's fake group refuses to send an empty tensor, as ranks do to whose experts nobody sends.
    monkeypatch.setitem(closed_forms.CASES, "mesh", closed_forms.DENSE)
    orders = {rank: fake_world(SIZE, rank, partial(issued, family=family)) for rank in RANKS}
    assert all(len(calls) > 10 for calls in orders.values())
    assert apart(orders) == ""
