"""Data parallelism and every stage of ZeRO: the unsharded result, the papers' traffic and memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import formulas, parallel, patterns, placement
from fixtures.check.plan import INSIDE, NETWORK, Case, Entries, at_size, case_of
from suites.zero.issued import issued
from thresholds.hardware import Model

# For a GPU: 3 x 2 x 2048^2 parameters per block, and so many rows that it computes longer than it exchanges.
FAST = {"width": 2048, "layers": 6, "rows": 4096, "repeats": 5}
# Blocks enough that all of them at once are more than the few that a rank may have.
DEEP = {"layers": 4}
DEEPER = {"layers": 6}
SMALL = {"width": 24, "layers": 2, "rows": 4, "steps": 3}
held = partial(Entries, issued=issued)  # and of traffic the closed form
REAL = {"micro_batches": 2, "clip": 1.0}  # the norm of two blocks' gradients is 5 to 100


def small(step: str, *words: str, **more: Any) -> Case:  # noqa: ANN401 - whatever JSON can carry
    """Plan a step of this suite, with these parameters beside the small ones."""
    return case_of(step, *words, **{**SMALL, **more})


OF_DEEPSPEED = Entries(8, 28, 6, 8)


def of_deepspeed(stage: int) -> Case:
    """Plan a stage of DeepSpeed's, which is judged when it is asked for."""
    planned = small(
        "zero.deepspeed", f"stage{stage}", weight=16.0, stage=stage, module="deepspeed", holds=OF_DEEPSPEED
    )
    return replace(planned, engine="deepspeed")


HYBRID = small("zero.hsdp", holds=held(30, 28, 6, 8, 2, 6))
STEPS = [
    small("zero.ddp", micro_batches=4, holds=held(104, 84, 6, 18, 6, 18)),
    small("zero.zero1", **REAL, holds=held(30, 26, 10, 24, 4, 10)),
    small("zero.zero2", **DEEP, **REAL, holds=held(38, 34, 10, 24, 4, 10)),
    small("zero.zero3", **DEEP, **REAL, holds=held(38, 34, 10, 24, 4, 10)),
    small("zero.fsdp", **DEEPER, **REAL, holds=held(220, 212, 20, 32, 8, 20)),
    small("zero.fsdp_prefetch", **DEEPER, speed=FAST, holds=held(159, 76, 4, 8, 2, 4)),
    small("zero.fsdp_mixed", holds=held(22, 14, 2, 4, 1, 2)),
    HYBRID,
    small("zero.zero_redundancy", holds=held(30, 28, 4, 6, 2, 6)),
    small("zero.mixed_precision", micro_batches=2, holds=held(20, 12, 4, 10, 2, 4)),
    small("zero.recompute", dropout=0.5, holds=held(94, 56, 4, 4, 4, 12)),
]

PREFETCH = [one for one in STEPS if one.step == "zero.fsdp_prefetch"]
DEEPSPEED = [of_deepspeed(stage) for stage in (1, 2, 3)]
TRAINED = [*STEPS, *DEEPSPEED]


def scaled(model: Model, ranks: int) -> dict[str, int]:
    """Give the sizes of a model; the unsharded batch does not grow with the world."""
    rows = max(model.tokens(ranks), 4)
    return {"width": model.hidden, "layers": model.layers, "rows": rows}


LARGE = {
    "zero1": held(4, 2, 2, 6, per=("layers", Entries(1, 2))),
    "zero2": held(4, 2, 2, 6, per=("layers", Entries(1, 2))),
    "zero3": held(4, 2, 2, 6, per=("layers", Entries(1, 2))),
    "fsdp": held(4, 2, 2, 4, per=("layers", Entries(3, 6))),
    "hsdp": held(4, 2, 3, 4, per=("layers", Entries(3, 6))),
}
BUCKETS = held(4, 2, 1, 3, per=("layers", Entries(3, 6)))
AT_SIZE = [
    # DDP lays its buckets out anew in the second step.
    at_size("zero.ddp", scaled, steps=3, micro_batches=2, holds=BUCKETS),
    *(at_size(f"zero.{name}", scaled, steps=2, holds=holds) for name, holds in LARGE.items()),
]

# What is exchanged between GPUs in microseconds drowns in the host's own.
PACED: dict[str, Any] = {
    "layers": 6,
    "bucket_bytes": {"cpu": 1 << 18, "cuda": 1 << 26},
}
OVERLAP = [case_of("zero.overlap", **PACED, holds=held(12, 30, 2))]


@over([*TRAINED, *OVERLAP], INSIDE, NETWORK, ask=requests.step, judges=parallel.PARITY)
def test_parity_with_the_unsharded_model(check: Check) -> None:
    """Loss, output, gradients and parameters equal the big batch's, and those of a second run."""
    check.run()


@over([*TRAINED, *OVERLAP], INSIDE, NETWORK, ask=requests.step, judges=[parallel.traffic])
def test_traffic_is_the_closed_form(check: Check) -> None:
    """A step exchanges what the paper says, no more and no less."""
    check.run()


@over(TRAINED, INSIDE, NETWORK, ask=requests.step, judges=[parallel.memory])
def test_memory_is_the_closed_form(check: Check) -> None:
    """A rank holds the share that the paper says."""
    check.run()


@over([HYBRID], INSIDE, NETWORK, ask=requests.step, judges=[placement.judge])
def test_shards_are_where_they_should_be(check: Check) -> None:
    """Parameters are gathered inside a node, and what is left of gradients is added up across nodes."""
    check.run()


@over([*TRAINED, *OVERLAP], INSIDE, NETWORK, ask=requests.step, judges=[parallel.time])
def test_time_is_recorded(check: Check) -> None:
    """The bandwidth of the step's own exchange; of DDP how much of it hides behind backward."""
    check.run()


@over([*STEPS, *OVERLAP], INSIDE, NETWORK, ask=requests.step, judges=[patterns.judge])
def test_pattern_holds_its_limit(check: Check) -> None:
    """The step's own collectives are as fast as the hardware file allows collectives to be."""
    check.run()


@over(AT_SIZE, INSIDE, NETWORK, ask=requests.step, judges=parallel.AT_SIZE)
def test_at_the_size_of_training(check: Check) -> None:
    """What is timed is right: results, traffic and memory of a large model, and how long its step takes."""
    check.run()


@over([*OVERLAP, *PREFETCH], INSIDE, NETWORK, ask=requests.step, judges=[formulas.judge])
def test_time_holds_its_formula(check: Check) -> None:
    """As much of the exchange hides as the order of work allows."""
    check.run()
