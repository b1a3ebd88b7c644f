"""The techniques of data parallelism, each with its closed forms, and the answers of their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory
from fixtures.ranks.study.at_size import at_size
from fixtures.ranks.study.driver import EXACT, Form, answer, study
from fixtures.ranks.study.pattern import Move, sent
from fixtures.ranks.study.traffic import Expected
from suites.mesh import placement
from suites.zero import held, issued
from suites.zero.flat import Zero1, Zero2, Zero3
from suites.zero.issued import gathered_and_reduced, of_stage
from suites.zero.training import Task, Trained
from suites.zero.wrapped import FullySharded, Replicated, ShardedOptimizer

ITEM = EXACT.itemsize
STAGES: dict[int, type[Zero1]] = {1: Zero1, 2: Zero2, 3: Zero3}


def replicated(
    task: Task,
    engine: type[Replicated] = Replicated,
    *,
    buckets: int = 0,
    variant: str = "",
) -> Trained[Replicated]:
    """DDP with a bucket for each block, or with `buckets` of them."""
    count = buckets or task.layers
    bucket = 2 * task.elements if buckets == 1 else task.block_elements
    return Trained(
        task,
        lambda dtype: engine(task, dtype, bucket * dtype.itemsize),
        lambda item: {"all_reduce": (count, item * task.elements)},
        partial(held.replicated, task.sizes),
        states,
        variant,
    )


def owned(task: Task, shares: list[int]) -> Trained[ShardedOptimizer]:
    """DDP whose optimizer broadcasts what each rank updated: `shares` in elements, or one fp32 number."""
    return Trained(
        task,
        lambda dtype: ShardedOptimizer(task, dtype, task.block_elements * dtype.itemsize),
        lambda item: issued.owned(shares, task.layers, item),
        partial(held.owned, shares[task.ctx.rank], task.sizes),
        states,
    )


def states(engine: Replicated | FullySharded) -> dict[str, int]:
    """What an engine of torch's holds now."""
    return {
        "params": memory.parameter_bytes(engine.model),
        "grads": memory.gradient_bytes(engine.model),
        "optimizer": memory.optimizer_bytes(engine.optimizer),
    }


def flat(tasks: Mapping[str, Task], number: int) -> dict[str, Any]:
    """Run a stage of ZeRO on each of the named tasks."""
    techniques = [
        Trained(
            task,
            partial(STAGES[number], task),
            sharded(task, *of_stage(number, task.micro_batches)),
            partial(held.stage, number, task.sizes),
            _flat_states,
            name,
        )
        for name, task in tasks.items()
    ]
    plain = tasks[""]
    if plain.ctx.at_size:
        return at_size(plain.ctx, techniques[0])
    told = answer(*(study(plain.ctx, one) for one in techniques))
    return {**told, **sent_sharded(plain, of_stage(number, 1)[0])}


def _flat_states(engine: Zero1) -> dict[str, int]:
    """What a stage holds; "live unsharded" are whole parameters, after forward."""
    return {
        **engine.held_bytes(),
        "grads before they are reduced": engine.gradient_peak_bytes,
        "optimizer": memory.optimizer_bytes(engine.optimizer),
        "live unsharded": engine.live_bytes,
        "live unsharded at most": engine.live_peak_bytes,
    }


def variants(ctx: Context, *, micro_batches: int = 1, clip: float = 0.0, **sizes: int) -> dict[str, Task]:
    """The plain task, and one like a real run: micro-batches add up, and the norm is clipped.

    The latter has two blocks: a deep stack of gates, which nothing normalises, has gradients of any size.
    """
    task = Task(ctx, **sizes)
    if micro_batches == 1 and not clip:
        return {"": task}
    real = replace(task, layers=min(task.layers, 2), micro_batches=micro_batches, clip=clip)
    return {"": task, "accumulated, clipped": real}


def sharded(task: Task, gathers: int, reductions: int = 1) -> Callable[[int], Expected]:
    """Every block gathered and reduced so often, from the bytes of an item."""

    return lambda item: gathered_and_reduced(item * task.elements, task.layers, gathers, reductions)


