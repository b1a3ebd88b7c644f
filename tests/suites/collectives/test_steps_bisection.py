"""A bisection reaches half a world further, and what arrives wrong there is of the rank that sent it."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from fixtures.ranks.steps import Context
from suites.collectives import steps
from tests.fixtures.ranks.gloo_world import replace, run_world

ITERATIONS = 4


def exact(ctx: Context) -> Any:
    return steps.exact(ctx, collective="bisection", dtype="int32", elements=[17], iterations=ITERATIONS)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_rank_has_the_buffer_of_the_one_half_a_world_before(size: int) -> None:
    """The calls of the ranks are looked at too, as the closed form may be wrong in the same way."""

    def noted(ctx: Context) -> Any:
        real, peers = dist.batch_isend_irecv, set[int]()

        def note(pair: list[Any]) -> Any:
            peers.update(half.peer for half in pair if half.op is dist.isend)
            return real(pair)

        replace("batch_isend_irecv", note)
        return exact(ctx), peers

    for rank, (found, peers) in enumerate(run_world(size, noted)):
        assert peers == {(rank + size // 2) % size}
        assert found == {"iterations": ITERATIONS, "elements": 17 * ITERATIONS, "wrong": []}


@pytest.mark.parametrize("step", ["exact", "sweep"])
@pytest.mark.parametrize(("size", "sender"), [(2, 0), (3, 0), (4, 3), (5, 4)])
def test_a_wrong_element_is_of_the_rank_that_sent_it(size: int, sender: int, step: str) -> None:
    def planted(ctx: Context) -> Any:
        real = dist.batch_isend_irecv

        def flipped(pair: list[Any]) -> Any:
            pair[1].tensor[5] ^= 8
            for work in real(pair):
                work.wait()
            pair[1].tensor[5] ^= 8  # a sweep sends this buffer again
            return []

        if ctx.rank == sender:
            replace("batch_isend_irecv", flipped)
        return exact(ctx)["wrong"] if step == "exact" else swept(ctx)["wrong"]

    found = [wrong for rank in run_world(size, planted) for wrong in rank]
    assert len(found) == (ITERATIONS if step == "exact" else 2)  # a sweep compares the last two
    for wrong in found:
        assert (wrong["rank"], wrong["source_rank"]) == ((sender + size // 2) % size, sender)
        assert (wrong["collective"], wrong["first_offset"], wrong["count"]) == ("bisection", 5, 1)
        assert wrong["looks_like"] == "bit 3 flipped"


def swept(ctx: Context) -> Any:
    how = {"sizes": [1 << 16], "iterations": ITERATIONS, "budget_s": 2.0, "copy": False}
    return steps.sweep(ctx, collective="bisection", dtype="int32", **how)
