"""Tensor and sequence parallelism: the unsharded result, the traffic and the memory of Megatron-LM."""

from __future__ import annotations

from functools import partial

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import parallel, patterns
from fixtures.check.plan import INSIDE, NETWORK, Entries, at_size, case_of
from suites.tensor.issued import bytes_held, issued, multiple
from thresholds.hardware import Model

MOST_SCORES = 1 << 28  # of attention in all heads: backward has five of them in fp32
HALF = 0.5  # what is not dropped is doubled, which rounds nothing in bf16
LAYER = {"batch": 2, "length": 8, "width": 48}
HEADS = {"batch": 2, "length": 8, "channels": 4, "heads": 2}
BLOCK = {**HEADS, "hidden": 12}
held = partial(Entries, issued=issued, held=bytes_held)  # and the closed forms
# In both dtypes, with one kind of collective, and with two.
ONE_KIND = held(parity=10, repeat=15, traffic=2, memory=4, left=2, delivered=2)
TWO_KINDS = held(parity=10, repeat=15, traffic=4, memory=4, left=2, delivered=4)
MLP = held(parity=12, repeat=18, traffic=2, memory=6, peaks=2, left=2, delivered=2)
ATTENTION = held(parity=14, repeat=21, traffic=2, memory=4, left=2, delivered=2)

STEPS = [
    case_of("tensor.column", "gathered", **LAYER, features=96, gather=True, holds=TWO_KINDS),
    case_of("tensor.column", "split", **LAYER, features=96, gather=False, holds=ONE_KIND),
    case_of("tensor.row", "whole", **LAYER, features=96, split=True, holds=TWO_KINDS),
    case_of("tensor.row", "split", **LAYER, features=96, split=False, holds=ONE_KIND),
    # Rows are no multiple of 16 bytes.
    case_of("tensor.mlp", "odd", batch=1, length=7, width=47, hidden=96, holds=MLP),
    case_of("tensor.mlp", **LAYER, hidden=96, holds=MLP),
    case_of(
        "tensor.mlp_dropout",
        **LAYER,
        hidden=96,
        dropout=HALF,
        holds=held(parity=12, repeat=18, traffic=2, memory=6, left=2, delivered=2),
    ),
    case_of("tensor.attention", "split", **HEADS, replicate=False, holds=ATTENTION),
    case_of("tensor.attention", "replicated", **HEADS, replicate=True, holds=ATTENTION),
    case_of(
        "tensor.vocabulary",
        **LAYER,
        words=96,
        holds=held(parity=8, repeat=12, traffic=2, memory=4, left=2, delivered=2),
    ),
    case_of(
        "tensor.block", **BLOCK, holds=held(parity=24, repeat=36, traffic=2, memory=4, left=2, delivered=2)
    ),
    case_of(
        "tensor.sequence",
        **BLOCK,
        holds=held(parity=24, repeat=36, traffic=6, memory=6, peaks=2, left=2, delivered=6),
    ),
    case_of(
        "tensor.async_tp",
        **LAYER,
        hidden=96,
        holds=held(parity=18, repeat=18, traffic=4, memory=6, left=2, delivered=6),
    ),
    case_of(
        "tensor.dtensor", **BLOCK, holds=held(parity=24, repeat=36, traffic=2, memory=4, left=2, delivered=6)
    ),
    case_of(
        "tensor.dtensor_sequence",
        **BLOCK,
        holds=held(parity=24, repeat=36, traffic=4, memory=4, left=2, delivered=8),
    ),
    case_of(
        "tensor.loss_parallel",
        **LAYER,
        words=96,
        holds=held(parity=8, repeat=12, traffic=2, memory=4, left=2, delivered=6),
    ),
]


def of_mlp(model: Model, ranks: int) -> dict[str, int]:
    """Give the sizes of an MLP: the tokens of a rank in short sequences, whose scores are small."""
    return {**_tokens(model), "width": model.hidden, "hidden": 2 * model.hidden}


def of_block(model: Model, ranks: int) -> dict[str, int]:
    """Give the sizes of a block, per rank; with more ranks than heads, heads have fewer channels.

    Every rank has a part of each sequence, so sequences get longer in large worlds, and there are fewer.
    """
    heads = max(model.heads // ranks, 1)
    channels = max(model.hidden // (ranks * heads) // 8, 1) * 8
    tokens = _tokens(model)
    scores = ranks * heads * multiple(tokens["length"], ranks) ** 2
    return {
        "batch": min(tokens["batch"], max(MOST_SCORES // scores, 1)),
        "length": tokens["length"],
        "channels": channels,
        "heads": heads,
        "hidden": max(2 * model.hidden // ranks, 8),
    }


def _tokens(model: Model) -> dict[str, int]:
    return {"batch": 8, "length": max(model.sequence // 8, 1)}


AT_SIZE = [
    at_size("tensor.mlp", of_mlp, holds=held(parity=6, repeat=6, traffic=1, memory=3)),
    at_size("tensor.async_tp", of_mlp, holds=held(parity=6, repeat=6, traffic=2, memory=3)),
    at_size("tensor.block", of_block, holds=held(parity=12, repeat=12, traffic=1, memory=2)),
    at_size("tensor.sequence", of_block, holds=held(parity=12, repeat=12, traffic=3, memory=3)),
    at_size("tensor.dtensor", of_block, holds=held(parity=12, repeat=12, traffic=1, memory=2)),
    at_size("tensor.dtensor_sequence", of_block, holds=held(parity=12, repeat=12, traffic=2, memory=2)),
]


@over(STEPS, INSIDE, NETWORK, ask=requests.step, judges=parallel.PARITY)
def test_parity_with_the_unsharded_model(check: Check) -> None:
    """Output, loss and every gradient are those of the unsharded layer, and the same when run again."""
    check.run()


@over(STEPS, INSIDE, NETWORK, ask=requests.step, judges=[parallel.traffic])
def test_traffic_is_the_closed_form(check: Check) -> None:
    """Forward and backward exchange what the step says, no more and no less."""
    check.run()


@over(STEPS, INSIDE, NETWORK, ask=requests.step, judges=[parallel.memory])
def test_memory_is_the_closed_form(check: Check) -> None:
    """A rank holds its share of weights and gradients, and of the activations where they are split."""
    check.run()


@over(STEPS, INSIDE, NETWORK, ask=requests.step, judges=[parallel.time])
def test_time_is_recorded(check: Check) -> None:
    """How long the step takes, and the bus bandwidth of the collectives that it consists of."""
    check.run()


# Limits come from what the backend's collectives do, and torch's fused operations are none of them.
@over(
    [case for case in STEPS if case.step != "tensor.async_tp"],
    INSIDE,
    NETWORK,
    ask=requests.step,
    judges=[patterns.judge],
)
def test_pattern_holds_its_limit(check: Check) -> None:
    """The step's own collectives are as fast as the hardware file allows collectives to be."""
    check.run()


@over(AT_SIZE, INSIDE, NETWORK, ask=requests.step, judges=parallel.AT_SIZE)
def test_at_the_size_of_training(check: Check) -> None:
    """What is timed is right: results, traffic and memory of a large layer, and how long its step takes."""
    check.run()