def sent_sharded(task: Task, gathers: int, reduced: int = ITEM, gathered: int = ITEM) -> dict[str, Any]:
    """Send the same with exact payloads; `reduced` and `gathered` are the bytes of an item."""
    block, layers = task.block_elements, task.layers
    moves = [Move("reduce_scatter", reduced * block)] * layers
    return sent(task.ctx, moves + [Move("all_gather", gathered * block)] * gathers * layers)


def sharded_states(engine: FullySharded) -> dict[str, int]:
    """Each state after resharding; and the whole parameters after forward."""
    engine.reshard()
    return {**states(engine), "live unsharded": engine.live_bytes}


def fully_sharded(tasks: Mapping[str, Task], mesh: DeviceMesh) -> dict[str, Any]:
    """Run fully_shard on all ranks, each task with resharding after forward and without."""
    techniques = [
        Trained(
            task,
            partial(FullySharded, task, mesh, reshard),
            sharded(task, gathers * task.micro_batches, task.micro_batches),
            partial(held.sharded, task.ctx.size, task.sizes, kept=not reshard),
            sharded_states,
            f"{variant}, {name}".removesuffix(", "),
        )
        for name, task in tasks.items()
        for variant, reshard, gathers in (("resharded", True, 2), ("kept", False, 1))
    ]
    plain = tasks[""]
    if plain.ctx.at_size:
        return at_size(plain.ctx, techniques[0])
    return {**answer(*(study(plain.ctx, one) for one in techniques)), **sent_sharded(plain, gathers=2)}


def replicas(ctx: Context) -> tuple[int, int]:
    """Replicas and shards."""
    return issued.replicas([ctx.hosts.count(host) for host in dict.fromkeys(ctx.hosts)])


class Hybrid(Trained[FullySharded]):
    """fully_shard on a mesh of replicas and shards."""

    def __init__(self, task: Task, mesh: DeviceMesh) -> None:
        make = partial(FullySharded, task, mesh, True)
        holds = partial(held.sharded, mesh.size(1), task.sizes)
        super().__init__(task, make, sharded(task, 2), holds, sharded_states)
        self.mesh = mesh

    def forms(self, dtype: torch.dtype) -> list[Form]:
        """Gathers and reductions among the shards of a replica, all_reduce of a shard among the replicas."""
        layers, share = self.task.layers, dtype.itemsize * self.task.elements // self.mesh.size(1)
        return [
            Form(self.issued(dtype.itemsize), "shard", self.mesh.get_group("shard")),
            Form({"all_reduce": (layers, share)}, "replicate", self.mesh.get_group("replicate")),
        ]


def hybrid(task: Task, mesh: DeviceMesh) -> dict[str, Any]:
    """Run it, and send the three hops of an all-reduce: along the shards, across the replicas, and back.

    Shards should be neighbours: what is gathered stays in a node, and only shards are sent between nodes.
    """
    if task.ctx.at_size:
        return at_size(task.ctx, Hybrid(task, mesh))
    told, psi = answer(study(task.ctx, Hybrid(task, mesh))), ITEM * task.elements
    along, across = (Among.of(mesh.get_group(name), name) for name in ("shard", "replicate"))
    rank, shards = task.ctx.rank, len(along.ranks)
    meant = {
        "shard": range(rank // shards * shards, (rank // shards + 1) * shards),
        "replicate": range(rank % shards, task.ctx.size, shards),
    }
    used = [axis for axis in (along, across) if len(axis.ranks) > 1]
    hops = (
        ("reduce_scatter", psi, along),
        ("all_reduce", psi // mesh.size(1), across),
        ("all_gather", psi, along),
    )
    moves = [Move(kind, size, among) for kind, size, among in hops if len(among.ranks) > 1]
    return {**told, **sent(task.ctx, moves), "placement": placement.entries(task.ctx, used, meant)}
