"""A model cut into stages trains as the whole one does, in the order, memory and time of its schedule."""

from __future__ import annotations

from functools import partial
from typing import Any

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import formulas, judging, parallel, patterns
from fixtures.check.plan import INSIDE, NETWORK, Entries, Timed, at_size, case_of
from suites.pipeline import figures
from suites.pipeline.issued import bytes_held, issued
from thresholds.hardware import Model

# Two micro-batches per rank are the fewest that every schedule takes. The calibrated stages keep a rank busy
# for so long that the time to send an activation matters little. Larger worlds train several pipelines at
# once.
SIZE = {"width": 24, "rows": 4, "per_rank": 2, "busy_ms": 720, "repeats": 7, "most": 16}
EDGES: dict[str, Any] = {
    "dtype": "bf16",
    "size_bytes": {"cpu": 1 << 20, "cuda": 8 << 20},  # 2048 tokens of 2048 channels on a GPU
    "alone_bytes": 1 << 20,
    "most": SIZE["most"],
    "elements": [1, 257, 65_537],
    "iterations": 20,
    "budget_s": 2.0,
}
held = partial(Entries, issued=issued, held=bytes_held)  # and the closed forms


# A rank with one stage, one with two, and one whose second stage is the last or whose first is the first.
timed = Timed(figures.read, figures.figures, figures.other_orders)
small = partial(held, memory=8, peaks=2, left=2, delivered=4, timed=timed)
ONE, TWO, ENDS = (
    small(parity=18, repeat=8, traffic=4),
    small(parity=38, repeat=18, traffic=4),
    small(parity=34, repeat=16, traffic=4),
)
LARGE_ONE, LARGE_TWO, LARGE_ENDS = (
    held(parity=5, repeat=4, traffic=2, memory=4),
    held(parity=10, repeat=9, traffic=2, memory=4),
    held(parity=9, repeat=8, traffic=2, memory=4),
)
STEPS = {
    "pipeline.gpipe": (ONE, LARGE_ONE),
    "pipeline.one_f_one_b": (ONE, LARGE_ONE),
    "pipeline.interleaved": (TWO, LARGE_TWO),
    "pipeline.zero_bubble": (TWO, LARGE_TWO),
    "pipeline.zbv": (ENDS, LARGE_ENDS),
    "pipeline.dualpipev": (ENDS, LARGE_ENDS),
}
# Rounds of as many micro-batches as there are ranks: a schedule that counts them has a third.
ROUNDS = {"pipeline.interleaved": 3}
SCHEDULES = [
    case_of(step, **{**SIZE, "per_rank": ROUNDS.get(step, 2)}, weight=8.0, holds=holds)
    for step, (holds, _) in STEPS.items()
]


def scaled(model: Model, ranks: int) -> dict[str, int]:
    """Give the sizes of a schedule: a quarter of the width, as all stages make one model."""
    rows = max(2 * model.sequence // model.micro_batches, 1)
    return {**SIZE, "width": model.hidden // 4, "rows": rows}


AT_SIZE = [at_size(step, scaled, weight=8.0, holds=large) for step, (_, large) in STEPS.items()]
NEIGHBOURS = [case_of("pipeline.edges", **EDGES, holds=held(traffic=2))]


@over(SCHEDULES, INSIDE, NETWORK, ask=requests.step, judges=[parallel.parity, parallel.repeat])
def test_parity_with_the_unsharded_model(check: Check) -> None:
    """Order, losses and gradients are those of the same micro-batches on one rank, bit for bit, twice."""
    check.run()


@over(SCHEDULES, INSIDE, NETWORK, ask=requests.step, judges=[parallel.traffic])
def test_traffic_is_the_closed_form(check: Check) -> None:
    """Each edge carries one activation and one gradient per micro-batch, and nothing else moves."""
    check.run()


@over(SCHEDULES, INSIDE, NETWORK, ask=requests.step, judges=[parallel.memory])
def test_memory_is_the_closed_form(check: Check) -> None:
    """As many micro-batches are in flight as the schedule says, and only their activations are kept."""
    check.run()


@over(SCHEDULES, INSIDE, NETWORK, ask=requests.step, judges=[parallel.time])
def test_bubble_is_recorded(check: Check) -> None:
    """The measured bubble beside the formula's and the simulator's."""
    check.run()


@over(NEIGHBOURS, INSIDE, NETWORK, ask=requests.step, judges=[judging.exactness, parallel.traffic])
def test_edges_carry_every_bit(check: Check) -> None:
    """What neighbours send each other arrives, in both directions at once, and nothing else is sent."""
    check.run()


@over(NEIGHBOURS, INSIDE, ask=requests.step, judges=[parallel.time])
def test_bandwidth_of_the_edges_inside_a_node_is_recorded(check: Check) -> None:
    """An edge inside a node is not what a pipeline is placed on: its figure is for the record."""
    check.run()


@over(NEIGHBOURS, NETWORK, ask=requests.step, judges=[parallel.time], metrics=("edge",))
def test_bandwidth_of_the_edges_holds_its_floor(check: Check) -> None:
    """The bandwidth between real neighbours, some of which are on different nodes."""
    check.run()


@over(AT_SIZE, INSIDE, NETWORK, ask=requests.step, judges=parallel.AT_SIZE)
def test_at_the_size_of_training(check: Check) -> None:
    """What is timed is right: order, results, traffic and memory of large stages, and a step's time."""
    check.run()


@over(SCHEDULES, INSIDE, NETWORK, ask=requests.step, judges=[formulas.judge])
def test_time_holds_its_formula(check: Check) -> None:
    """Ranks wait for each other as long as the order of work makes them, and hardly longer."""
    check.run()


@over(NEIGHBOURS, INSIDE, NETWORK, ask=requests.step, judges=[patterns.judge])
def test_pattern_holds_its_limit(check: Check) -> None:
    """What all schedules send, both ways over all edges at once, is as fast as the file allows."""
    check.run()
