"""One sequence over many ranks: attention and its gradients as if it were on one."""

from __future__ import annotations

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import formulas, parallel, patterns
from fixtures.check.plan import INSIDE, NETWORK, Case

# Positions are per rank, so that every world divides them; query heads share key heads (GQA) throughout.
SIZES = {"batch": 2, "tokens": 6, "heads": 4, "kv_heads": 2, "dim": 8}
HEADS = {"batch": 2, "tokens": 6, "heads_per_rank": 2, "dim": 8}


def case(step: str, *words: str, **parameters: int) -> Case:
    """Make one case; its first word is the step's."""
    name = step.partition(".")[2]
    return Case(step, (name, *words), parameters, {"step": step}, shared=True)


CONTEXT = [
    case("context.all_gather_kv", "causal", **SIZES, causal=True),
    case("context.all_gather_kv", "full", **SIZES, causal=False),
    case("context.ring", "causal", **SIZES, causal=True),
    case("context.ring", "full", **SIZES, causal=False),
    case("context.zigzag", "causal", **SIZES),
    case("context.ulysses", "causal", **HEADS, kv_heads=0, causal=True),
    case("context.ulysses", "full", **HEADS, kv_heads=0, causal=False),
    case("context.ulysses", "one_kv_head", **HEADS, kv_heads=1, causal=True),
]
RINGS = [one for one in CONTEXT if one.step in ("context.ring", "context.zigzag")]


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


@over(RINGS, INSIDE, NETWORK, ask=requests.step, judges=[formulas.judge])
def test_time_holds_its_formula(check: Check) -> None:
    """Passing on hides behind computing, and a zig-zag shares the work evenly."""
    check.run()
