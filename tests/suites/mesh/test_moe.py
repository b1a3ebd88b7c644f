"""Mixtures of experts on a mesh: every part in real worlds, and the rule of the axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from fixtures.ranks.steps import REGISTRY, Context, Unsupported
from fixtures.ranks.study import parity
from fixtures.ranks.study.driver import EXACT, compared, run_once
from suites.expert.parity import decided
from suites.expert.routing import top_k
from suites.mesh.moe.grid import on_grid
from suites.mesh.moe.issued import LINES, Axes, Dims, combined, plain, replicated
from suites.mesh.moe.run import Mixture
from suites.mesh.moe.task import Task
from suites.mesh.test_mesh import EXPERTS, STEPS
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.parallel import assert_green, load

PARTS = ("parity", "repeat", "traffic", "memory", "placement", "figures", "wrong")
RULES = {"mesh.ep_dp": replicated, "mesh.five_axes": combined}
TWO_LINES = {"mesh.ep_dp": replicated, "mesh.ep_fsdp": replicated}
MORE = {"mesh.five_axes": combined, "mesh.zero1_pp_ep": partial(replicated, stages=2)}
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


@pytest.mark.parametrize(("size", "rules"), [(2, RULES), (4, TWO_LINES), (8, MORE)])
def test_every_part_of_every_step_holds(size: int, rules: dict[str, Callable[[int], Axes]]) -> None:
    cases = [case for case in EXPERTS if case.step in rules]
    found = assert_green(size, [(case.step, case.parameters) for case in cases], parts=PARTS)
    for case, ranks in zip(cases, found, strict=True):
        axes = rules[case.step](size)
        for line in (line for line in LINES if len(axes.members(line)[0]) > 1):
            assert all(rank["figures"][f"{line}_bandwidth"] > 0 for rank in ranks), line
            moved = [entry for rank in ranks for entry in rank["traffic"] if entry["group"] == line]
            assert len(moved) >= size, line
            assert min(entry["bytes"] for entry in moved) > 0, line


def test_sixteen_ranks_use_all_lines_and_train_as_one() -> None:
    dims = replace(DIMS["mesh.five_axes"], steps=1, micro_batches=2)

    def errors(ctx: Context) -> tuple[list[str], float]:
        task = Task(ctx.rank, combined(ctx.size), dims, ctx=ctx)
        with on_grid(ctx, task.axes) as grid:
            technique = Mixture(task, grid, plain)
            entries = compared(technique, EXACT, run_once(technique, EXACT), technique.reference)
            return [line.name for line in grid.used], max(entry["error"] for entry in entries)

    for used, worst in run_world(16, errors):
        assert used == list(LINES)
        assert worst < parity.TOLERANCE


@pytest.mark.parametrize("ranks", COMBINED)
def test_ranks_are_dealt_out_by_the_rule(ranks: int) -> None:
    assert combined(ranks) == COMBINED[ranks]


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 12, 16, 64, 512])
@pytest.mark.parametrize("rule", RULES.values())
def test_every_line_meets_every_rank_once(rule: Callable[[int], Axes], ranks: int) -> None:
    axes = rule(ranks)
    for line in LINES:
        assert sorted(rank for members in axes.members(line) for rank in members) == list(range(ranks))


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


def test_stages_of_few_ranks_have_one_set_of_experts_and_those_of_many_have_two() -> None:
    assert [replicated(ranks, stages=2) for ranks in (4, 8)] == [Axes(2, 2, 1, 1, 2), Axes(2, 4, 1, 1, 2)]


@pytest.mark.parametrize("step", ["mesh.fsdp_cp_tp", "mesh.ep_fsdp", "mesh.zero1_pp_ep"])
def test_a_world_that_does_not_divide_into_fours_is_not_applicable(step: str) -> None:
    load([step])
    parameters = {case.step: case.parameters for case in [*STEPS, *EXPERTS]}[step]
    for size in (2, 6):
        with pytest.raises(Unsupported, match=f"need a multiple of 4 ranks, and this world has {size}"):
            REGISTRY[step](context(0, size), **parameters)


def test_what_cannot_be_dealt_out_is_refused_with_all_its_faults() -> None:
    dims = replace(DIMS["mesh.five_axes"], length=12, kv_heads=1, micro_batches=1)
    with pytest.raises(ValueError, match=r"12 positions .*; .* 1 key-value heads .*; 1 micro-batches"):
        Task(0, combined(8), dims, ctx=context(0, 8))


def test_preferences_that_are_nearly_equal_are_decided_all_the_same() -> None:
    preferred = torch.tensor([[0.5, 0.5 + 1e-9, 0.2]], dtype=torch.float64)
    logits = torch.tensor([[9.0, -9.0, 9.0]], dtype=torch.float64)
    assert top_k(decided(preferred) + logits, 1).tolist() == [[1]]


@pytest.mark.parametrize("step", DIMS)
def test_a_step_prefers_other_experts_than_the_one_before(step: str) -> None:
    task = Task(0, replicated(4), DIMS[step], ctx=context(0, 4))
    first, second, third = (task.wanted(0, 0, 0, number) for number in range(3))
    assert torch.equal(first, third)
    assert not torch.equal(first, second)
