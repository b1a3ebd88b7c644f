"""What each step of context parallelism issues: calls and bytes, forward and backward, of its parameters.

The controller computes here what it expects of the ranks, and the ranks what they expect of themselves.
Sources are in `suites.context.steps`. B are the bytes of one rank's K and V; what is summed is wide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines

FORWARD, BACKWARD = "cp forward", "cp backward"
WIDE = 4  # bytes of fp32, in which sums are kept, or more

Both = tuple[Calls, Calls]  # forward and backward


def all_gather_kv(ranks: int, kv: int, wide_kv: int) -> Both:
    """All ranks' K and V, and the gradients of all ranks' K and V, wide."""
    return {"all_gather": (1, ranks * kv)}, {"reduce_scatter": (1, ranks * wide_kv)}


def ring(ranks: int, kv: int, wide_kv: int) -> Both:
    """w-1 rounds of K and V; then w-1 rounds of K and V, and w of their gradients, wide."""
    there = (ranks - 1, (ranks - 1) * kv)
    back = (2 * ranks - 1, there[1] + ranks * wide_kv)
    return {"send": there, "recv": there}, {"send": back, "recv": back}


def ulysses(heads: int, kv_heads: int, head: int) -> Both:
    """Q, K, V and the output, and the gradients of the same four, in heads of so many bytes."""
    four = {"all_to_all": (4, (2 * heads + 2 * kv_heads) * head)}
    return four, four


def repeats(kv_heads: int, ranks: int) -> int:
    """How often key heads are repeated so that every rank has one."""
    return max(ranks // kv_heads, 1)


def _by_rank(form: Callable[[int, int, int], Both]) -> Callable[[int, int, Mapping[str, Any]], Both]:
    def calls(ranks: int, item: int, asked: Mapping[str, Any]) -> Both:
        numbers = 2 * asked["batch"] * asked["kv_heads"] * asked["tokens"] * asked["dim"]
        return form(ranks, numbers * item, numbers * max(item, WIDE))

    return calls


def _by_head(ranks: int, item: int, asked: Mapping[str, Any]) -> Both:
    kv_heads = asked["kv_heads"] or ranks
    head = asked["batch"] * asked["tokens"] * asked["dim"] * item
    return ulysses(asked["heads_per_rank"] * ranks, kv_heads * repeats(kv_heads, ranks), head)


_STEPS: dict[str, Callable[[int, int, Mapping[str, Any]], Both]] = {
    "all_gather_kv": _by_rank(all_gather_kv),
    "ring": _by_rank(ring),
    "zigzag": _by_rank(ring),
    "ulysses": _by_head,
}


def issued(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> Lines:
    """Give what every rank of a planned case issues, of nodes that have so many ranks each."""
    form = _STEPS[step.partition(".")[2]]
    items = {"": TRAINED_BYTES} if asked.get("at_size") else STUDIED_BYTES
    return {
        (phase, dtype): calls
        for dtype, item in items.items()
        for phase, calls in zip((FORWARD, BACKWARD), form(sum(per_node), item, asked), strict=True)
    }
