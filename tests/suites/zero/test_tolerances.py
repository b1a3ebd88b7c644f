"""What a run in bf16 is allowed: three times what the unsharded one is wrong by, in all ranks' results."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from fixtures.ranks.steps import Context
from suites.zero import mixed
from suites.zero.evidence import flattened, rounded_entry, training_entries
from suites.zero.policies import Cast
from suites.zero.training import TRAINING, Engine, Named, Task, Trace, follow, optimizer_of
from suites.zero.wrapped import Replicated, on_mesh
from tests.fixtures.ranks.gloo_world import run_world


def test_what_bf16_may_be_wrong_by_is_seen_in_all_ranks_results_and_not_in_one_part() -> None:
    right, plain = torch.tensor([1.0, 8.0]), torch.tensor([1.0, 8.5])
    part = torch.tensor([1.0])  # of which the unsharded run has no error
    within, beyond = (
        rounded_entry("x", torch.tensor([value]), part, (plain, right), 2.0**-9) for value in (2.4, 2.6)
    )
    assert within["tolerance"] == pytest.approx(3 * 0.5 / 8)
    assert within["error"] == pytest.approx(1.4 / 8)
    assert within["error"] < within["tolerance"] < beyond["error"]


def test_a_part_that_is_no_number_or_of_another_shape_is_never_within() -> None:
    whole = torch.ones(2)
    for found in (torch.tensor([float("nan"), 1.0]), torch.ones(3)):
        assert rounded_entry("x", found, whole, (whole, whole), 2.0**-9)["error"] == float("inf")


class Whole:
    """An engine that holds everything."""

    def part(self, full: Named) -> Named:
        return full


def test_of_more_ranks_that_add_up_in_bf16_more_is_tolerated_of_gradients_alone() -> None:
    numbers, losses, output = {"0": torch.ones(4)}, torch.ones(2), torch.ones(3)
    trace = Trace(losses, numbers, numbers, output, all_losses=losses, all_output=output)
    engine = cast("Engine", Whole())
    few, many = (
        {
            one["what"]: one["tolerance"]
            for one in training_entries(trace, trace, trace, engine, summands=summands)
        }
        for summands in (2, 512)
    )
    assert many.pop("bf16:grads") == pytest.approx(16 * few.pop("bf16:grads"))
    assert many == few


def same_casts(ctx: Context) -> list[float]:
    """How far fully_shard in two dtypes is from the unsharded run that casts in the same places."""
    found: list[float] = []

    def work(mesh: object) -> dict[str, object]:
        task = Task(ctx, width=8, layers=2, rows=2, steps=3)
        engine = Cast(task, mesh)  # type: ignore[arg-type]
        trace, alone = follow(task, engine, TRAINING), mixed.unsharded(task, True, optimizer_of)
        for part in (alone.grads, alone.params):
            mine = flattened(engine.part(part)).float()
            theirs = flattened(trace.grads if part is alone.grads else trace.params)
            found.append(float((mine - theirs.to(mine.dtype)).abs().max() / mine.abs().max()))
        return {}

    on_mesh(ctx, (ctx.size,), work)
    return found


def test_the_unsharded_run_casts_where_the_sharded_one_does() -> None:
    for grads, params in run_world(4, same_casts):
        assert grads < 1e-6
        assert params < 2.0**-8  # its own are rounded to bf16, the sharded ones are the masters


def losses_of_micro_batches(ctx: Context) -> bool:
    task = Task(ctx, width=8, layers=2, rows=4, steps=2)
    return follow(task, Replicated(task, TRAINING, 1 << 20, 4), TRAINING).losses.dtype is torch.float64


def test_the_losses_of_micro_batches_are_not_rounded_each_time_they_are_added() -> None:
    assert run_world(1, losses_of_micro_batches) == [True]
