"""What data parallelism and ZeRO issue: calls and bytes, from parameters and world alone.

Both the controller and the ranks compute here what they expect. Psi is the bytes of all parameters, L the
number of blocks; sources are in `suites.zero.steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines

WIDE = 4  # bytes of fp32
_ALIGNED = 8  # elements of bf16 in 16 bytes
_REAL = "accumulated, clipped"


def columns(width: int, ranks: int, on_gpu: bool) -> int:
    """Round features up so that a shard of a matrix is a whole number of its rows."""
    multiple = math.lcm(ranks, _ALIGNED if on_gpu else 1)
    return -(-width // multiple) * multiple


def block_elements(width: int) -> int:
    """Count the weights of a block: gate and up of d x 2 d, down of 2 d x d."""
    return 6 * width * width


def gathered_and_reduced(psi: int, layers: int, gathers: int, reductions: int = 1) -> Calls:
    """Every block gathered and reduced so often."""
    return {
        "reduce_scatter": (reductions * layers, reductions * psi),
        "all_gather": (gathers * layers, gathers * psi),
    }


def of_stage(number: int, micro_batches: int) -> tuple[int, int]:
    """Count a block's all-gathers and reduce-scatters."""
    return (1, 1, 2 * micro_batches)[number - 1], 1 if number == 1 else micro_batches


def replicas(per_node: Sequence[int]) -> tuple[int, int]:
    """Replicas and shards, from the ranks per node."""
    size, nodes = sum(per_node), len(per_node)
    if nodes > 1 and len(set(per_node)) == 1 and per_node[0] > 1:
        return nodes, size // nodes
    return (2, size // 2) if size >= 4 and size % 2 == 0 else (1, size)


def clipped(item: int) -> Calls:
    """One number among all ranks, in fp32 at least."""
    return {"all_reduce": (1, max(item, WIDE))}


def dealt(elements: int, layers: int, ranks: int) -> list[int]:
    """Each rank's elements if whole weights, three per block, are assigned in turn."""
    weights = [elements // (3 * layers)] * 3 * layers
    return [sum(weights[rank::ranks]) for rank in range(ranks)]


def owned(shares: Sequence[int], layers: int, item: int) -> Calls:
    """All gradients are reduced, and each rank broadcasts what it updated: one fp32 number if nothing."""
    broadcast = sum(item * share or WIDE for share in shares)
    return {"all_reduce": (layers, item * sum(shares)), "broadcast": (len(shares), broadcast)}


@dataclass(frozen=True)
class _Run:
    """A requested step, with items of `item` bytes."""

    asked: Mapping[str, Any]
    per_node: Sequence[int]
    block: int  # elements
    item: int

    @property
    def layers(self) -> int:
        return int(self.asked["layers"])

    @property
    def psi(self) -> int:
        return self.item * self.layers * self.block

    def tasks(self) -> Iterator[tuple[str, int, int, Calls]]:
        """The tasks, each with what clipping issues."""
        for name, layers, micro_batches in tasks(self.asked):
            yield name, layers, micro_batches, clipped(self.item) if name and self.asked.get("clip") else {}


def tasks(asked: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Name, blocks, micro-batches: the plain task, and the one like a real run."""
    layers, micro_batches = int(asked["layers"]), int(asked.get("micro_batches", 1))
    yield "", layers, 1
    if micro_batches > 1 or asked.get("clip"):
        yield _REAL, min(layers, 2), micro_batches


def _ddp(run: _Run) -> dict[str, Calls]:
    many = {"all_reduce": (run.layers, run.psi)}
    return {"bucket per block": many, "one bucket": {"all_reduce": (1, run.psi)}, "accumulated": many}


def _stage(number: int, run: _Run) -> dict[str, Calls]:
    return {
        name: {
            **gathered_and_reduced(run.item * layers * run.block, layers, *of_stage(number, micro)),
            **more,
        }
        for name, layers, micro, more in run.tasks()
    }


def _fsdp(run: _Run) -> dict[str, Calls]:
    return {
        f"{variant}, {name}".removesuffix(", "): {
            **gathered_and_reduced(run.item * layers * run.block, layers, gathers * micro, micro),
            **more,
        }
        for name, layers, micro, more in run.tasks()
        for variant, gathers in (("resharded", 2), ("kept", 1))
    }


def _hsdp(run: _Run) -> dict[str, Calls]:
    across = {"all_reduce": (run.layers, run.psi // replicas(run.per_node)[1])}
    return {"shard": gathered_and_reduced(run.psi, run.layers, 2), "replicate": across}


def _owned(run: _Run) -> dict[str, Calls]:
    shares = dealt(run.layers * run.block, run.layers, sum(run.per_node))
    return {"": owned(shares, run.layers, run.item)}


def _mixed(gathers: int, *names: str) -> Callable[[_Run], dict[str, Calls]]:
    """Reduced in fp32, and gathered in the dtype of the run."""

    def issues(run: _Run) -> dict[str, Calls]:
        reduced = {"reduce_scatter": (run.layers, WIDE * run.layers * run.block)}
        return {key: {**gathered_and_reduced(run.psi, run.layers, gathers), **reduced} for key in names}

    return issues


_STEPS: dict[str, Callable[[_Run], dict[str, Calls]]] = {
    "ddp": _ddp,
    "zero1": partial(_stage, 1),
    "zero2": partial(_stage, 2),
    "zero3": partial(_stage, 3),
    "fsdp": _fsdp,
    "fsdp_prefetch": lambda run: {"": gathered_and_reduced(run.psi, run.layers, 2)},
    "fsdp_mixed": _mixed(2, ""),
    "hsdp": _hsdp,
    "zero_redundancy": _owned,
    "mixed_precision": _mixed(1, "", "accumulated"),
    "recompute": lambda run: {key: {"all_reduce": (run.layers, run.psi)} for key in ("recomputed", "kept")},
}
CAST = ("fsdp_mixed", "mixed_precision")  # these run in bf16 alone
_LARGE = {"ddp": {"bucket per block": ""}, "fsdp": {"resharded": "resharded"}}  # the others have one variant


def issued(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> Lines:
    """Give what every rank of a planned case issues, from the ranks per node."""
    name = step.partition(".")[2]
    if name == "overlap":
        layers = int(asked["layers"])
        psi = layers * int(asked["bucket_bytes"]["cuda" if on_gpu else "cpu"])
        many, one = {"all_reduce": (layers, psi)}, {"all_reduce": (1, psi)}
        return {("bucket per stage", ""): many, ("one bucket", ""): one}
    block = block_elements(columns(int(asked["width"]), sum(per_node), on_gpu))
    if asked.get("at_size"):
        found = _STEPS[name](_Run({**asked, "micro_batches": 1}, per_node, block, TRAINED_BYTES))
        labels = _LARGE.get(name) or dict(zip(found, found, strict=True))
        return {(label, ""): found[variant] for variant, label in labels.items()}
    items = {"bf16": TRAINED_BYTES} if name in CAST else STUDIED_BYTES
    return {
        (label, dtype): calls
        for dtype, item in items.items()
        for label, calls in _STEPS[name](_Run(asked, per_node, block, item)).items()
    }
