"""Traffic and memory are the closed forms as equalities, up to worlds that no machine of ours has.

What compares values is left out here, and so is what asks others for theirs.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch.distributed.pipelining import PipelineStage

from fixtures.ranks.steps import REGISTRY
from fixtures.ranks.study.deliveries import Deliveries
from suites.mesh.task import Results, Task
from suites.mesh.test_mesh import STEPS
from tests.fixtures.ranks.gloo_world import context
from tests.suites.fake_world import Accounts, assert_closed_forms, fake_world
from tests.suites.parallel import load

LESS = {"rows": 1, "layers": 1, "steps": 3}  # in a large world the smallest matrices that divide are large


def nothing_trained(task: Task, dtype: torch.dtype) -> Results:
    """The shapes of an unsharded run."""
    return {"loss": torch.zeros(()), "logits": torch.zeros(())}


def accounts(size: int, rank: int) -> Accounts:
    """Traffic and memory of every step on one rank of a world of `size`."""
    load([case.step for case in STEPS])
    found: Accounts = []
    ctx = context(rank, size)
    unrecorded = nullcontext(Deliveries())
    agreed = mock.Mock(return_value=torch.ones(1, dtype=torch.int32))  # all stages were told their shapes
    with (
        mock.patch("suites.mesh.study.unsharded", nothing_trained),
        mock.patch("suites.mesh.study.record_deliveries", return_value=unrecorded),
        mock.patch("suites.mesh.study._pairs", return_value=[]),
        mock.patch("suites.mesh.study._trained", return_value=[]),
        mock.patch("suites.mesh.dense.Divided.expected", return_value={}),
        mock.patch("suites.mesh.staged.Staged.expected", return_value={}),
        mock.patch("suites.mesh.along.sent", return_value=([], {})),
        mock.patch("suites.mesh.placement.entries", return_value=[]),
        mock.patch.object(PipelineStage, "_warmup_forward_vote", agreed),
        mock.patch.object(PipelineStage, "_warmup_backward_result", agreed),
    ):
        for case in STEPS:
            less: dict[str, Any] = {**case.parameters, **LESS}
            told = REGISTRY[case.step](ctx, **less)
            found.append((case.step, told["traffic"], told["memory"]))
    return found


@pytest.mark.parametrize(("size", "rank"), [(8, 0), (8, 7), (64, 63), (512, 1)])
def test_traffic_and_memory_are_the_closed_forms(size: int, rank: int) -> None:
    assert_closed_forms(fake_world(size, rank, accounts), len(STEPS))
