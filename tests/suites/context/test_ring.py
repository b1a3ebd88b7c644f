"""The ring underneath context parallelism: what it hands to torch, in which order, and whom it names."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study import parity
from fixtures.ranks.study.driver import EXACT, Seen
from fixtures.ranks.study.pattern import sent
from suites.context.issued import Shape
from suites.context.ring_attention import KEYS
from suites.context.techniques import Ring
from suites.context.test_context import CONTEXT
from tests.fixtures.ranks.gloo_world import run_world
from tests.suites.parallel import load, red
from tests.teeth.bug import replaced
from tests.teeth.context import low_bit, passing

PASSING = [
    (case.step, case.parameters) for case in CONTEXT if case.step in ("context.ring", "context.zigzag")
]


def _posted(ctx: Context) -> list[tuple[str, int]]:
    """What each pass hands to torch, in order: the operation and the peer."""
    posted: list[tuple[str, int]] = []

    def make(original: Any) -> Any:
        def call(operations: list[Any]) -> Any:
            posted.extend((one.op.__name__, one.peer) for one in operations)
            return original(operations)

        return call

    with replaced(dist, "batch_isend_irecv", make):
        Ring(ctx, Shape(1, 2 * ctx.size, 2, 1, 4, True)).run(EXACT, Seen())
    return posted


def test_receives_are_posted_before_sends_and_neighbours_alone_are_spoken_to() -> None:
    for rank, posted in enumerate(run_world(3, _posted)):
        assert posted == [("irecv", (rank - 1) % 3), ("isend", (rank + 1) % 3)] * 7


def in_order_of_issue(original: Any) -> Any:
    """A layer under the ring that has no tags and matches sends and receives in the order of their issue.

    As NCCL does. gloo has tags: with the number of a message on its way as its tag, it matches them so too.
    """
    issued: Counter[tuple[str, int]] = Counter()

    def call(operations: list[Any]) -> Any:
        for one in operations:
            way = one.op.__name__, one.peer
            one.tag = issued[way]
            issued[way] += 1
        return original(operations)

    return call


def _ring_in_order(ctx: Context) -> list[dict[str, Any]]:
    """Every case of the suite that passes blocks on, over such a layer."""
    with replaced(dist, "batch_isend_irecv", in_order_of_issue):
        return [REGISTRY[step](ctx, **parameters) for step, parameters in PASSING]


@pytest.mark.parametrize("size", [2, 3])
def test_the_ring_is_right_where_tags_are_ignored(size: int) -> None:
    """With 2 ranks both neighbours are the same, and keys and gradients share one order with it."""
    load([step for step, _ in PASSING])
    by_rank = run_world(size, _ring_in_order)
    for number, (step, _) in enumerate(PASSING):
        assert red(step, [said[number] for said in by_rank]) == {}


class _Held:
    """A pass that is posted later than it was asked for."""

    def __init__(self, operations: list[Any]) -> None:
        self.operations, self.works = operations, list[Any]()

    def wait(self) -> None:
        for work in self.works:
            work.wait()


def out_of_turn(original: Any) -> Any:
    """Backward, keys leave only behind the gradients that are passed on after them."""
    held: list[_Held] = []

    def call(operations: list[Any]) -> Any:
        if operations[0].tag == KEYS and torch._C._current_graph_task_id() != -1:
            held.append(_Held(operations))
            return [held[-1]]
        works = original(operations)
        while held:
            late = held.pop()
            late.works = original(late.operations)
        return works

    return call


def _error_out_of_turn(ctx: Context, ignore_tags: bool) -> float:
    """How far the gradients are off when rank 0 issues its passes in another order than its peers do."""
    technique = Ring(ctx, Shape(1, 2 * ctx.size, 2, 1, 4, False))
    with ExitStack() as layers:
        if ignore_tags:
            layers.enter_context(replaced(dist, "batch_isend_irecv", in_order_of_issue))
        if ctx.rank == 0:
            layers.enter_context(replaced(dist, "batch_isend_irecv", out_of_turn))
        left = technique.run(EXACT, Seen())
    right = technique.part(technique.reference(EXACT), left.kept)
    return max(parity.relative(left.results[name], right[name]) for name in right)


def test_a_ring_whose_ranks_issue_in_different_orders_is_seen_only_where_tags_are_ignored() -> None:
    """The proof that the layer above takes away what gloo's tags would put right."""
    with_tags = run_world(2, lambda ctx: _error_out_of_turn(ctx, ignore_tags=False))
    without = run_world(2, lambda ctx: _error_out_of_turn(ctx, ignore_tags=True))
    assert max(with_tags) < parity.TOLERANCE
    assert max(without) > 0.1


def _spoiled(ctx: Context) -> list[dict[str, Any]]:
    with passing(low_bit, ranks=(1,))():
        wrong: list[dict[str, Any]] = sent(ctx, Ring(ctx, Shape(1, 2 * ctx.size, 2, 1, 4, True)).moves())[
            "wrong"
        ]
        return wrong


def test_a_hop_that_spoils_data_is_named_by_the_rank_behind_it_alone() -> None:
    said = run_world(4, _spoiled)
    assert [bool(wrong) for wrong in said] == [False, True, False, False]
    assert {wrong["source_rank"] for wrong in said[1]} == {0}
    assert all(re.search("bit 0 flipped", wrong["looks_like"]) for wrong in said[1])
