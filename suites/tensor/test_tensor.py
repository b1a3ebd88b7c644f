"""Tensor and sequence parallelism: the unsharded result, the traffic and the memory of Megatron-LM."""

from __future__ import annotations

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import parallel, patterns
from fixtures.check.plan import INSIDE, NETWORK, Case

LAYER = {"batch": 2, "length": 8, "width": 48}
HEADS = {"batch": 2, "length": 8, "channels": 4, "heads": 2}
BLOCK = {**HEADS, "hidden": 12}


def case(step: str, word: str = "", /, **parameters: int | bool) -> Case:
    """Plan a step of this suite; `word` tells its variants apart."""
    words = (step.partition(".")[2], word) if word else (step.partition(".")[2],)
    return Case(step, words, parameters, {"step": step}, weight=4.0, shared=True)


STEPS = [
    case("tensor.column", "gathered", **LAYER, features=96, gather=True),
    case("tensor.column", "split", **LAYER, features=96, gather=False),
    case("tensor.row", "whole", **LAYER, features=96, split=True),
    case("tensor.row", "split", **LAYER, features=96, split=False),
    case("tensor.mlp", **LAYER, hidden=96),
    case("tensor.attention", "split", **HEADS, replicate=False),
    case("tensor.attention", "replicated", **HEADS, replicate=True),
    case("tensor.vocabulary", **LAYER, words=96),
    case("tensor.block", **BLOCK),
    case("tensor.sequence", **BLOCK),
    case("tensor.async_tp", **LAYER, hidden=96),
    case("tensor.dtensor", **BLOCK),
    case("tensor.dtensor_sequence", **BLOCK),
    case("tensor.loss_parallel", **LAYER, words=96),
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


@over(STEPS, INSIDE, NETWORK, ask=requests.step, judges=[patterns.judge])
def test_pattern_holds_its_limit(check: Check) -> None:
    """The step's own collectives are as fast as the hardware file allows collectives to be."""
    check.run()
