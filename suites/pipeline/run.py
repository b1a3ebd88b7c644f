"""One pipeline schedule: run once for its gradients, traffic and memory, and then against the clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks.groups import divided_into, lasting
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory
from fixtures.ranks.study.traffic import Traffic, count_traffic
from suites.pipeline import bubble, parity
from suites.pipeline.schedules import PLANS, Shape, crossings, in_flight
from suites.pipeline.stages import Pipeline, Problem


def run(
    ctx: Context,
    schedule: str,
    *,
    width: int,
    rows: int,
    per_rank: int,
    busy_ms: int,
    repeats: int,
    most: int,
) -> dict[str, Any]:
    """Run a schedule of `per_rank` micro-batches per rank and `rows` rows each, in pipelines of `most` ranks.

    For the bubble every stage takes a calibrated time, such that a rank is busy for `busy_ms` in each of
    `repeats` rounds.
    """
    shape = _shape(ctx, schedule, per_rank, most)
    with _pipeline_of(ctx, shape.ranks) as (own, group):
        return _measured(
            own, group, schedule, shape, dims=(width, rows), busy_s=busy_ms / 1e3, repeats=repeats
        )


@contextmanager
def _pipeline_of(ctx: Context, ranks: int) -> Iterator[tuple[Context, dist.ProcessGroup]]:
    """Cut the world into pipelines of so many ranks, stages outermost, so that neighbours are far apart.

    Rank r is stage r // n of pipeline r % n, where there are n pipelines. What is yielded counts within it.
    """
    pipelines = ctx.size // ranks
    members = [list(range(first, ctx.size, pipelines)) for first in range(pipelines)]
    world: Any = dist.group.WORLD
    group = divided_into(members) if pipelines > 1 else world
    mine = members[ctx.rank % pipelines]
    own = replace(
        ctx,
        rank=ctx.rank // pipelines,
        size=ranks,
        hosts=[ctx.hosts[rank] for rank in mine],
        local_ranks=[ctx.local_ranks[rank] for rank in mine],
    )
    # A backend's first call in a group must be one that all of its ranks make: the edges are none.
    dist.all_reduce(torch.zeros(1, device=ctx.device), group=group)
    with lasting([group]):
        yield own, group


def _measured(
    ctx: Context,
    group: dist.ProcessGroup,
    schedule: str,
    shape: Shape,
    *,
    dims: tuple[int, int],
    busy_s: float,
    repeats: int,
) -> dict[str, Any]:
    """Train one step for the bits, and then some against the clock."""
    ctx.progress.phase("parity")
    pipeline = Pipeline(ctx, group, schedule, shape, Problem.make(ctx, shape, *dims, torch.float64))
    pipeline.step()  # stages agree on shapes once: what they send for that is not the schedule's
    with count_traffic() as seen:
        found = parity.train(pipeline)
    result: dict[str, Any] = {
        "parity": [
            *parity.order(pipeline, schedule),
            *parity.micro_batched(pipeline, schedule, found),
            *parity.whole_batch(pipeline, found),
        ],
        "traffic": _traffic(pipeline, schedule, seen),
        "memory": _memory(pipeline, schedule),
        "repeat": parity.repeated(pipeline, schedule, found),
    }
    ctx.progress.phase("bf16")
    low = Pipeline(ctx, group, schedule, shape, Problem.make(ctx, shape, *dims, torch.bfloat16))
    result["parity"] += parity.micro_batched(low, schedule, parity.train(low), "bf16:")
    ctx.progress.phase("bubble")
    result["figures"], spans = bubble.measure(pipeline, schedule, busy_s, repeats)
    result["samples"] = repeats
    result["schedule"] = {
        "pipeline": min(dist.get_process_group_ranks(group)),
        "place": ctx.rank,
        "formula": PLANS[schedule].formula,
        "operations": [[*span.op, round(span.begin_s, 6), round(span.end_s, 6)] for span in spans],
    }
    return result


def ranks_of(size: int, most: int) -> int:
    """Give the ranks of a pipeline: the most that divide the world, and all where nothing does."""
    return max((one for one in range(2, most + 1) if size % one == 0), default=size)


def _shape(ctx: Context, schedule: str, per_rank: int, most: int) -> Shape:
    """Take the largest pipeline that divides the world and has at most so many ranks."""
    plan = PLANS[schedule]
    ranks = ranks_of(ctx.size, most)
    if ranks < 2 or per_rank < plan.least_per_rank:
        raise ValueError(
            f"{schedule} needs 2 ranks or more and {plan.least_per_rank} micro-batches per rank or more, "
            f"not {ranks} and {per_rank}"
        )
    return Shape(ranks, per_rank * ranks, plan.chunks)


# traffic and memory


def _traffic(pipeline: Pipeline, schedule: str, seen: Traffic) -> list[dict[str, Any]]:
    """Stand what was sent beside m tensors per edge and direction."""
    shape, inputs = pipeline.shape, pipeline.problem.inputs
    count = crossings(PLANS[schedule], shape, pipeline.ctx.rank) * shape.micro_batches
    size = count * inputs.numel() // shape.micro_batches * inputs.element_size()
    return seen.table({"send": (count, size), "recv": (count, size)}, "pp")


def _memory(pipeline: Pipeline, schedule: str) -> list[dict[str, Any]]:
    """Stand what this rank held beside its share: its stages' 3 d h weights, and what is in flight."""
    shape, problem, rank = pipeline.shape, pipeline.problem, pipeline.ctx.rank
    plan, held = PLANS[schedule], pipeline.recorder.held
    width, item = problem.inputs.shape[1], problem.inputs.element_size()
    hidden = problem.modules[0].gate.out_features
    share = 3 * width * hidden * item * len(pipeline.stages)
    modules = pipeline.modules.values()

    def weigh(stage: int) -> int:
        return problem.saved_bytes(stage, shape.micro_batches)

    return [
        memory.entry("params", sum(memory.parameter_bytes(module) for module in modules), share),
        memory.entry("grads", sum(memory.gradient_bytes(module) for module in modules), share),
        memory.entry("in-flight micro-batches", held.peak, plan.held(shape, rank)),
        memory.entry("activations", held.peak_bytes, in_flight(plan.order(shape, rank), weigh)),
    ]
