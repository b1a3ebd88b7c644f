"""Sizes that a GPU deserves: those of processors would measure its host alone, or be rounded otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fixtures.check.plan import Case
from fixtures.ranks.steps import Context
from suites.zero.test_zero import AT_SIZE, STEPS, scaled
from suites.zero.training import Task, unsharded
from tests.fixtures.ranks.gloo_world import context
from thresholds.hardware import MODELS


def on_gpu(ranks: int) -> Context:
    return replace(context(0, ranks), device=torch.device("cuda"))


@pytest.mark.parametrize("ranks", [2, 3, 5, 6, 8, 9, 10, 64])
def test_parts_of_a_flat_buffer_are_aligned_on_a_gpu(ranks: int) -> None:
    columns = Task(on_gpu(ranks), 24, 1, 1, 1).columns
    assert columns % 8 == columns % ranks == 0
    assert Task(context(0, ranks), 24, 1, 1, 1).columns == -(-24 // ranks) * ranks


@pytest.mark.parametrize("ranks", [3, 8, 24, 40, 56, 72, 80, 100, 1024, 9000])
def test_a_ranks_rows_are_cut_into_the_micro_batches_of_every_world(ranks: int) -> None:
    [ddp] = [case for case in AT_SIZE if case.step == "zero.ddp"]
    asked = {**ddp.parameters, **scaled(MODELS["nccl"], ranks)}
    assert asked["rows"] % asked["micro_batches"] == 0


@pytest.mark.parametrize("case", [case for case in STEPS if "module" not in case.parameters])
def test_an_update_moves_weights_in_bf16_of_every_block(case: Case) -> None:
    """Otherwise weights of the step before would pass for the new ones."""
    width, layers, rows = (case.parameters[name] for name in ("width", "layers", "rows"))
    task = Task(context(0, 2), width, layers, rows, steps=1)
    before = {f"param:{name}": one for name, one in task.model(torch.bfloat16).named_parameters()}
    after = unsharded(task, torch.bfloat16)
    moved = {name: float((after[name] != one).float().mean()) for name, one in before.items()}
    assert min(moved.values()) > 0.5, moved


def test_rows_that_micro_batches_do_not_share_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows cannot be cut into 2 micro-batches"):
        Task(context(0, 2), 24, 1, 3, 1, micro_batches=2)
