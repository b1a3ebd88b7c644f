"""Data parallelism and ZeRO: every part of every step in real worlds on gloo."""

from __future__ import annotations

import socket
from typing import Any
from unittest import mock

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study.overlap import STAGE_S
from suites.zero import wrapped
from suites.zero.answers import replicas
from suites.zero.test_zero import HYBRID, OVERLAP, STEPS
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.parallel import assert_green, load, red

PARTS = ("parity", "repeat", "traffic", "memory", "figures", "wrong")
# DDP says its new buckets to all ranks in the second step, so that the third is the first as all that follow.
REBUILT = {"zero.ddp", "zero.zero_redundancy", "zero.recompute"}


def test_every_part_of_every_step_holds() -> None:
    """With two blocks and steps; `make accept`, which a test runs, has as many as are planned.

    Four ranks are two replicas of two; without replicas three are neither a pair nor a power of two.
    """
    for size, here in ((4, [HYBRID]), (3, [case for case in STEPS if case is not HYBRID])):
        cases = [
            (case.step, {**case.parameters, "layers": 2, "steps": 3 if case.step in REBUILT else 2})
            for case in here
        ]
        found = assert_green(size, cases, parts=PARTS)
        for (step, _), ranks in zip(cases, found, strict=True):
            assert all(rank["figures"]["pattern"] > 0 for rank in ranks), step


@pytest.mark.long
def test_the_plan_has_as_many_entries_as_its_own_sizes_give() -> None:
    """Fewer blocks and steps, as above, have fewer: so these are not counted there."""
    for size, here in ((4, [HYBRID]), (2, [case for case in STEPS if case is not HYBRID])):
        assert_green(size, [(case.step, case.parameters) for case in here], parts=PARTS)


def test_the_paced_backward_is_exact_and_tells_how_much_it_hides() -> None:
    found = assert_green(2, [(OVERLAP[0].step, OVERLAP[0].parameters)])
    compute_s = OVERLAP[0].parameters["layers"] * STAGE_S
    for rank in found[0]:
        figures = rank["figures"]
        assert figures["compute_seconds"] >= compute_s
        assert {"overlap", "overlap_one_bucket", "exchange_seconds", "exposed_seconds"} <= figures.keys()


def test_a_node_is_a_replica_where_nodes_are_of_one_size() -> None:
    placed = context(0, 6)
    placed.hosts = ["a", "a", "b", "b", "c", "c"]
    assert replicas(placed) == (3, 2)
    placed.hosts = ["a", "b", "c", "d", "e", "f"]
    assert replicas(placed) == (2, 3)
    assert replicas(context(0, 3)) == (1, 3)
    assert replicas(context(0, 2)) == (1, 2)


def transposed(kind: str, ranks: torch.Tensor, **kwargs: Any) -> DeviceMesh:
    """Rows of ranks become columns."""
    return DeviceMesh(kind, ranks.t().contiguous(), **kwargs)


@pytest.mark.parametrize(("exchanged", "parts"), [(False, []), (True, ["placement"])])
def test_shards_across_nodes_and_replicas_inside_are_in_the_wrong_place(
    exchanged: bool, parts: list[str]
) -> None:
    """Nothing but the place is wrong then: results, traffic and memory are the same."""
    load([HYBRID.step])

    def on_two_nodes(ctx: Context) -> dict[str, Any]:
        ctx.hosts = ["a", "a", "b", "b"]
        with (
            mock.patch.object(socket, "gethostname", return_value=ctx.hosts[ctx.rank]),
            mock.patch.object(wrapped, "DeviceMesh", transposed if exchanged else DeviceMesh),
        ):
            return REGISTRY[HYBRID.step](ctx, **HYBRID.parameters)

    found = red(HYBRID.step, run_world(4, on_two_nodes), HYBRID.parameters, nodes=["a", "a", "b", "b"])
    assert list(found) == parts
    wrong = "axis replicate of ranks 0, 1 stays on a, and has to be of ranks 0, 2"
    assert all(sentence.startswith(wrong) for sentence in found.values())
