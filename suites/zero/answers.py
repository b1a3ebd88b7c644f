"""The techniques of data parallelism, each with its closed forms, and the answers of their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context
from fixtures.ranks.study.at_size import at_size
from fixtures.ranks.study.driver import EXACT, Form, Technique, answer, study
from fixtures.ranks.study.pattern import Move, sent
from suites.mesh import placement
from suites.zero import issued
from suites.zero.flat import Zero1, Zero2, Zero3
from suites.zero.held import AT_ONCE, KINDS, REPLICATED, RESHARDED, STAGES, Kind
from suites.zero.issued import Sizes
from suites.zero.training import Task, Trained
from suites.zero.wrapped import AXES, FullySharded, Replicas, Replicated

ITEM = EXACT.itemsize
ENGINES: dict[int, type[Zero1]] = {1: Zero1, 2: Zero2, 3: Zero3}


def replicated(
    task: Task,
    engine: type[Replicated] = Replicated,
    kind: Kind = REPLICATED,
    variant: str = "",
) -> Trained[Replicated]:
    """DDP with a bucket for each block, or with one in which everything fits twice."""
    bucket = 2 * task.elements if kind is AT_ONCE else task.block_elements
    make = lambda dtype: engine(task, dtype, bucket * dtype.itemsize)  # noqa: E731
    return Trained(task, make, kind, variant)


def flat(tasks: Mapping[str, Task], number: int) -> dict[str, Any]:
    """Run a stage of ZeRO on each of the named tasks."""
    techniques = (
        Trained(
            task,
            partial(ENGINES[number], task),
            STAGES[number],
            name,
        )
        for name, task in tasks.items()
    )
    return told(tasks[""].ctx, moves_of(tasks[""], gathers=2 if number == 3 else 1), *techniques)


def told(ctx: Context, moves: Sequence[Move], *techniques: Technique[Any]) -> dict[str, Any]:
    """Study them, and send exact payloads through these collectives; at size run only the first."""
    if ctx.at_size:
        return at_size(ctx, techniques[0])
    return {**answer(*(study(ctx, one) for one in techniques)), **sent(ctx, moves)}


def variants(ctx: Context, *, micro_batches: int = 1, clip: float = 0.0, **sizes: int) -> dict[str, Task]:
    """The plain task, and one like a real run: micro-batches add up, and the norm is clipped.

    The latter has two blocks, which are enough for both.
    """
    task = Task(ctx, **sizes)
    if micro_batches == 1 and not clip:
        return {"": task}
    real = replace(task, layers=min(task.layers, 2), micro_batches=micro_batches, clip=clip)
    return {"": task, "accumulated, clipped": real}


def moves_of(task: Task, gathers: int, reduced: int = ITEM, gathered: int = ITEM) -> list[Move]:
    """The collectives of a model whose blocks are gathered so often; both are the bytes of an item."""
    block, layers = task.block_elements, task.layers
    moves = [Move("reduce_scatter", reduced * block)] * layers
    return moves + [Move("all_gather", gathered * block)] * gathers * layers


def fully_sharded(tasks: Mapping[str, Task], mesh: DeviceMesh) -> dict[str, Any]:
    """Run fully_shard on all ranks, each task with resharding after forward and without."""
    techniques = (
        Trained(
            task,
            partial(FullySharded, task, mesh, variant == "resharded"),
            KINDS["fsdp"][variant],
            f"{variant}, {name}".removesuffix(", "),
        )
        for name, task in tasks.items()
        for variant in KINDS["fsdp"]
    )
    return told(tasks[""].ctx, moves_of(tasks[""], gathers=2), *techniques)


def replicas(ctx: Context) -> tuple[int, int]:
    """Replicas and shards."""
    return issued.replicas([ctx.hosts.count(host) for host in dict.fromkeys(ctx.hosts)])


class Hybrid(Trained[FullySharded]):
    """fully_shard on a mesh of replicas and shards."""

    def __init__(self, task: Task, mesh: DeviceMesh) -> None:
        super().__init__(task, partial(Replicas, task, mesh, True), RESHARDED)
        self.mesh = mesh

    @property
    def sizes(self) -> Sizes:
        """Parameters are shared within a replica."""
        return replace(self.task.sizes, shards=self.mesh.size(1))

    def forms(self, dtype: torch.dtype) -> list[Form]:
        """Gathers and reductions among the shards of a replica, all_reduce of a shard among the replicas."""
        axes = issued.hybrid(self.sizes, dtype.itemsize)
        return [Form(axes[axis], axis, self.mesh.get_group(number)) for number, axis in enumerate(AXES)]


def hybrid(task: Task, mesh: DeviceMesh) -> dict[str, Any]:
    """Run it, and send the three hops of an all-reduce: along the shards, across the replicas, and back."""
    psi = ITEM * task.elements
    across, along = (Among.of(mesh.get_group(number), axis) for number, axis in enumerate(AXES))
    used = [axis for axis in (along, across) if len(axis.ranks) > 1]
    hops = (
        ("reduce_scatter", psi, along),
        ("all_reduce", psi // mesh.size(1), across),
        ("all_gather", psi, along),
    )
    moves = [Move(kind, size, among) for kind, size, among in hops if len(among.ranks) > 1]
    found = told(task.ctx, moves, Hybrid(task, mesh))
    return found if task.ctx.at_size else {**found, "placement": placement.entries(task.ctx, used)}
