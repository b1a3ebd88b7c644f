"""What the steps of data parallelism answer: studies of a technique, and the closed forms beside them."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory
from suites.zero import exchanges
from suites.zero.evidence import Entries, Study, study
from suites.zero.flat import Zero1
from suites.zero.training import EXACT, Task
from suites.zero.wrapped import FullySharded, Replicated

ITEM = EXACT.itemsize


def answer(studies: list[Study[Any]], traffic: Entries, held: Entries) -> dict[str, Any]:
    """Join what the studies found, and close their engines."""
    for one in studies:
        one.engine.close()
    return {
        "parity": [entry for one in studies for entry in one.parity],
        "repeat": [entry for one in studies for entry in one.repeat],
        "traffic": traffic,
        "memory": held,
    }


def holds(
    engine: Replicated | FullySharded, params: int, grads: int, state: int, variant: str = ""
) -> Entries:
    """Compare what an engine of torch's holds now with the closed form."""
    label = f" ({variant})" if variant else ""
    model, optimizer = engine.model, engine.optimizer
    return [
        memory.entry("params" + label, memory.parameter_bytes(model), params),
        memory.entry("grads" + label, memory.gradient_bytes(model), grads),
        memory.entry("optimizer" + label, memory.optimizer_bytes(optimizer), state),
    ]


def flat(
    task: Task, stage: type[Zero1], *, whole: float, kept: float, gathers: int, live: tuple[float, float]
) -> dict[str, Any]:
    """Run a stage. Shares of Psi: whole gradients at most, parameters kept, whole ones after forward."""
    psi, block, ranks = ITEM * task.elements, ITEM * task.block_elements, task.ctx.size
    layers = task.layers
    done = study(task, lambda dtype: stage(task, dtype))
    expected = {"reduce_scatter": (layers, psi), "all_gather": (gathers * layers, gathers * psi)}
    engine = done.engine
    held = engine.held_bytes()
    entries = [
        memory.entry("params", held["params"], round(kept * psi)),
        memory.entry("grads", held["grads"], psi // ranks),
        memory.entry("grads before they are reduced", engine.gradient_peak_bytes, round(whole * psi)),
        memory.entry("optimizer", memory.optimizer_bytes(engine.optimizer), psi // ranks),
        memory.entry("live unsharded", engine.live_bytes, round(live[0] * psi)),
        memory.entry("live unsharded at most", engine.live_peak_bytes, round(live[1] * psi)),
    ]
    pattern = [("reduce_scatter", block)] * layers + [("all_gather", block)] * gathers * layers
    return {
        **answer([done], done.trace.traffic.table(expected), entries),
        **exchanges.sent(task.ctx, pattern),
    }


def fully_sharded(task: Task, mesh: DeviceMesh) -> dict[str, Any]:
    """Run fully_shard on all ranks, with resharding after forward and without."""
    psi, block, layers = ITEM * task.elements, ITEM * task.block_elements, task.layers
    share = psi // task.ctx.size
    traffic, held, studies = [], [], []
    for variant, reshard, gathers, live in (("resharded", True, 2, 0), ("kept", False, 1, psi)):
        done = study(task, partial(FullySharded, task, mesh, reshard), variant)
        expected = {"reduce_scatter": (layers, psi), "all_gather": (gathers * layers, gathers * psi)}
        traffic += done.trace.traffic.table(expected, variant)
        done.engine.reshard()
        held += holds(done.engine, share, share, share, variant)
        held.append(memory.entry(f"live unsharded ({variant})", done.engine.live_bytes, live))
        studies.append(done)
    pattern = [("reduce_scatter", block)] * layers + [("all_gather", block)] * 2 * layers
    return {**answer(studies, traffic, held), **exchanges.sent(task.ctx, pattern)}


def replicas(ctx: Context) -> tuple[int, int]:
    """Replicas and shards."""
    counts = {ctx.hosts.count(host) for host in ctx.hosts}
    nodes = len(set(ctx.hosts))
    if nodes > 1 and len(counts) == 1 and min(counts) > 1:
        return nodes, ctx.size // nodes
    return (2, ctx.size // 2) if ctx.size >= 4 and ctx.size % 2 == 0 else (1, ctx.size)


def hybrid(task: Task, mesh: DeviceMesh) -> dict[str, Any]:
    """Run fully_shard on a mesh of replicas and shards."""
    psi, layers, shards = ITEM * task.elements, task.layers, mesh.size(1)
    done = study(task, partial(FullySharded, task, mesh, True))
    along = {"reduce_scatter": (layers, psi), "all_gather": (2 * layers, 2 * psi)}
    across = {"all_reduce": (layers, psi // shards)}
    groups = {
        "shard": (mesh.get_group("shard"), along),
        "replicate": (mesh.get_group("replicate"), across),
    }
    traffic = done.trace.traffic.tables(groups)
    done.engine.reshard()
    held = holds(done.engine, psi // shards, psi // shards, psi // shards)
    held.append(memory.entry("live unsharded", done.engine.live_bytes, 0))
    return {**answer([done], traffic, held), **exchanges.sent_on_mesh(task.ctx, mesh, psi)}
