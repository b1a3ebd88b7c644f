"""Traffic and memory are the closed forms as equalities, up to worlds that no machine of ours has.

What compares values is left out here, and so is what asks others for theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study.driver import answer, study
from suites.expert import layer
from suites.mesh.moe.grid import Grid
from suites.mesh.moe.run import Mixture
from suites.mesh.moe.task import Task
from suites.mesh.technique import Combined
from suites.mesh.test_mesh import EXPERTS, STEPS
from tests.fixtures.ranks.gloo_world import context
from tests.suites.fake_world import Accounts, assert_closed_forms, fake_world, values_left_out
from tests.suites.parallel import load

# In a large world the smallest matrices that divide are large.
LESS = [(case.step, {**case.parameters, "rows": 1, "layers": 1}) for case in STEPS]
CASES = [*LESS, *((case.step, {**case.parameters, "length": 8}) for case in EXPERTS)]


def counted(task: Task, grid: Grid) -> Callable[..., None]:
    """An all-to-all that brings counts as they would come; of rows only the shapes are real."""
    own, real = grid.group("ep"), dist.all_to_all_single
    order = [(i, n) for i in range(task.dims.micro_batches) for n in task.blocks_of(grid.place[0])]
    tables = cycle(
        [
            torch.cat(
                [task.rows_sent(rank, n, i).view(own.size, -1)[own.rank] for rank in grid.lines["ep"].ranks]
            )
            for i, n in order
        ]
    )

    def call(output: torch.Tensor, given: torch.Tensor, *splits: Any, **group: Any) -> None:
        real(output, given, *splits, **group)
        if not splits:
            output.copy_(next(tables))

    return call


def preferred(real: Callable[..., Any]) -> Callable[..., Any]:
    """Route by preference alone: what a fake group delivers may not even be a number."""

    def call(logits: torch.Tensor, *rest: Any) -> Any:
        return real(torch.where(torch.zeros_like(logits, dtype=torch.bool), logits, 0.0), *rest)

    return call


def studied(ctx: Context, technique: Combined[Any], *_: object) -> dict[str, Any]:
    """Of what a step answers the part that needs no values; no axis of several ranks is left out."""
    moved = dist.all_to_all_single
    if isinstance(technique, Mixture):
        moved = counted(technique.task, technique.grid)
    with mock.patch.object(dist, "all_to_all_single", moved):
        found = answer(study(ctx, technique))
    named = {name for line in found["traffic"] for name in line["group"].split(", ")}
    assert {name for name, (group, _) in technique.issued(torch.float64).items() if group.size() > 1} <= named
    return {**found, "figures": {}}


def accounts(size: int, rank: int) -> Accounts:
    """Traffic and memory of every step on one rank of a world of `size`."""
    load([step for step, _ in CASES])
    found: Accounts = []
    agreed = mock.Mock(return_value=torch.ones(1, dtype=torch.int32))  # all stages were told their shapes
    with (
        values_left_out(),
        mock.patch("suites.mesh.steps.told", studied),
        mock.patch("suites.mesh.moe.run.told", studied),
        mock.patch.object(layer, "route", preferred(layer.route)),
        mock.patch.object(PipelineStage, "_warmup_forward_vote", agreed),
        mock.patch.object(PipelineStage, "_warmup_backward_result", agreed),
    ):
        for step, parameters in CASES:
            told = REGISTRY[step](context(rank, size), **parameters)
            found.append((step, told["traffic"], told["memory"]))
    return found


# Ranks to whose experts somebody sends: torch's fake group refuses to send an empty tensor back.
@pytest.mark.parametrize(("size", "rank"), [(8, 0), (16, 5), (64, 33)])
def test_traffic_and_memory_are_the_closed_forms(size: int, rank: int) -> None:
    assert_closed_forms(fake_world(size, rank, accounts), len(CASES))
