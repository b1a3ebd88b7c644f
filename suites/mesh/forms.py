"""Closed forms of the dense steps: what a rank holds, and what its axes exchange in one training step.

A block of width d, H query and K key-value heads of c channels and h hidden features has 2 d in its norms
and 2 d H c + 2 d K c + 3 d h in its matrices; embedding and head have V d each, the last norm d. Tensor
parallelism over t leaves a rank all of the norms and 1/t of the rest, fully_shard over s then 1/s.

Payloads are counted as nccl-tests counts them, in numbers of `item` bytes; X is an activation: rows x
positions x d of them.

    fully_shard   per group (a block, or what is around the blocks), if resharded: 2 all-gathers and
                  1 reduce-scatter of its parameters; if not, 1 and 1 (arXiv:2304.11277)
    tensor        per block, forward 2 all-reduces of X; backward 5, one for each of q, k, v, gate and up;
                  embedding: 1 of X forward; head: 1 of X backward, and 1 all-gather of the logits
                  (Shoeybi et al., "Megatron-LM", 2019, section 3, as torch's parallelize_module does it)
    ring          per block 2w - 2 sends of K and V, 1/t of them, and w of their gradients, which are summed
                  in fp32 where the rest is bf16 (Liu et al., arXiv:2310.01889)
    norm          clipping: 1 all-reduce of one number among all ranks (`suites.zero.clipping`)
    pipeline      per edge m activations one way and m gradients the other, X / m each (arXiv:1811.06965)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks.study import memory
from fixtures.ranks.study.driver import Entries, Named, Run
from fixtures.ranks.study.traffic import Expected
from suites.context.ring_attention import wide
from suites.mesh.axes import Mesh
from suites.mesh.dense import Divided
from suites.mesh.staged import Staged
from suites.mesh.task import GROUPED, Task, unsharded
from suites.mesh.technique import Combined, Issued
from suites.zero import clipping


class Dense(Combined[Divided]):
    """A small Llama on all axes of a mesh; a stage's parameters stay gathered between its micro-batches."""

    def __init__(self, task: Task, mesh: Mesh, dtypes: Sequence[torch.dtype]) -> None:
        self.task, self.mesh, self.dtypes = task, mesh, dtypes
        self.ctx, self.steps, self.adding = task.ctx, task.steps, task.ctx.size // task.stages
        self.staged = "pp" in task.layout.names

    def make(self, dtype: torch.dtype) -> Divided:
        """Divide a stage of it, or all of it."""
        return (Staged if self.staged else Divided)(self.task, self.mesh, dtype)

    def reference(self, dtype: torch.dtype) -> Named:
        """Train it alone."""
        return unsharded(self.task, dtype)

    def issued(self, dtype: torch.dtype) -> Issued:
        """What each technique exchanges along its axis."""
        task, item, gathers = self.task, dtype.itemsize, 1 if self.staged else 2
        of_axis = {
            "pp": edges(task, item),
            "dp": sharding(task, item, gathers),
            "tp": tensor(task, item),
            "cp": ring(task, item, wide(dtype).itemsize),
        }
        found: dict[str, tuple[Any, Expected]] = {
            name: (self.mesh.group(name), of_axis[name]) for name in task.layout.names
        }
        if "cp" in found:
            found["dp x cp"] = self.mesh.shards.get_group(), found.pop("dp")[1]
        if task.clip:
            found["norm"] = dist.group.WORLD, clipping.issued(task.clip, dtype)
        return found

    def share(self, dtype: torch.dtype) -> int:
        """A rank's part of the parameters."""
        return sum(groups(self.task)) // self.task.shards * dtype.itemsize

    def memory(self, dtype: torch.dtype, run: Run[Divided]) -> Entries:
        """As well the parameters that stand there between forward and backward."""
        waiting = self.share(dtype) * (self.task.shards if self.staged else 1)
        between = memory.entry("params between forward and backward", run.kept.waiting_bytes, waiting)
        return [*super().memory(dtype, run), between]


def groups(task: Task) -> list[int]:
    """Elements of every group that fully_shard gathers at once, after tensor parallelism."""
    d, h = task.width, task.hidden
    heads = GROUPED * task.kv_heads + task.kv_heads
    block = 2 * d + (2 * d * heads * task.channels + 3 * d * h) // task.tp
    words = d * h // task.tp
    around = task.first * words + task.last * (words + d)
    return [block] * task.blocks + [around] * (task.first or task.last)


def sharding(task: Task, item: int, gathers: int) -> Expected:
    """Of fully_shard."""
    if task.shards == 1:
        return {}
    sizes = groups(task)
    count, size = len(sizes), sum(sizes) * item
    return {"all_gather": (gathers * count, gathers * size), "reduce_scatter": (count, size)}


def tensor(task: Task, item: int) -> Expected:
    """Of tensor parallelism."""
    if task.tp == 1:
        return {}
    x = activation_bytes(task, item)
    number = 7 * task.blocks + task.first + task.last
    found = {"all_reduce": (number * task.micro_batches, number * x)}
    if task.last:
        found["all_gather"] = (task.micro_batches, x // task.width * task.hidden)
    return found


def ring(task: Task, item: int, summed: int) -> Expected:
    """Of ring attention, whose gradients are in items of `summed` bytes."""
    ranks = task.layout.size("cp")
    keys, gradients = task.layers * 2 * (ranks - 1), task.layers * ranks
    # K and V have H / K times fewer channels than X, and a rank those of its heads.
    size = 2 * (activation_bytes(task, keys * item) + activation_bytes(task, gradients * summed))
    size //= GROUPED * task.tp
    return dict.fromkeys(("send", "recv"), (keys + gradients, size))


def edges(task: Task, item: int) -> Expected:
    """Of a pipeline's rank, to each of its neighbours and back."""
    neighbours = (not task.first) + (not task.last)
    both = (neighbours * task.micro_batches, neighbours * activation_bytes(task, item))
    return dict.fromkeys(("send", "recv"), both) if neighbours else {}


def activation_bytes(task: Task, item: int) -> int:
    """X of one rank and step."""
    return task.rows * task.tokens * task.width * item
