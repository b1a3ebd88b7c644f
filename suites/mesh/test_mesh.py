"""Parallel axes together on one device mesh: the unsharded result, each axis' own traffic, and its place."""

from __future__ import annotations

from functools import partial

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import parallel, patterns, placement
from fixtures.check.plan import INSIDE, NETWORK, Entries, at_size, case_of
from suites.mesh.issued import axes_of, bytes_held, issued
from thresholds.hardware import Model

CLIP = 0.25
held = partial(Entries, issued=issued, held=bytes_held, axes=axes_of)  # and the closed forms
DENSE = {"rows": 2, "tokens": 8, "layers": 2, "steps": 2}

# The least of any world: in larger ones more axes have something to exchange, and inner stages have less to
# compare than the first and the last.
STEPS = [
    case_of(
        "mesh.fsdp_tp",
        **DENSE,
        clip=CLIP,
        holds=held(parity=95, repeat=90, traffic=6, memory=8, left=2, delivered=6),
    ),
    case_of(
        "mesh.pp_fsdp_tp",
        **{**DENSE, "layers": 1},
        per_stage=2,
        clip=CLIP,
        holds=held(parity=43, repeat=38, traffic=6, memory=8, left=2, delivered=6),
    ),
    case_of(
        "mesh.fsdp_cp",
        **DENSE,
        more_words=1,
        clip=CLIP,
        holds=held(parity=95, repeat=90, traffic=10, memory=8, left=2, delivered=10),
    ),
    case_of(
        "mesh.fsdp_cp_tp",
        **DENSE,
        clip=CLIP,
        holds=held(parity=95, repeat=90, traffic=14, memory=8, left=2, delivered=12),
    ),
    case_of(
        "mesh.loss_curve",
        **{**DENSE, "layers": 1, "steps": 20},
        holds=held(parity=41, repeat=26, traffic=2, memory=4, left=1, delivered=3),
    ),
]


def scaled(model: Model, ranks: int) -> dict[str, int]:
    """Give the sizes of a model: half the width, in short sequences."""
    sizes = {"rows": 1, "tokens": max(model.sequence // 32, 1) * 2, "layers": 1, "steps": 2}
    return {**sizes, "least_width": model.hidden // 2, "least_channels": model.hidden // model.heads}


AT_SIZE = [
    at_size("mesh.fsdp_tp", scaled, holds=held(parity=16, repeat=26, traffic=2, memory=4)),
    at_size("mesh.pp_fsdp_tp", scaled, per_stage=2, holds=held(parity=11, repeat=18, traffic=2, memory=4)),
    at_size("mesh.fsdp_cp", scaled, holds=held(parity=16, repeat=26, traffic=4, memory=4)),
]
MIXTURE = {
    "width": 16,
    "heads": 4,
    "kv_heads": 2,
    "inner": 12,
    "experts_per_rank": 2,
    "top_k": 2,
    "length": 16,
    "rows": 1,
    "steps": 2,
}
EXPERTS = [
    case_of(
        "mesh.ep_dp",
        **MIXTURE,
        micro_batches=2,
        holds=held(parity=122, repeat=120, traffic=4, memory=6, left=2, delivered=4),
    ),
    case_of(
        "mesh.five_axes",
        **MIXTURE,
        micro_batches=3,
        holds=held(parity=62, repeat=58, traffic=4, memory=6, left=2, delivered=4),
    ),
    case_of(
        "mesh.ep_fsdp",
        **MIXTURE,
        micro_batches=1,
        holds=held(parity=122, repeat=120, traffic=10, memory=6, left=2, delivered=6),
    ),
    case_of(
        "mesh.zero1_pp_ep",
        **MIXTURE,
        micro_batches=2,
        holds=held(parity=27, repeat=20, traffic=10, memory=12, left=2, delivered=10),
    ),
]


@over([*STEPS, *EXPERTS], INSIDE, NETWORK, ask=requests.step, judges=parallel.PARITY)
def test_parity_with_the_unsharded_model(check: Check) -> None:
    """Logits, loss, gradients and parameters are the unsharded model's, and those of a second run."""
    check.run()


@over([*STEPS, *EXPERTS], INSIDE, NETWORK, ask=requests.step, judges=[parallel.traffic])
def test_traffic_is_the_closed_form(check: Check) -> None:
    """Each axis exchanges what its own technique needs, in its own groups, and nothing else moves."""
    check.run()


@over([*STEPS, *EXPERTS], INSIDE, NETWORK, ask=requests.step, judges=[parallel.memory])
def test_memory_is_the_closed_form(check: Check) -> None:
    """A rank holds the share that all axes together leave it."""
    check.run()


@over([*STEPS, *EXPERTS], INSIDE, NETWORK, ask=requests.step, judges=[placement.judge])
def test_axes_are_where_they_should_be(check: Check) -> None:
    """The innermost axis stays inside a node wherever it fits, the outer ones cross; in no other order."""
    check.run()


@over([*STEPS, *EXPERTS], INSIDE, NETWORK, ask=requests.step, judges=[parallel.time])
def test_time_is_recorded(check: Check) -> None:
    """How long a training step takes, and how fast each axis' own pattern is."""
    check.run()


@over(AT_SIZE, INSIDE, NETWORK, ask=requests.step, judges=parallel.AT_SIZE)
def test_at_the_size_of_training(check: Check) -> None:
    """What is timed is right: results, traffic and memory of a large model on a mesh, and a step's time."""
    check.run()


@over([*STEPS, *EXPERTS], INSIDE, NETWORK, ask=requests.step, judges=[patterns.judge])
def test_pattern_holds_its_limit(check: Check) -> None:
    """The step's own collectives are as fast as the hardware file allows collectives to be."""
    check.run()
