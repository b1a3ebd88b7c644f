"""What a rank of the mixture of experts issues in a training step, and what it holds, in closed form.

Per block and micro-batch of B sequences, with L positions, d channels, E experts, k of them for a token, G
key-value heads of h channels, all in numbers of `item` bytes; a rank has t = L / (C T) positions between the
attentions, B t k rows to dispatch, and R rows come to its experts:

    tp      all_gather       3 B t T d   the sequence for q, k, v, again for their weights' gradients, and the
                                         gradient of o (Korthikanti et al., arXiv:2205.05198, section 4.2.2)
            reduce_scatter   2 B t T d   of o's summands, and of the gradients of q, k, v
    cp      all_gather       2 B G/T L h keys and values
            reduce_scatter   2 B G/T L h their gradients
    ep      all_to_all       8 E bytes of counts; rows there, back, and their gradients: 2 d (B t k + R)

and once in a step, where gradients of bf16 are added up in fp32,

    pp      send, recv       m B t d to each neighbour and from it
    tp      all_reduce       what is whole on all ranks of the line: norms, router, embedding, head
    dp_cp   all_reduce       all dense weights
    edp     all_reduce       all experts of the rank
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fixtures.ranks.study.traffic import Expected
from suites.context.ring_attention import wide
from suites.mesh.moe.grid import Grid
from suites.mesh.moe.task import VOCABULARY, Task

_COUNT_BYTES = 8


def issued(task: Task, grid: Grid, dtype: torch.dtype) -> dict[str, Expected]:
    """What is issued along every line."""
    item, summed = dtype.itemsize, wide(dtype).itemsize
    shared, split, experts = elements(task, grid.place[0])
    times = task.dims.micro_batches * task.blocks
    activation = task.dims.rows * task.tokens * task.dims.width * item
    whole = times * activation * task.axes.tensor
    kept = times * _kept_elements(task) * item
    sends = _edges(task, grid) * task.dims.micro_batches
    return {
        "pp": dict.fromkeys(("send", "recv"), (sends, sends * activation)),
        "tp": {
            "all_gather": (3 * times, 3 * whole),
            "reduce_scatter": (2 * times, 2 * whole),
            "all_reduce": (1, shared * summed),
        },
        "cp": {"all_gather": (times, kept), "reduce_scatter": (times, kept)},
        "ep": {"all_to_all": (5 * times, _dispatched_bytes(task, grid, item))},
        "dp_cp": {"all_reduce": (1, (shared + split) * summed)},
        "edp": {"all_reduce": (1, experts * summed)},
    }


def _edges(task: Task, grid: Grid) -> int:
    """Neighbours of a stage."""
    stage = grid.place[0]
    return (stage > 0) + (stage < task.axes.stages - 1)


def _kept_elements(task: Task) -> int:
    """Keys and values of whole sequences, for this rank's heads."""
    dims = task.dims
    channels = dims.width // dims.heads
    return 2 * dims.rows * dims.kv_heads // task.axes.tensor * dims.length * channels


def _dispatched_bytes(task: Task, grid: Grid, item: int) -> int:
    """Counts and rows of all blocks and micro-batches."""
    moved, own = 0, grid.group("ep").rank
    for sent in routed(task, grid):
        rows = sum(sent[own]) + sum(row[own] for row in sent)
        moved += _COUNT_BYTES * task.experts + 2 * task.dims.width * item * rows
    return moved


def routed(task: Task, grid: Grid) -> Iterator[list[list[int]]]:
    """Rows from every rank of this rank's set of experts to every one of them: micro-batch, then block."""
    members = grid.lines["ep"].ranks
    for i in range(task.dims.micro_batches):
        for number in task.blocks_of(grid.place[0]):
            counts = (task.rows_sent(rank, number, i) for rank in members)
            yield [one.view(len(members), -1).sum(1).tolist() for one in counts]


def elements(task: Task, stage: int) -> tuple[int, int, int]:
    """Weights of a rank: whole on all ranks of its tp line, split along it, and of its experts."""
    dims, axes = task.dims, task.axes
    kept = dims.kv_heads * (dims.width // dims.heads)
    shared = task.blocks * 2 * dims.width + router_elements(task)
    shared += VOCABULARY * dims.width * (stage == 0)
    shared += (dims.width + VOCABULARY * dims.width) * (stage == axes.stages - 1)
    split = task.blocks * 2 * dims.width * (dims.width + kept) // axes.tensor
    return shared, split, task.blocks * dims.experts_per_rank * 3 * dims.width * dims.inner


def router_elements(task: Task) -> int:
    """Of those that are whole, the routers': fp32 where the others are bf16."""
    return task.blocks * task.dims.width * task.experts


def held_bytes(task: Task, stage: int, dtype: torch.dtype) -> int:
    """Bytes of a rank's parameters."""
    widened = router_elements(task) * (wide(dtype).itemsize - dtype.itemsize)
    return sum(elements(task, stage)) * dtype.itemsize + widened
