"""Tokens reach their experts and come home, and the experts' work is that of one big model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import formulas, parallel, patterns
from fixtures.check.plan import INSIDE, NETWORK, Case, Entries, Timed, at_size, case_of
from suites.expert.disaggregated import figures
from suites.expert.held import bytes_held
from suites.expert.issued import together
from thresholds.hardware import Model

ROUTINGS = ("balanced", "skewed", "one_hot", "zero_tokens")
LAYER: dict[str, Any] = {"tokens_per_rank": 16, "experts_per_rank": 4, "top_k": 2}
# The sizes of expert parallelism that a larger world is divided into.
PARTS = {"cpu": [2, 4], "cuda": [8, 16, 32, 64]}
LIMITED: dict[str, Any] = {
    "tokens_per_rank": 32,
    "experts_per_rank": 4,
    "top_k": 4,
    "words": 16,
    "most_nodes": 2,
    "groups": 4,
}
# tokens, hidden, top-k, where the hardware file has no [experts]. On GPUs the settings of DeepEP's own
# benchmarks: training, and decoding.
SIZES = {
    "normal": {"cpu": [64, 256, 4], "cuda": [4096, 7168, 8]},
    "low_latency": {"cpu": [8, 256, 4], "cuda": [128, 7168, 8]},
}
TIMED: dict[str, Any] = {"iterations": 20, "budget_s": 1.0}
APART: dict[str, Any] = {
    "routing": "skewed",
    "tokens_per_batch": 8,
    "hidden": 48,
    "inner": 24,
    "experts_per_rank": 4,
    "top_k": 2,
    "layers": 4,
    "stage_ms": 20.0,
}
KIB = 1 << 10
EDGES = {kind: [256 * KIB, 512 * KIB, 1024 * KIB, 2048 * KIB] for kind in ("cpu", "cuda")}


def sized(step: str, entry: str, *words: str, **more: Any) -> Case:  # noqa: ANN401 - whatever JSON can carry
    """Plan a step whose sizes are an entry of the hardware file where there is one."""
    case = case_of(step, entry, *words, sizes=SIZES[entry], experts_per_rank=8, **TIMED, **more)
    return replace(case, sized=entry)


held = partial(Entries, together=together, held=bytes_held)  # and the closed forms
OF_TOKENS = held(parity=3, repeat=3, traffic=2, memory=0, peaks=1, left=1, delivered=2)
OF_LAYER = held(parity=12, repeat=10, traffic=4, memory=4, peaks=2, left=2, delivered=4)
TOKENS = [
    case_of("expert.dispatch_combine", kind, routing=kind, words=8, **LAYER, holds=OF_TOKENS)
    for kind in ROUTINGS
]
# A row of 47 numbers is no multiple of 16 bytes. Here the router decides, and no preference.
ODD = [
    case_of(
        "expert.parity",
        "odd",
        routing="learned",
        hidden=47,
        inner=23,
        **{**LAYER, "tokens_per_rank": 13},
        holds=OF_LAYER,
    )
]
PARITY = [
    case_of("expert.parity", kind, routing=kind, hidden=48, inner=24, **LAYER, holds=OF_LAYER)
    for kind in ROUTINGS
]
PARITY_FP8 = [
    case_of(
        "expert.parity",
        "fp8",
        routing="skewed",
        hidden=256,
        inner=24,
        fp8=True,
        **LAYER,
        holds=held(parity=12, repeat=10, traffic=4, memory=4, left=2, delivered=4),
    )
]
# Skewed routing exceeds the capacity of some experts, balanced routing of none.
CAPPED = [
    replace(
        case_of("expert.capacity", kind, routing=kind, hidden=48, inner=24, factor=1.0, **LAYER),
        holds=held(parity=20, repeat=12, traffic=4, memory=4, peaks=2, left=2, delivered=4),
    )
    for kind in ("balanced", "skewed")
]
GROUPS = [
    case_of(
        "expert.group_limited",
        **LIMITED,
        holds=held(parity=4, repeat=2, traffic=2, memory=0, left=1, delivered=1),
    )
]
OF_SPEED = held(parity=4, repeat=2, traffic=1, memory=0, peaks=1, left=1, delivered=1)
NORMAL = [sized("expert.throughput", "normal", holds=OF_SPEED)]
# A dispatch in fp8 has other bytes, and would have other floors.
NARROW = [
    replace(
        sized("expert.throughput", "normal", "fp8", fp8=True, holds=OF_SPEED),
        selectors={"step": "expert.throughput in fp8"},
    )
]
# At decode size the latency counts: a floor on bandwidth is for the other size and must not match this one.
LATENCY = [
    replace(
        sized("expert.throughput", "low_latency", holds=OF_SPEED),
        selectors={"step": "expert.throughput at decode size"},
    )
]
DIVIDED = [
    sized(
        "expert.groups",
        "normal",
        group_sizes=PARTS,
        holds=held(parity=7, repeat=5, traffic=3, memory=0, peaks=2, left=2, delivered=3),
    )
]
# M attention ranks to N expert ranks: halves with every number of micro-batches, and both uneven splits.


def apart(micro_batches: int) -> Entries:
    """Give the entries of an attention rank; an expert rank has more."""
    return held(
        parity=2 + micro_batches,
        repeat=3 + 7 * micro_batches,
        traffic=6,
        left=3,
        delivered=3,
        timed=Timed(figures.read, figures.figures),
    )


PING_PONG = [
    *(
        case_of("expert.m2n", f"{count}_batches", micro_batches=count, **APART, holds=apart(count))
        for count in (1, 2, 3)
    ),
    *(
        case_of("expert.m2n", f"{m}_to_{n}", micro_batches=2, share=[m, n], **APART, holds=apart(2))
        for m, n in ((1, 3), (3, 1))
    ),
]
IN_TURN = [one for one in PING_PONG if one.parameters["micro_batches"] > 1]
OF_EDGES = Entries(parity=4, repeat=2, traffic=2, left=1, delivered=2)
PATTERN = [
    replace(
        case_of("expert.m2n_speed", sizes=EDGES, **TIMED, holds=held(per=("sizes", OF_EDGES))), sized="m2n"
    )
]
CARRIED: dict[str, Any] = {
    "hidden": 256,
    "inner": 64,
}  # DeepEP carries bf16 alone, and its rows are made of 32 x 16 bytes
ENGINE = [
    replace(
        case_of("expert.deepep", kind, routing=kind, sizes=SIZES["normal"], **CARRIED, **LAYER, **TIMED),
        holds=held(parity=17, repeat=5, traffic=1, memory=2),
        sized="normal",
        engine="deepep",
    )
    for kind in ("balanced", "skewed")
]


def of_training(model: Model, ranks: int, fewer: int = 1) -> dict[str, int]:
    """Give the sizes of a layer, with `fewer` times fewer tokens."""
    each = max(model.experts // ranks, 1)
    inner = model.hidden // 4 * model.experts // (each * ranks) // 8 * 8
    tokens = model.tokens(ranks) // fewer
    return {
        "tokens_per_rank": max(tokens, 1),
        "hidden": model.hidden,
        "inner": max(inner, 8),
        "experts_per_rank": each,
        "top_k": min(model.experts_per_token, each * ranks),
    }


of_decoding = partial(of_training, fewer=32)
LARGE = held(parity=6, repeat=5, traffic=2, memory=2)
AT_SIZE = [
    at_size("expert.parity", of_training, "training", routing="skewed", holds=LARGE),
    at_size("expert.parity", of_decoding, "decoding", routing="balanced", holds=LARGE),
]
FP8 = [*PARITY_FP8, *NARROW]
ALL = [
    *(*TOKENS, *ODD, *PARITY, *CAPPED, *GROUPS, *DIVIDED, *PING_PONG, *NORMAL, *LATENCY, *PATTERN, *ENGINE),
    *FP8,
]


@over(ALL, INSIDE, NETWORK, ask=requests.step, judges=parallel.PARITY)
def test_parity_with_the_unsharded_model(check: Check) -> None:
    """Every token comes home as it left; outputs and gradients are those of one big model; twice the same."""
    check.run()


@over(ALL, INSIDE, NETWORK, ask=requests.step, judges=[parallel.traffic])
def test_traffic_is_the_closed_form(check: Check) -> None:
    """As many rows go as the routing table says, nothing is padded, and a token crosses to a node once."""
    check.run()


@over(ALL, INSIDE, NETWORK, ask=requests.step, judges=[parallel.memory])
def test_memory_is_the_closed_form(check: Check) -> None:
    """A rank holds the router and its share of the experts, and keeps no row longer than it needs it."""
    check.run()


@over(NORMAL, NETWORK, ask=requests.step, judges=[parallel.time], metrics=("dispatch", "combine"))
def test_dispatch_across_nodes_holds_its_floor(check: Check) -> None:
    """Dispatch and combine across nodes are as fast as the hardware file asks."""
    check.run()


@over(
    [case for case in ALL if case not in NORMAL], INSIDE, NETWORK, ask=requests.step, judges=[parallel.time]
)
def test_time_is_recorded(check: Check) -> None:
    """Imbalance, saved bytes, latency, utilisation of both sides; DeepEP by its own definition of bytes."""
    check.run()


@over(NORMAL, INSIDE, ask=requests.step, judges=[parallel.time])
def test_dispatch_inside_a_node_is_recorded(check: Check) -> None:
    """Dispatch and combine inside a node."""
    check.run()


@over(AT_SIZE, INSIDE, NETWORK, ask=requests.step, judges=parallel.AT_SIZE)
def test_at_the_size_of_training(check: Check) -> None:
    """What is timed is right: results, traffic and memory of a large layer, and how long its step takes."""
    check.run()


@over(IN_TURN, INSIDE, NETWORK, ask=requests.step, judges=[formulas.judge])
def test_time_holds_its_formula(check: Check) -> None:
    """While one side has a micro-batch the other works on another one."""
    check.run()


@over(
    [*TOKENS, *ODD, *PARITY, *CAPPED, *GROUPS, *NORMAL, *LATENCY, *DIVIDED, *PATTERN, *FP8],
    INSIDE,
    NETWORK,
    ask=requests.step,
    judges=[patterns.judge],
)
def test_pattern_holds_its_limit(check: Check) -> None:
    """The step's own collectives are as fast as the hardware file allows collectives to be."""
    check.run()
