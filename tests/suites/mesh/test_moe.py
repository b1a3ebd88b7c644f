"""Mixtures of experts on a mesh: every part in real worlds, the rule of the axes, closed forms up to 512."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study import parity
from suites.expert import layer
from suites.expert.parity import decided
from suites.expert.routing import top_k
from suites.mesh.moe import forms
from suites.mesh.moe.grid import LINES, Axes, Grid, combined, on_grid, replicated
from suites.mesh.moe.payload import layout_of
from suites.mesh.moe.task import EXACT, Dims, Task, unsharded
from suites.mesh.moe.training import Trainer, follow
from suites.mesh.test_mesh import EXPERTS
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.fake_world import Accounts, assert_closed_forms, fake_world
from tests.suites.parallel import assert_green

PARTS = ("parity", "repeat", "traffic", "memory", "placement", "figures", "wrong")
RULES = {"mesh.ep_dp": replicated, "mesh.five_axes": combined}
DIMS = {case.step: Dims(**case.parameters) for case in EXPERTS}
COMBINED = {
    2: Axes(2, 1, 1, 1, 1),
    4: Axes(2, 1, 1, 2, 2),
    8: Axes(2, 1, 2, 2, 4),
    16: Axes(2, 2, 2, 2, 4),
    64: Axes(2, 8, 2, 2, 4),
    3: Axes(1, 3, 1, 1, 3),
    6: Axes(2, 3, 1, 1, 3),
}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_every_part_of_every_step_holds(size: int) -> None:
    found = assert_green(size, [(case.step, case.parameters) for case in EXPERTS], parts=PARTS)
    for case, ranks in zip(EXPERTS, found, strict=True):
        axes = RULES[case.step](size)
        for line in (line for line in LINES if len(axes.members(line)[0]) > 1):
            assert all(rank["figures"][f"{line}_bandwidth"] > 0 for rank in ranks), line
            moved = [entry for rank in ranks for entry in rank["traffic"] if entry["group"] == line]
            assert len(moved) >= size, line
            assert min(entry["bytes"] for entry in moved) > 0, line


def test_sixteen_ranks_use_all_lines_and_train_as_one() -> None:
    dims = replace(DIMS["mesh.five_axes"], steps=1, micro_batches=2)

    def errors(ctx: Context) -> tuple[list[str], float]:
        task = Task(ctx, combined(ctx.size), dims)
        want = unsharded(task, EXACT)
        with on_grid(ctx, task.axes) as grid:
            trainer = Trainer(task, grid, EXACT)
            found = follow(task, trainer)
            right = trainer.stage.part(want.grads)
            worst = max(parity.relative(found.grads[name], right[name]) for name in right)
            return [line.name for line in grid.used], max(worst, parity.relative(found.forward, want.forward))

    for used, worst in run_world(16, errors):
        assert used == list(LINES)
        assert worst < parity.TOLERANCE


@pytest.mark.parametrize("ranks", COMBINED)
def test_ranks_are_dealt_out_by_the_rule(ranks: int) -> None:
    assert combined(ranks) == COMBINED[ranks]


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 12, 16, 64, 512])
@pytest.mark.parametrize("rule", RULES.values())
def test_every_line_meets_every_rank_once_where_its_layout_says(
    rule: Callable[[int], Axes], ranks: int
) -> None:
    axes = rule(ranks)
    assert axes.ranks == ranks
    for line in LINES:
        groups = axes.members(line)
        assert sorted(rank for members in groups for rank in members) == list(range(ranks))
        layout = layout_of(axes, line)
        if line in layout.names:
            assert all(layout.members(rank, line) == group for group in groups for rank in group)


def test_the_lines_of_eight_ranks() -> None:
    axes = combined(8)
    assert axes.members("pp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert axes.members("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert axes.members("cp") == axes.members("dp_cp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert axes.members("ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert replicated(8).members("edp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_tensors_stay_inside_nodes_of_two_and_stages_cross() -> None:
    hosts = [f"node-{rank // 2}" for rank in range(8)]
    spans = {line: {len({hosts[r] for r in group}) for group in combined(8).members(line)} for line in LINES}
    assert spans == {"tp": {1}, "pp": {2}, "cp": {2}, "dp_cp": {2}, "ep": {2}, "edp": {1}}


def test_what_cannot_be_dealt_out_is_refused_with_all_its_faults() -> None:
    dims = replace(DIMS["mesh.five_axes"], length=12, kv_heads=1, micro_batches=1)
    with pytest.raises(ValueError, match=r"12 positions .*; .* 1 key-value heads .*; 1 micro-batches"):
        Task(context(0, 8), combined(8), dims)


def test_preferences_that_are_nearly_equal_are_decided_all_the_same() -> None:
    preferred = torch.tensor([[0.5, 0.5 + 1e-9, 0.2]], dtype=torch.float64)
    logits = torch.tensor([[9.0, -9.0, 9.0]], dtype=torch.float64)
    assert top_k(decided(preferred) + logits, 1).tolist() == [[1]]


def test_no_step_leaves_a_process_group_behind() -> None:
    def groups_left(ctx: Context) -> int:
        for case in EXPERTS:
            REGISTRY[case.step](ctx, **case.parameters)
        return len(dist.distributed_c10d._world.pg_map)

    assert run_world(4, groups_left) == [1, 1, 1, 1]


def counted(task: Task, grid: Grid) -> Callable[..., None]:
    """An all-to-all that brings counts as they would come; of rows only the shapes are real."""
    line, real = grid.line("ep"), dist.all_to_all_single
    order = [(i, n) for i in range(task.dims.micro_batches) for n in task.blocks_of(grid.place[0])]
    tables = cycle(
        [
            torch.cat(
                [task.rows_sent(rank, n, i).view(line.size, -1)[line.group.rank] for rank in line.members]
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


def accounts(size: int, rank: int) -> Accounts:
    """Traffic and memory of both steps on one rank of a world of `size`."""
    found: Accounts = []
    agreed = mock.Mock(return_value=torch.ones(1, dtype=torch.int32))  # all stages were told their shapes
    for step, rule in RULES.items():
        task = Task(context(rank, size), rule(size), replace(DIMS[step], length=8))
        with (
            on_grid(task.ctx, task.axes) as grid,
            mock.patch.object(dist, "all_to_all_single", counted(task, grid)),
            mock.patch.object(layer, "route", preferred(layer.route)),
            mock.patch.object(PipelineStage, "_warmup_forward_vote", agreed),
            mock.patch.object(PipelineStage, "_warmup_backward_result", agreed),
        ):
            trainer = Trainer(task, grid, EXACT)
            seen = follow(task, trainer).traffic
            traffic = forms.traffic(task, grid, seen)
            assert {line["group"] for line in traffic} >= {line.name for line in grid.used}
            found.append((step, traffic, forms.held(task, grid, trainer)))
    return found


# Ranks to whose experts somebody sends: torch's fake group refuses to send an empty tensor back.
@pytest.mark.parametrize(("size", "rank"), [(8, 0), (8, 5), (16, 5), (64, 33), (512, 0), (512, 257)])
def test_traffic_and_memory_are_the_closed_forms(size: int, rank: int) -> None:
    assert_closed_forms(fake_world(size, rank, accounts), len(RULES))
