"""Bugs of expert parallelism: tokens dropped, swapped or stale, gradients not added up, bits flipped."""

from __future__ import annotations

from torch import Tensor

from suites.expert import layer, speed
from tests.suites.expert.deep_ep_stub import Buffer
from tests.teeth.bug import Bug, in_step, of, planted, told
from tests.teeth.patches import narrow
from tests.teeth.patches.expert import (
    after,
    all_in_fp8,
    alone,
    best_alone,
    both_twice,
    cut_to_fp8,
    drop_last_row,
    first_row_behind,
    flip,
    flip_number,
    flip_received,
    flipped,
    from_the_end,
    gradients_in_bf16,
    last_rank_left_out,
    last_unwritten,
    local_alone,
    mean,
    mean_of_one,
    neighbours_expert,
    never_in_fp8,
    nothing,
    of_next_block,
    overwrites,
    rounded,
    rows_again,
    sent,
    stale,
    unasked,
    unscaled,
    unweighed,
    upside_down,
    widened,
)
from tests.teeth.patches.memory import received_kept
from tests.teeth.patches.zero import twice

LAYER = {"tokens_per_rank": 16, "experts_per_rank": 4, "top_k": 2, "routing": "skewed"}
TOKENS = {**LAYER, "words": 8}
PARITY = {**LAYER, "hidden": 24, "inner": 12}
CAPPED = {**PARITY, "factor": 1.0}
LOADS = 9  # numbers that two ranks of four experts tell each other of their loads
LIMITED = {"tokens_per_rank": 16, "experts_per_rank": 4, "top_k": 4, "words": 8, "most_nodes": 2, "groups": 4}
SPEED = {"sizes": {"cpu": [16, 32, 2]}, "experts_per_rank": 4, "iterations": 10, "budget_s": 0.1}
APART = {
    "routing": "balanced",
    "tokens_per_batch": 8,
    "hidden": 16,
    "inner": 8,
    "experts_per_rank": 4,
    "top_k": 2,
    "layers": 2,
    "micro_batches": 2,
    "stage_ms": 0.0,
}
PATTERN = {"sizes": {"cpu": [4096]}, "iterations": 10, "budget_s": 0.1}
# Exchanges of rows of expert.parity, by number, in the runs that are compared.
RUNS = {0: "", 1: ", run again"}
ROWS = ("rows there", "rows back", "gradients there", "gradients back")
MOVED = {
    run * len(ROWS) + number: f"{rows}{kind}"
    for run, kind in RUNS.items()
    for number, rows in enumerate(ROWS)
}
NARROW = {**SPEED, "sizes": {"cpu": [16, 256, 2]}, "fp8": True}
PARITY_FP8 = {**PARITY, "hidden": 256, "fp8": True}
DIVIDED = {**SPEED, "group_sizes": {"cpu": [2]}}
ENGINE = {**PARITY, **SPEED, "hidden": 32, "module": "tests.suites.expert.deep_ep_stub"}

