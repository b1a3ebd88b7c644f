"""One sequence over many ranks: attention and its gradients as if it were on one."""

from __future__ import annotations

from functools import partial

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import formulas, parallel, patterns
from fixtures.check.plan import INSIDE, NETWORK, Entries, at_size, case_of
from suites.context.issued import bytes_held, issued
from thresholds.hardware import Model

# Positions are per rank, so that every world divides them; query heads share key heads (GQA) throughout.
SIZES = {"batch": 2, "tokens": 6, "heads": 4, "kv_heads": 2, "dim": 8}
HEADS = {"batch": 2, "tokens": 6, "heads_per_rank": 2, "dim": 8}
EACH = {**SIZES, "kv_heads": 4}  # torch's own needs as many key heads as query heads
ODD = {"batch": 1, "tokens": 7, "kv_heads": 1, "dim": 7}  # rows are no multiple of 16 bytes
quick = partial(case_of, weight=1.0)
held = partial(Entries, issued=issued, held=bytes_held)  # and the closed forms
RING, GATHER, HEAD, TORCH_GATHER, TORCH_RING = (
    held(parity=12, repeat=10, traffic=8, memory=4, peaks=2, left=2, delivered=4),
    held(parity=12, repeat=10, traffic=4, memory=2, peaks=2, left=2, delivered=4),
    held(parity=12, repeat=10, traffic=4, memory=2, peaks=2, left=2, delivered=2),
    held(parity=6, repeat=5, traffic=3, memory=0, peaks=2, left=1, delivered=2),
    held(parity=6, repeat=5, traffic=2, memory=0, peaks=2, left=1, delivered=1),
)
CONTEXT = [
    quick("context.ring", "odd", **ODD, heads=1, causal=True, holds=RING),
    quick("context.ulysses", "odd", **{**ODD, "kv_heads": 0}, heads_per_rank=1, causal=True, holds=HEAD),
    quick("context.all_gather_kv", "causal", **SIZES, causal=True, holds=GATHER),
    quick("context.all_gather_kv", "full", **SIZES, causal=False, holds=GATHER),
    quick("context.ring", "causal", **SIZES, causal=True, holds=RING),
    quick("context.ring", "full", **SIZES, causal=False, holds=RING),
    quick("context.zigzag", "causal", **SIZES, holds=RING),
    quick("context.ulysses", "causal", **HEADS, kv_heads=0, causal=True, holds=HEAD),
    quick("context.ulysses", "full", **HEADS, kv_heads=0, causal=False, holds=HEAD),
    quick("context.ulysses", "one_kv_head", **HEADS, kv_heads=1, causal=True, holds=HEAD),
    quick("context.torch_ring", "allgather", **EACH, rotation="allgather", holds=TORCH_GATHER),
    quick("context.torch_ring", "alltoall", **EACH, rotation="alltoall", holds=TORCH_RING),
]
RINGS = [one for one in CONTEXT if one.step in ("context.ring", "context.zigzag")]


def of_ring(model: Model, ranks: int) -> dict[str, int]:
    """Give the sizes of attention; in a large world the sequence does not grow with the ranks."""
    kv_heads, dim = max(model.heads // 4, 1), model.hidden // model.heads
    return {
        "batch": 1,
        "tokens": _tokens(model, ranks),
        "heads": model.heads,
        "kv_heads": kv_heads,
        "dim": dim,
    }


def of_each(model: Model, ranks: int) -> dict[str, int]:
    """Give the same with as many key heads as query heads."""
    return {**of_ring(model, ranks), "kv_heads": model.heads}


def of_heads(model: Model, ranks: int) -> dict[str, int]:
    """Give the same for distributed heads; with more ranks than heads, heads have fewer channels."""
    heads = max(model.heads // ranks, 1)
    dim = max(model.hidden // (ranks * heads) // 8, 1) * 8
    return {"batch": 1, "tokens": _tokens(model, ranks), "heads_per_rank": heads, "kv_heads": 0, "dim": dim}


def _tokens(model: Model, ranks: int) -> int:
    """Tokens of each rank: an even number, which a zig-zag cuts into two chunks."""
    return max(model.tokens(ranks) // 2, 1) * 2


AT_SIZE = [  # with fused attention
    at_size(
        "context.all_gather_kv", of_ring, causal=True, holds=held(parity=6, repeat=5, traffic=2, memory=1)
    ),
    at_size("context.ring", of_ring, causal=True, holds=held(parity=6, repeat=5, traffic=4, memory=2)),
    at_size("context.zigzag", of_ring, holds=held(parity=6, repeat=5, traffic=4, memory=2)),
    at_size("context.ulysses", of_heads, causal=True, holds=held(parity=6, repeat=5, traffic=2, memory=1)),
    at_size(
        "context.torch_ring",
        of_each,
        rotation="allgather",
        holds=held(parity=6, repeat=5, traffic=3, memory=0, peaks=1),
    ),
]


@over(CONTEXT, INSIDE, NETWORK, ask=requests.step, judges=parallel.PARITY)
def test_parity_with_attention_on_one_rank(check: Check) -> None:
    """Output and dQ, dK, dV are those of the whole sequence on one rank, again and again; all bits arrive."""
    check.run()


@over(CONTEXT, INSIDE, NETWORK, ask=requests.step, judges=[parallel.traffic])
def test_traffic_is_the_closed_form(check: Check) -> None:
    """A ring sends each block once per round, and no technique sends what it need not."""
    check.run()


@over(CONTEXT, INSIDE, NETWORK, ask=requests.step, judges=[parallel.memory])
def test_memory_is_the_closed_form(check: Check) -> None:
    """Backward keeps a rank's own part of the sequence, and a ring has two blocks of others at a time."""
    check.run()


@over(CONTEXT, INSIDE, NETWORK, ask=requests.step, judges=[parallel.time])
def test_time_is_recorded(check: Check) -> None:
    """How fast the pattern is, what of it is hidden, and how evenly the work is shared."""
    check.run()


@over(CONTEXT, INSIDE, NETWORK, ask=requests.step, judges=[patterns.judge])
def test_pattern_holds_its_limit(check: Check) -> None:
    """The step's own collectives are as fast as the hardware file allows collectives to be."""
    check.run()


@over(AT_SIZE, INSIDE, NETWORK, ask=requests.step, judges=parallel.AT_SIZE)
def test_at_the_size_of_training(check: Check) -> None:
    """What is timed is right: results, traffic and memory of fused attention, and how long a step takes."""
    check.run()


@over(RINGS, INSIDE, NETWORK, ask=requests.step, judges=[formulas.judge])
def test_time_holds_its_formula(check: Check) -> None:
    """Passing on hides behind computing, and a zig-zag shares the work evenly."""
    check.run()
