"""Closed forms of the dense steps: what a rank holds, and what its axes exchange in one training step.

A block of width d, H query and K key-value heads of c channels and h hidden features has 2 d in its norms
and 2 d H c + 2 d K c + 3 d h in its matrices; embedding and head have V d each, the last norm d. Tensor
parallelism over t leaves a rank all of the norms and 1/t of the rest, fully_shard over s then 1/s.

Payloads are counted as nccl-tests counts them; X is an activation: rows x positions x d elements.

    fully_shard   per group (a block, or what is around the blocks), if resharded: 2 all-gathers and
                  1 reduce-scatter of its parameters; if not, 1 and 1 (arXiv:2304.11277)
    tensor        per block, forward 2 all-reduces of X; backward 5, one for each of q, k, v, gate and up;
                  embedding: 1 of X forward; head: 1 of X backward, and 1 all-gather of the logits
                  (Shoeybi et al., "Megatron-LM", 2019, section 3, as torch's parallelize_module does it)
    ring          per block 3w - 2 sends of K and V, or of their gradients (Liu et al., arXiv:2310.01889)
    pipeline      per edge m activations one way and m gradients the other, X / m each (arXiv:1811.06965)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fixtures.ranks.study.traffic import Expected
from suites.mesh.task import CHANNELS, EXACT, GROUPED, Task

_ITEM = EXACT.itemsize


@dataclass(frozen=True)
class Stage:
    """Which part of the model: so many blocks, with the embedding before or the head behind them."""

    blocks: int
    first: bool = True
    last: bool = True

    @property
    def around(self) -> bool:
        """Whether it has parameters outside of blocks."""
        return self.first or self.last


def groups(task: Task, stage: Stage) -> list[int]:
    """Elements of every group that fully_shard gathers at once, after tensor parallelism."""
    d, h = task.width, task.hidden
    heads = GROUPED * task.kv_heads + task.kv_heads
    block = 2 * d + (2 * d * heads * CHANNELS + 3 * d * h) // task.tp
    words = d * h // task.tp
    around = stage.first * words + stage.last * (words + d)
    return [block] * stage.blocks + [around] * stage.around


def elements(task: Task, stage: Stage) -> int:
    """Elements of a rank's part of the parameters."""
    return sum(groups(task, stage)) // task.shards


def sharding(task: Task, stage: Stage, gathers: int) -> Expected:
    """Of fully_shard."""
    if task.shards == 1:
        return {}
    sizes = groups(task, stage)
    count, size = len(sizes), sum(sizes) * _ITEM
    return {"all_gather": (gathers * count, gathers * size), "reduce_scatter": (count, size)}


def tensor(task: Task, stage: Stage, micro_batches: int = 1) -> Expected:
    """Of tensor parallelism."""
    if task.tp == 1:
        return {}
    x = activation_bytes(task)
    number = 7 * stage.blocks + stage.first + stage.last
    found = {"all_reduce": (number * micro_batches, number * x)}
    if stage.last:
        found["all_gather"] = (micro_batches, x // task.width * task.hidden)
    return found


def ring(task: Task) -> Expected:
    """Of ring attention."""
    ranks = task.layout.size("cp")
    block = 2 * activation_bytes(task) // GROUPED  # K and V have H / K times fewer channels than X
    rounds = task.layers * (3 * ranks - 2)
    return {"send": (rounds, rounds * block), "recv": (rounds, rounds * block)}


def edges(task: Task, neighbours: int, micro_batches: int) -> Expected:
    """Of a pipeline's rank with so many neighbours."""
    both = (neighbours * micro_batches, neighbours * activation_bytes(task))
    return {"send": both, "recv": both} if neighbours else {}


def activation_bytes(task: Task) -> int:
    """X of one rank and step."""
    return task.rows * task.tokens * task.width * _ITEM


def stage_of(layers: Sequence[int], index: int) -> Stage:
    """The part of the model that a pipeline's rank has."""
    return Stage(layers[index], index == 0, index == len(layers) - 1)
