"""Data parallelism and every stage of ZeRO: the unsharded result, the papers' traffic and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import formulas, parallel, patterns, placement
from fixtures.check.plan import INSIDE, NETWORK, Case, Entries, at_size, case_of
from suites.mesh.layout import Layout
from suites.zero.held import bytes_held, issued_by
from suites.zero.issued import replicas
from thresholds.hardware import Model

# Enough blocks that all of them at once are more than the few that a rank may have.
DEEP = {"layers": 4}
DEEPER = {"layers": 6}
SMALL = {"width": 24, "layers": 2, "rows": 4, "steps": 3}
held = partial(Entries, issued=issued_by, held=bytes_held)  # and the closed forms


def axes_of(_step: str, per_node: Sequence[int]) -> list[dict[str, list[int]]]:
    """Give each rank's shards and replicas: what is gathered stays among neighbours, inside a node."""
    return Layout(("replicate", "shard"), replicas(per_node)).by_rank()


# The answers of small steps.
HOLDS = {
    "zero.hsdp": held(parity=33, repeat=28, traffic=6, memory=8, peaks=2, left=2, delivered=6, axes=axes_of),
    "zero.ddp": held(parity=104, repeat=84, traffic=6, memory=18, peaks=6, left=6, delivered=18),
    "zero.zero1": held(parity=30, repeat=26, traffic=10, memory=24, peaks=4, left=4, delivered=10),
    "zero.zero2": held(parity=38, repeat=34, traffic=10, memory=24, peaks=4, left=4, delivered=10),
    "zero.zero3": held(parity=38, repeat=34, traffic=10, memory=24, peaks=4, left=4, delivered=10),
    "zero.fsdp": held(parity=232, repeat=212, traffic=20, memory=32, peaks=8, left=8, delivered=20),
    "zero.fsdp_prefetch": held(parity=162, repeat=76, traffic=4, memory=8, peaks=2, left=2, delivered=4),
    "zero.fsdp_mixed": held(parity=22, repeat=14, traffic=2, memory=4, peaks=1, left=1, delivered=2),
    "zero.zero_redundancy": held(parity=30, repeat=28, traffic=4, memory=6, peaks=2, left=2, delivered=6),
    "zero.mixed_precision": held(parity=20, repeat=12, traffic=4, memory=10, peaks=2, left=2, delivered=4),
    "zero.recompute": held(parity=94, repeat=56, traffic=4, memory=4, peaks=4, left=4, delivered=12),
    "zero.deepspeed": Entries(parity=8, repeat=28, traffic=6, memory=8, held=bytes_held),
}
REAL = {"micro_batches": 2, "clip": 16.0}  # the norm of two blocks' gradients is 400 on two ranks, 25 on 500


def small(step: str, *words: str, **more: Any) -> Case:  # noqa: ANN401 - whatever JSON can carry
    """Plan a step of this suite, with these parameters besides the small ones."""
    return case_of(step, *words, holds=HOLDS[step], **{**SMALL, **more})


def of_deepspeed(stage: int) -> Case:
    """Plan a stage of DeepSpeed's, which is judged only when it is requested."""
    planned = small("zero.deepspeed", f"stage{stage}", weight=16.0, stage=stage, module="deepspeed")
    return replace(planned, engine="deepspeed")


HYBRID = small("zero.hsdp", micro_batches=2)
STEPS = [
    small("zero.ddp", micro_batches=4),
    small("zero.zero1", **REAL),
    small("zero.zero2", **DEEP, **REAL),
    small("zero.zero3", **DEEP, **REAL),
    small("zero.fsdp", **DEEPER, **REAL),
    small("zero.fsdp_prefetch", **DEEPER),
    small("zero.fsdp_mixed", micro_batches=2),
    HYBRID,
    small("zero.zero_redundancy"),
    # AdamW corrects its moments by the number of the step: a count that stops early is wrong in later ones.
    small("zero.mixed_precision", micro_batches=2, steps=5),
    small("zero.recompute", dropout=0.5),
]

DEEPSPEED = [of_deepspeed(stage) for stage in (1, 2, 3)]
TRAINED = [*STEPS, *DEEPSPEED]


TWO_BATCHES = 2


def scaled(model: Model, ranks: int) -> dict[str, int]:
    """Give the sizes of a model; the unsharded batch does not grow with the world."""
    rows = max(model.tokens(ranks) // TWO_BATCHES * TWO_BATCHES, 4)  # which cuts a rank's rows in half
    return {"width": model.hidden, "layers": model.layers, "rows": rows}


LARGE = {
    "zero1": held(parity=4, repeat=2, traffic=2, memory=6, per=("layers", Entries(parity=1, repeat=2))),
    "zero2": held(parity=4, repeat=2, traffic=2, memory=6, per=("layers", Entries(parity=1, repeat=2))),
    "zero3": held(parity=4, repeat=2, traffic=2, memory=6, per=("layers", Entries(parity=1, repeat=2))),
    **dict.fromkeys(
        ("fsdp", "fsdp_prefetch"),
        held(parity=4, repeat=2, traffic=2, memory=4, per=("layers", Entries(parity=3, repeat=6))),
    ),
    "hsdp": held(parity=4, repeat=2, traffic=3, memory=4, per=("layers", Entries(parity=3, repeat=6))),
}
BUCKETS = held(parity=4, repeat=2, traffic=1, memory=3, per=("layers", Entries(parity=3, repeat=6)))
AT_SIZE = [
    # DDP rebuilds its buckets in the second step.
    at_size("zero.ddp", scaled, steps=3, micro_batches=TWO_BATCHES, holds=BUCKETS),
    *(at_size(f"zero.{name}", scaled, steps=2, holds=holds) for name, holds in LARGE.items()),
]

# An exchange of microseconds between GPUs is hidden by the host's own time.
PACED: dict[str, Any] = {
    "layers": 6,
    "bucket_bytes": {"cpu": 1 << 18, "cuda": 1 << 26},
}
OVERLAP = [case_of("zero.overlap", **PACED, holds=held(parity=12, repeat=20, traffic=2))]


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


@over(OVERLAP, INSIDE, NETWORK, ask=requests.step, judges=[formulas.judge])
def test_time_holds_its_formula(check: Check) -> None:
    """As much of the exchange hides as the order of work allows."""
    check.run()
