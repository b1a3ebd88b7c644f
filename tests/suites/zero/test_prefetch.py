"""What is timed on GPUs alone runs here as well, small: its figures are there, and are times."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from fixtures.ranks.steps import Context
from fixtures.ranks.study.driver import EXACT
from suites.zero.policies import Prefetching, hiding
from suites.zero.training import Task
from suites.zero.wrapped import on_mesh
from tests.fixtures.ranks.gloo_world import run_world


def timed(ctx: Context) -> dict[str, Any]:
    task = Task(ctx, width=4, layers=2, rows=2, steps=1)
    work = lambda mesh: hiding(task, mesh, width=8, layers=3, rows=4, repeats=3)  # noqa: E731
    return on_mesh(ctx, (ctx.size,), work)


def test_the_figures_of_prefetch_are_times_of_all_three() -> None:
    for figures in run_world(2, timed):
        spent_s = [figures[f"{name}_seconds"] for name in ("compute", "exchange", "both")]
        assert min(spent_s) > 0
        assert figures["overlap"] == (spent_s[0] + spent_s[1] - spent_s[2]) / min(spent_s[:2])


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
