"""Bugs of expert parallelism: tokens dropped, swapped or stale, gradients not added up, bits flipped."""

from __future__ import annotations

import torch
import torch.distributed as dist

from suites.expert import layer, speed
from tests.suites.expert.deep_ep_stub import Buffer
from tests.teeth.bug import Bug
from tests.teeth.patches import narrow
from tests.teeth.patches.expert import (
    after,
    all_in_fp8,
    alone,
    backwards,
    best_alone,
    both_twice,
    cut_to_fp8,
    drop_last_row,
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
    sent,
    stale,
    swap,
    twice,
    unscaled,
    unweighed,
    upside_down,
    widened,
)
from tests.teeth.patches.memory import received_kept

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
RUNS = {0: "", 1: ", run again", 2: " in bf16", 3: " in bf16, run again"}
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

DROPPED, FLIPPED = after("all_to_all_single", drop_last_row), after("all_to_all_single", flip)
TWICE = swap(dist, "all_to_all_single", twice)
BACKWARDS = swap(torch.Tensor, "argsort", backwards)
ROWS_KEPT = received_kept("all_to_all_single")
COMBINED_IN_FP8 = swap(dist, "all_to_all_single", all_in_fp8)
UNWRITTEN = after("all_to_all_single", last_unwritten)
BUGS = [
    Bug("a token that does not fit is dropped", "expert.dispatch_combine", TOKENS, DROPPED, ("parity",)),
    Bug("rows are sorted the wrong way round", "expert.dispatch_combine", TOKENS, BACKWARDS, ("parity",)),
    Bug("a low bit is always flipped", "expert.dispatch_combine", TOKENS, FLIPPED, ("wrong", "parity")),
    Bug("a low bit is flipped once", "expert.dispatch_combine", TOKENS, flip_number(0), ("repeat",)),
    Bug("every exchange is issued twice", "expert.dispatch_combine", TOKENS, TWICE, ("traffic",)),
    Bug(
        "the router's gradient is not synchronised",
        "expert.parity",
        PARITY,
        swap(dist, "all_reduce", alone),
        ("parity", "traffic"),
    ),
    Bug("the router's gradient is averaged", "expert.parity", PARITY, after("all_reduce", mean), ("parity",)),
    Bug(
        "rows travel in bf16",
        "expert.parity",
        PARITY,
        swap(dist, "all_to_all_single", rounded),
        ("parity",),
    ),
    Bug(
        "rows in bf16 travel in fp32",
        "expert.parity",
        PARITY,
        swap(dist, "all_to_all_single", widened),
        ("traffic",),
    ),
    Bug("the router computes in bf16", "expert.parity", PARITY, narrow.narrow_router, ("parity",)),
    Bug(
        "rows in bf16 lose a bit",
        "expert.parity",
        PARITY,
        narrow.of("all_to_all_single", narrow.without_last_bit),
        ("wrong",),
    ),
    Bug(
        "rows in bf16 are sent twice",
        "expert.parity",
        PARITY,
        narrow.of("all_to_all_single", twice),
        ("traffic",),
    ),
    Bug("experts get each other's rows", "expert.parity", PARITY, BACKWARDS, ("parity",)),
    *(
        Bug(f"a low bit of {what} is flipped once", "expert.parity", PARITY, flip_number(number), ("repeat",))
        for number, what in MOVED.items()
    ),
    *(
        Bug(name, "expert.capacity", CAPPED, patch, red)
        for name, patch, red in (
            ("loss over local tokens alone", local_alone(LOADS), ("parity", "traffic")),
            ("drops counted locally", local_alone(LOADS - 1), ("parity", "traffic")),
            ("the loss of all ranks is averaged", after("all_reduce", mean_of_one), ("parity",)),
            ("the last rows are kept", swap(torch.Tensor, "cumsum", from_the_end), ("parity",)),
            ("nothing is dropped", swap(torch.Tensor, "masked_fill", nothing), ("parity", "traffic")),
            ("a token that fits is dropped", DROPPED, ("parity",)),
            ("a low bit is always flipped", FLIPPED, ("wrong",)),
            ("a low bit is flipped once", flip_number(0), ("repeat",)),
            ("every exchange is issued twice", TWICE, ("traffic",)),
        )
    ),
    Bug(
        "the limit on nodes is not applied",
        "expert.group_limited",
        LIMITED,
        swap(torch.Tensor, "masked_fill", nothing),
        ("parity",),
        size=4,
    ),
    Bug(
        "a node is worth its best expert alone",
        "expert.group_limited",
        LIMITED,
        swap(torch.Tensor, "topk", best_alone),
        ("parity",),
        size=4,
    ),
    Bug(
        "results of a token overwrite each other",
        "expert.group_limited",
        LIMITED,
        swap(torch.Tensor, "index_add_", overwrites),
        ("parity",),
        size=4,
    ),
    Bug("a low bit is always flipped", "expert.group_limited", LIMITED, FLIPPED, ("wrong", "parity"), size=4),
    Bug("every exchange is issued twice", "expert.group_limited", LIMITED, TWICE, ("traffic",), size=4),
    Bug("a token that does not fit is dropped", "expert.throughput", SPEED, DROPPED, ("parity",)),
    Bug("a low bit is always flipped", "expert.throughput", SPEED, FLIPPED, ("wrong", "parity")),
    Bug("every exchange is issued twice", "expert.throughput", SPEED, TWICE, ("traffic",)),
    Bug(
        "a low bit is flipped once while dispatch is timed",
        "expert.throughput",
        SPEED,
        flip_number(6),  # two runs have two each; one is sent before the clock starts
        ("parity",),
    ),
    *(
        Bug(f"{name} (fp8)", step, parameters, patch, red)
        for step, parameters, owner in (
            ("expert.parity", PARITY_FP8, layer),
            ("expert.throughput", NARROW, speed),
        )
        for name, patch, red in (
            ("a scale is that of the next block", swap(owner, "packed", of_next_block), ("parity",)),
            ("scales are left out", swap(owner, "unpacked", unscaled), ("parity",)),
            ("a low bit is always flipped", FLIPPED, ("wrong", "parity")),
            ("a low bit is flipped once", flip_number(0), ("repeat",)),
            ("every exchange is issued twice", TWICE, ("traffic",)),
        )
    ),
    *(
        Bug(name, "expert.parity", PARITY_FP8, patch, red)
        for name, patch, red in (
            ("digits are cut off", swap(layer, "packed", cut_to_fp8), ("parity",)),
            ("nothing is sent in fp8", swap(layer, "exchange", never_in_fp8), ("parity", "traffic")),
            (
                "gradients are sent in bf16",
                swap(layer, "exchanged", gradients_in_bf16),
                ("parity", "traffic"),
            ),
            ("rows are combined in fp8", COMBINED_IN_FP8, ("parity", "traffic")),
        )
    ),
    Bug("rows are combined in fp8", "expert.throughput", NARROW, COMBINED_IN_FP8, ("traffic",)),
    Bug("dispatched rows in fp8 are kept", "expert.throughput", NARROW, ROWS_KEPT, ("memory",)),
    Bug("a token that does not fit is dropped", "expert.groups", DIVIDED, DROPPED, ("parity",), size=4),
    Bug("a low bit is always flipped", "expert.groups", DIVIDED, FLIPPED, ("wrong", "parity"), size=4),
    Bug("a low bit is flipped once", "expert.groups", DIVIDED, flip_number(0), ("repeat",), size=4),
    Bug("every exchange is issued twice", "expert.groups", DIVIDED, TWICE, ("traffic",), size=4),
    *(
        Bug(
            "dispatched rows are kept",
            step,
            parameters,
            received_kept("all_to_all_single"),
            ("memory",),
            size,
        )
        for step, parameters, size in (
            ("expert.dispatch_combine", TOKENS, 2),
            ("expert.parity", PARITY, 2),
            ("expert.capacity", CAPPED, 2),
            ("expert.throughput", SPEED, 2),
            ("expert.groups", DIVIDED, 4),
        )
    ),
    Bug("weights are lost", "expert.deepep", ENGINE, swap(Buffer, "dispatch", unweighed), ("parity",)),
    Bug(
        "tokens are given to the expert beside",
        "expert.deepep",
        ENGINE,
        swap(Buffer, "dispatch", neighbours_expert),
        ("parity",),
    ),
    Bug(
        "what the last rank sends back is not added",
        "expert.deepep",
        ENGINE,
        swap(Buffer, "_back", last_rank_left_out),
        ("parity",),
    ),
    Bug("a low bit is always flipped", "expert.deepep", ENGINE, FLIPPED, ("parity",)),
    *(
        Bug(
            f"a low bit of exchange {number} is flipped once",
            "expert.deepep",
            ENGINE,
            flip_number(number),
            ("repeat",),
        )
        for number in (0, 5, 10, 15)
    ),
    *(
        Bug(
            f"a low bit of {what} is flipped once",
            "expert.m2n",
            APART,
            flip_received(number, rank),
            ("repeat",),
        )
        for what, number, rank in (("rows there", 0, 1), ("rows back", 0, 0), ("bf16 rows there", 20, 1))
    ),
    Bug("rows of the micro-batch before are sent", "expert.m2n", APART, stale, ("parity",)),
    Bug("rows are sent in the wrong order", "expert.m2n", APART, sent(upside_down), ("parity",)),
    Bug("a low bit is always flipped", "expert.m2n", APART, sent(flipped), ("wrong",)),
    Bug("every message is sent twice", "expert.m2n", APART, both_twice, ("traffic",)),
    Bug("a low bit is always flipped", "expert.m2n_speed", PATTERN, sent(flipped), ("wrong", "parity")),
    Bug("the last word is not written", "expert.m2n_speed", PATTERN, UNWRITTEN, ("wrong", "parity")),
]
