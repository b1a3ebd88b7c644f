"""Traffic and memory are the closed forms as equalities, up to worlds that no machine of ours has.

What compares values is left out here, and so is what asks others for theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from importlib import import_module
from itertools import cycle
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from fixtures.check.judges import claims
from fixtures.ranks.steps import Context
from fixtures.ranks.study.driver import answer, study
from fixtures.wire.held import named
from suites.context import techniques, torch_ring
from suites.context.test_context import CONTEXT
from suites.expert import layer
from suites.expert.routing import counts, top_k
from suites.mesh import test_mesh
from suites.mesh.moe.grid import Grid
from suites.mesh.moe.run import Mixture
from suites.mesh.moe.task import Task
from suites.mesh.technique import Combined
from suites.tensor import overlap, test_tensor
from suites.zero import test_zero
from tests.fixtures.ranks.gloo_world import context
from tests.suites.fake_world import Accounts, assert_closed_forms, fake_world, values_left_out
from tests.suites.parallel import Case, load, told
from tests.teeth.patches.zero import bare

Patches = list[AbstractContextManager[Any]]

BLOCK = {"batch": 1, "channels": 2, "heads": 1, "hidden": 2}
# In a large world the smallest matrices that divide are large.
DENSE: list[Case] = [(case.step, {**case.parameters, "rows": 1, "layers": 1}) for case in test_mesh.STEPS]
CASES: dict[str, list[Case]] = {
    "zero": [
        (case.step, {**case.parameters, "layers": test_zero.SMALL["layers"]}) for case in test_zero.STEPS
    ],
    "tensor": [
        (case.step, {name: BLOCK.get(name, value) for name, value in case.parameters.items()})
        for case in test_tensor.STEPS
    ],
    "context": [
        (case.step, {**case.parameters, "batch": 1, "tokens": 2, "dim": 8})
        for case in CONTEXT
        if case.parameters.get("causal", True)
    ],
    "mesh": [*DENSE, *((case.step, {**case.parameters, "length": 8}) for case in test_mesh.EXPERTS)],
}


def accounts(size: int, rank: int, family: str) -> Accounts:
    """Traffic and memory of every step of a family on one rank of a world of `size`."""
    load([step for step, _ in CASES[family]])
    found: Accounts = []
    with ExitStack() as replaced:
        for patch in REPLACED[family]():
            replaced.enter_context(patch)
        for step, parameters in CASES[family]:
            said = told(context(rank, size), step, parameters)
            found.append((step, said["traffic"], said["memory"]))
    return found


# data parallelism


def without_results() -> Patches:
    """DDP exchanges its buckets by a hook: the fake group's work has no result, which DDP itself asks for."""
    original = DistributedDataParallel.__init__

    def exchange(_state: object, bucket: Any) -> Any:
        dist.all_reduce(bucket.buffer())
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def init(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(None, bare(exchange))

    return [
        mock.patch.object(DistributedDataParallel, "__init__", init),
        values_left_out("suites.zero.steps", "suites.zero.answers"),
        mock.patch("suites.zero.steps.alike", return_value=[]),
    ]


# meshes


def counted(task: Task, grid: Grid) -> Callable[..., None]:
    """An all-to-all that brings counts as they would come; of rows only the shapes are real."""
    own, real = grid.group("ep"), dist.all_to_all_single
    batches, numbers = range(task.dims.micro_batches), task.blocks_of(task.place[0])
    order = [(n, i, step) for step in range(task.dims.steps) for i in batches for n in numbers]

    def sent(rank: int, *which: int) -> torch.Tensor:
        chosen = top_k(task.wanted(rank, *which), task.dims.top_k)
        return counts(chosen, task.experts).view(own.size, -1)[own.rank]

    tables = cycle([torch.cat([sent(rank, *one) for rank in grid.lines["ep"].ranks]) for one in order])

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
    named = {line["group"] for line in found["traffic"]}
    groups = {name: group for name, (group, _) in technique.issued(torch.float64).items()}
    several = {one for one in groups if isinstance(groups[one], dist.ProcessGroup) or len(groups[one]) > 1}
    assert several <= named
    return {**found, "figures": {}}


def by_preference() -> Patches:
    """Nothing that is routed, or that stages agree on, hangs on what a fake group delivers."""
    agreed = mock.Mock(return_value=torch.ones(1, dtype=torch.int32))  # all stages were told their shapes
    return [
        values_left_out(),
        mock.patch("suites.mesh.steps.told", studied),
        mock.patch("suites.mesh.moe.run.told", studied),
        mock.patch.object(layer, "route", preferred(layer.route)),
        mock.patch.object(PipelineStage, "_warmup_forward_vote", agreed),
        mock.patch.object(PipelineStage, "_warmup_backward_result", agreed),
    ]


def _imported(_: Context, name: str, _needs: Sequence[str] = ()) -> ModuleType:
    """An engine that nobody asks other ranks for."""
    return import_module(name)


REPLACED: dict[str, Callable[[], Patches]] = {
    "zero": without_results,
    "tensor": lambda: [
        values_left_out("suites.tensor.technique"),
        mock.patch.object(overlap, "overlap", return_value=0.0),
        mock.patch.object(overlap, "engine", _imported),
    ],
    "context": lambda: [
        values_left_out("suites.context.steps"),
        mock.patch.object(techniques, "hiding", return_value={}),
        mock.patch.object(torch_ring, "engine", _imported),
    ],
    "mesh": by_preference,
}
# What the controller expects of all ranks, or of each.
PLANNED = {
    "zero": test_zero.STEPS[0].holds,
    "tensor": test_tensor.STEPS[0].holds,
    "context": CONTEXT[0].holds,
    "mesh": test_mesh.STEPS[0].holds,
}
# Of meshes, ranks to whose experts somebody sends: torch's fake group refuses to send an empty tensor back.
PLACES = {
    "zero": [(64, 63)],
    "tensor": [(8, 0), (64, 63)],
    "context": [(8, 7), (32, 16)],
    "mesh": [(8, 0), (64, 33)],
}


@pytest.mark.parametrize(
    ("family", "size", "rank"), [(family, *place) for family, places in PLACES.items() for place in places]
)
def test_traffic_and_memory_are_the_closed_forms(family: str, size: int, rank: int) -> None:
    found = fake_world(size, rank, partial(accounts, family=family))
    assert_closed_forms(found, len(CASES[family]))
    planned = PLANNED[family]
    assert planned is not None
    for (step, parameters), (_, traffic, memory) in zip(CASES[family], found, strict=True):
        asked = step, parameters, [size], False
        forms: list[Any] = [form(*asked) for form in (planned.issued, planned.held) if form is not None]
        issued, held = (form if isinstance(form, dict) else form[rank] for form in forms)
        assert expected(traffic) == issued
        assert claims.differing(claims.limits(memory), named(held, 0, size)) == []


def expected(traffic: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, tuple[int, int]]]:
    """What a rank expects to issue, by group and dtype."""
    found: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    for line in traffic:
        calls = found.setdefault((line["group"], line["dtype"]), {})
        calls[line["op"]] = line["expected_count"], line["expected_bytes"]
    return found