EXCHANGE = "all_to_all_single"
DROPPED, FLIPPED = after(EXCHANGE, drop_last_row), after(EXCHANGE, flip)
TWICE = of(EXCHANGE, twice)
BACKWARDS = planted(Tensor, "argsort", told(descending=True))
ROWS_KEPT = received_kept(EXCHANGE)
COMBINED_IN_FP8 = of(EXCHANGE, all_in_fp8)
UNWRITTEN = after(EXCHANGE, last_unwritten)
BUGS = [
    *in_step(
        "expert.dispatch_combine",
        TOKENS,
        ("a token that does not fit is dropped", DROPPED, "parity"),
        ("rows are sorted the wrong way round", BACKWARDS, "parity"),
        ("a low bit is always flipped", FLIPPED, "wrong parity"),
        ("a low bit is flipped once", flip_number(0), "repeat"),
        ("every exchange is issued twice", TWICE, "traffic"),
    ),
    *in_step(
        "expert.parity",
        PARITY,
        ("the router's gradient is not synchronised", of("all_reduce", alone), "parity traffic"),
        ("the router's gradient is averaged", after("all_reduce", mean), "parity"),
        ("rows travel in 16 bits", of(EXCHANGE, rounded), "parity"),
        ("rows in bf16 travel in fp32", of(EXCHANGE, widened), "traffic"),
        ("the router computes in bf16", narrow.narrow_router, "parity"),
        ("rows in bf16 lose a bit", narrow.of(EXCHANGE, narrow.without_last_bit), "wrong"),
        ("rows in bf16 are sent twice", narrow.of(EXCHANGE, twice), "traffic"),
        ("experts get each other's rows", BACKWARDS, "parity"),
        *(
            (f"a low bit of {what}{dtype} is flipped once", flip_number(n), "repeat")
            for dtype in ("", " in bf16")
            for n, what in MOVED.items()
        ),
    ),
    *in_step(
        "expert.parity",
        {**PARITY, "routing": "learned"},
        ("the router has no say", planted(layer, "route", unasked), "parity traffic"),
    ),
    *in_step(
        "expert.group_limited",
        LIMITED,
        ("the limit on nodes is not applied", planted(Tensor, "masked_fill", nothing), "parity"),
        ("a node is worth its best expert alone", planted(Tensor, "topk", best_alone), "parity"),
        ("results of a token overwrite each other", planted(Tensor, "index_add_", overwrites), "parity"),
        ("a low bit is always flipped", FLIPPED, "wrong parity"),
        ("every exchange is issued twice", TWICE, "traffic"),
        size=4,
    ),
    *in_step(
        "expert.throughput",
        SPEED,
        ("a token that does not fit is dropped", DROPPED, "parity"),
        ("a low bit is always flipped", FLIPPED, "wrong parity"),
        ("every exchange is issued twice", TWICE, "traffic"),
        ("a row is that of two calls before", of(EXCHANGE, first_row_behind(2)), "parity"),
        # two runs have two each; one is sent before the clock starts
        ("a low bit is flipped once while dispatch is timed", flip_number(6), "parity"),
    ),
    *in_step(
        "expert.throughput",
        NARROW,
        ("rows are combined in fp8", COMBINED_IN_FP8, "traffic"),
        ("dispatched rows in fp8 are kept", ROWS_KEPT, "memory"),
    ),
    *in_step(
        "expert.groups",
        DIVIDED,
        ("a token that does not fit is dropped", DROPPED, "parity"),
        ("a low bit is always flipped", FLIPPED, "wrong parity"),
        ("a low bit is flipped once", flip_number(0), "repeat"),
        ("every exchange is issued twice", TWICE, "traffic"),
        size=4,
    ),
    *in_step(
        "expert.deepep",
        ENGINE,
        ("weights are lost", planted(Buffer, "dispatch", unweighed), "parity"),
        ("rows are those of the call before", planted(Buffer, "dispatch", rows_again(1)), "parity"),
        ("rows are those of two calls before", planted(Buffer, "dispatch", rows_again(2)), "parity"),
        ("tokens are given to the expert beside", planted(Buffer, "dispatch", neighbours_expert), "parity"),
        (
            "what the last rank sends back is not added",
            planted(Buffer, "_back", last_rank_left_out),
            "parity",
        ),
        ("a low bit is always flipped", FLIPPED, "parity"),
        *((f"a low bit of exchange {n} is flipped once", flip_number(n), "repeat") for n in (0, 5, 10, 15)),
    ),
    *in_step(
        "expert.m2n",
        APART,
        ("rows of the micro-batch before are sent", stale, "parity"),
        ("rows are sent in the wrong order", sent(upside_down), "parity"),
        ("a low bit is always flipped", sent(flipped), "wrong"),
        ("every message is sent twice", both_twice, "traffic"),
        ("a low bit of rows there is flipped once", flip_received(0, 1), "repeat"),
        ("a low bit of rows back is flipped once", flip_received(0, 0), "repeat"),
        ("a low bit of bf16 rows there is flipped once", flip_received(20, 1), "repeat"),
    ),
    *in_step(
        "expert.m2n_speed",
        PATTERN,
        ("a low bit is always flipped", sent(flipped), "wrong parity"),
        ("the last word is not written", UNWRITTEN, "wrong parity"),
    ),
    *in_step(
        "expert.capacity",
        CAPPED,
        ("loss over local tokens alone", local_alone(LOADS), "parity traffic"),
        ("drops counted locally", local_alone(LOADS - 1), "parity traffic"),
        ("the loss of all ranks is averaged", after("all_reduce", mean_of_one), "parity"),
        ("the last rows are kept", planted(Tensor, "cumsum", from_the_end), "parity"),
        ("nothing is dropped", planted(Tensor, "masked_fill", nothing), "parity traffic"),
        ("a token that fits is dropped", DROPPED, "parity"),
        ("a low bit is always flipped", FLIPPED, "wrong"),
        ("a low bit is flipped once", flip_number(0), "repeat"),
        ("every exchange is issued twice", TWICE, "traffic"),
    ),
    *(
        bug
        for step, parameters, owner in (
            ("expert.parity", PARITY_FP8, layer),
            ("expert.throughput", NARROW, speed),
        )
        for bug in in_step(
            step,
            parameters,
            ("a scale is that of the next block (fp8)", planted(owner, "packed", of_next_block), "parity"),
            ("scales are left out (fp8)", planted(owner, "unpacked", unscaled), "parity"),
            ("a low bit is always flipped (fp8)", FLIPPED, "wrong parity"),
            ("a low bit is flipped once (fp8)", flip_number(0), "repeat"),
            ("every exchange is issued twice (fp8)", TWICE, "traffic"),
        )
    ),
    *in_step(
        "expert.parity",
        PARITY_FP8,
        ("digits are cut off", planted(layer, "packed", cut_to_fp8), "parity"),
        ("nothing is sent in fp8", planted(layer, "exchange", never_in_fp8), "parity traffic"),
        ("gradients are sent in 16 bits", planted(layer, "exchanged", gradients_in_bf16), "parity traffic"),
        ("rows are combined in fp8", COMBINED_IN_FP8, "parity traffic"),
    ),
    *(
        Bug("dispatched rows are kept", step, parameters, ROWS_KEPT, ("memory",), size)
        for step, parameters, size in (
            ("expert.dispatch_combine", TOKENS, 2),
            ("expert.parity", PARITY, 2),
            ("expert.capacity", CAPPED, 2),
            ("expert.throughput", SPEED, 2),
            ("expert.groups", DIVIDED, 4),
            ("expert.group_limited", LIMITED, 4),
        )
    ),
]
