"""fully_shard's policies: which blocks are asked for ahead of time, and what bf16 is held against."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from fixtures.ranks.steps import Context
from fixtures.ranks.study import parity
from fixtures.ranks.study.driver import EXACT, TRAINED, Seen, run_once
from suites.zero.policies import Prefetching, casts
from suites.zero.training import Task, follow
from suites.zero.wrapped import Replicated, on_mesh
from tests.fixtures.ranks.gloo_world import run_world


def asked_for(ctx: Context) -> dict[str, Any]:
    """Which blocks each block asks for ahead of time."""
    task = Task(ctx, width=4, layers=3, rows=2, steps=1)

    def work(mesh: DeviceMesh) -> dict[str, Any]:
        blocks = list(Prefetching(task, mesh, EXACT).model)
        states = [block._get_fsdp_state() for block in blocks if isinstance(block, FSDPModule)]

        def numbers(attribute: str) -> list[list[int]]:
            return [[states.index(one) for one in getattr(state, attribute)] for state in states]

        ahead = ("_states_to_forward_prefetch", "_states_to_backward_prefetch")
        return {attribute: numbers(attribute) for attribute in ahead}

    return on_mesh(ctx, (ctx.size,), work)


def test_every_block_asks_for_the_one_that_computes_after_it() -> None:
    found = run_world(2, asked_for)[0]
    assert found["_states_to_forward_prefetch"] == [[1], [2], []]
    assert found["_states_to_backward_prefetch"] == [[], [0], [1]]


def same_casts(ctx: Context) -> list[float]:
    """How far fully_shard in two dtypes is from the unsharded run that casts in the same places."""

    def work(mesh: DeviceMesh) -> dict[str, Any]:
        technique = casts(Task(ctx, width=8, layers=2, rows=2, steps=3), mesh)
        run = run_once(technique, TRAINED)
        right = technique.part(technique.reference(TRAINED), run.kept)
        far = {"grad": 0.0, "param": 0.0}
        for name, tensor in run.results.items():
            kind = name.partition(":")[0]
            if kind in far:
                far[kind] = max(far[kind], parity.relative(tensor, right[name]))
        return far

    return list(on_mesh(ctx, (ctx.size,), work).values())


def test_the_unsharded_run_casts_where_the_sharded_one_does() -> None:
    for grads, params in run_world(4, same_casts):
        assert grads < 1e-6
        assert params < 2.0**-8  # its own are rounded to bf16, the sharded ones are the masters


def losses_of_micro_batches(ctx: Context) -> bool:
    task = Task(ctx, width=8, layers=2, rows=4, steps=2, micro_batches=4)
    engine = Replicated(task, TRAINED, 1 << 20)
    return follow(task, engine, TRAINED, Seen())["loss"].dtype is EXACT


def test_the_losses_of_micro_batches_are_not_rounded_each_time_they_are_added() -> None:
    assert run_world(1, losses_of_micro_batches) == [True]
