"""Seeded bugs of data parallelism and ZeRO."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from torch.distributed.fsdp import FSDPModule

from suites.zero import flat, policies, steps, wrapped
from suites.zero.answers import variants
from suites.zero.held import KINDS, RESHARDED
from suites.zero.test_zero import DEEPER, DEEPSPEED, OVERLAP, REAL, SMALL, STEPS
from tests.teeth.bug import Bug, Maker, Patch, in_step, never, of, planted, told
from tests.teeth.mesh import elsewhere
from tests.teeth.patches import narrow
from tests.teeth.patches.flips import flipped_in_call, transient
from tests.teeth.patches.memory import outputs_kept
from tests.teeth.patches.training import (
    added,
    added_in_bf16,
    averaged,
    clipped_before_reduced,
    clipped_late,
    last_alone,
    last_rank,
    last_shard_alone,
    own_norm,
    reduced_every_time,
    torchs_own_norm,
    undecayed_if_fused,
    whole_added_in_bf16,
)
from tests.teeth.patches.zero import (
    SUMMED,
    all_prefetched,
    bf16_hook,
    checkpointed,
    copies_of_shares,
    ddp,
    dropped,
    dropped_in_groups,
    flipped_always,
    for_good,
    gathered_cached,
    hooked,
    kept_when_prefetched,
    late_hook,
    narrow_input,
    narrow_model,
    narrowed,
    next_root,
    next_shard,
    no_masters,
    not_at_all,
    only_with_grad,
    other_input,
    own_summands_in_turn,
    reduced_late,
    rotated,
    shares_of_whole,
    state_for_all,
    state_in_bf16,
    sum_hook,
    transient_in_bucket,
    twice,
    unfreed_after,
)
from tests.teeth.tensor import drawn

_PLANNED = {case.step: case.parameters for case in [*STEPS, *OVERLAP]}
_STAGES = {
    f"stage {number}": {**case.parameters, "module": "tests.suites.zero.deepspeed_stub"}
    for number, case in enumerate(DEEPSPEED, 1)
}
SGD, ADAM = torch.optim.SGD, torch.optim.AdamW
KEPT_WHOLE = planted(wrapped, "fully_shard", told(reshard_after_forward=False))


def of_model(make: Maker) -> Patch:
    """Replace what gives a model its dtype."""
    return planted(torch.nn.Module, "to", make)


def in_one_run(patch: Patch) -> Patch:
    """Plant it in one variant: with resharding, and accumulated and clipped where that is asked for."""

    @contextmanager
    def plant() -> Iterator[None]:
        with (
            mock.patch.object(
                steps, "variants", lambda *of, **sizes: {"": variants(*of, **sizes).popitem()[1]}
            ),
            mock.patch.dict(KINDS, fsdp={"resharded": RESHARDED}),
            patch(),
        ):
            yield

    return plant


def _of(
    step: str, *rows: tuple[str, Patch, str], size: int = 2, real: bool = False, deep: bool = False
) -> list[Bug]:
    """The bugs of a step, with no more of what it is planned with than shows them.

    What is not about micro-batches and clipping (`real`) shows without them, in half of the time. Two blocks
    are enough for what is above no ceiling of memory; outputs and gradients of all blocks (`deep`) are large
    enough to show what is wrong with one update.
    """
    parameters = dict(_PLANNED[f"zero.{step}"])
    if step in _REAL and not real:
        parameters = {key: value for key, value in parameters.items() if key not in REAL}
    if parameters.keys() >= SMALL.keys() and not deep:
        parameters["layers"] = SMALL["layers"]
    here = [(name, in_one_run(patch), red) for name, patch, red in rows]
    return in_step(f"zero.{step}", parameters, *here, size=size)


def _flips(*calls: str, at: int = 3, **more: int) -> list[tuple[str, Patch, str]]:
    """One lowest bit, once, in each kind of exchange."""
    return [(f"lowest bit flips once, {call}", transient(call, at, **more), "repeat") for call in calls]


def _updates(optimizer: type[torch.optim.Optimizer]) -> list[tuple[str, Patch, str]]:
    """What updates show and weights hide."""
    return [
        (name, narrow.step_of(optimizer, make), "parity")
        for name, make in (
            ("masters never updated", never),
            ("first masters never updated", narrow.all_but_the_first),
            ("rank 1 loses an update", narrow.second_lost_on_rank_1),
        )
    ]


_REAL = ("zero1", "zero2", "zero3", "fsdp")
GATHER, SCATTER = "all_gather_single", "reduce_scatter_single"
STATE = ("optimizer state for all ranks", state_for_all(SGD), "memory")
COPIES = ("a copy of what was updated is left", copies_of_shares(SGD), "memory")
UNSEEN = ("more state in bf16, unseen", state_in_bf16(SGD), "memory")
SHARED = ("share of the gradients is a view of all", shares_of_whole(SGD), "memory")
CACHED = ("two gathered blocks cached", gathered_cached(GATHER), "memory")
UNRESHARDED = ("never resharded", KEPT_WHOLE, "traffic memory")
DIVISOR, DIVISOR_BF16 = (
    (f"wrong divisor{where}", of(SCATTER, SUMMED), "parity") for where in ("", " in bf16")
)
MEAN = ("sum in place of mean", hooked(sum_hook), "parity")
BUCKETS = ("buckets ignored", ddp("__init__", told(bucket_cap_mb=25)), "traffic")
UNCAST = ("initial weights not broadcast", of("_broadcast_coalesced", dropped), "parity")
REDUCED_LATE = ("gradients kept until backward is over", reduced_late, "memory")
SHIFTED = ("gathered off by one shard", of(GATHER, rotated), "parity wrong")
LOST = (
    "rank 1 loses an update in bf16",
    narrow.step_of(SGD, narrow.of_bf16_weights(narrow.second_lost_on_rank_1)),
    "parity",
)
GATHERED_TWICE = ("gathered twice in bf16", narrow.of(GATHER, twice), "traffic")
UNADDED = "every second step is not added up"
ADDED = [
    ("last micro-batch alone", added(last_alone), "parity"),
    ("averaged again", added(averaged), "parity"),
]

BUGS = [
    *_of(
        "ddp",
        ("no_sync synchronises", ddp("no_sync", lambda _: lambda _self: nullcontext()), "traffic"),
        ("last micro-batch not synchronised", ddp("no_sync", for_good), "parity traffic"),
        MEAN,
        ("reduced in 16 bits", hooked(bf16_hook), "parity traffic"),
        ("last bucket not exchanged", hooked(late_hook), "parity traffic"),
        BUCKETS,
        ("a bit of rank 1 always flips", of("all_reduce", flipped_always), "wrong"),
        ("lowest bit flips once", transient_in_bucket(4), "repeat"),
        ("lowest bit flips once in bf16", transient_in_bucket(20), "repeat"),
        STATE,
        UNCAST,
        ("initial weights of the last rank", of("_broadcast_coalesced", last_rank), "parity"),
    ),
    *_of("ddp", COPIES, UNSEEN, deep=True),
    *_of(
        "zero1",
        DIVISOR,
        ("no all-gather", of(GATHER, dropped), "parity traffic wrong"),
        SHIFTED,
        *_flips(GATHER, SCATTER, element=5),
        ("lowest bit flips once in bf16", transient(GATHER, 3), "repeat"),
        STATE,
        SHARED,
        ("outputs are kept", planted(torch.nn.Sequential, "forward", outputs_kept), "memory"),
        ("gathered in bf16 as in the step before", narrow.of(GATHER, narrow.stale), "parity"),
        LOST,
        GATHERED_TWICE,
        ("sums in bf16 cut off", narrow.of(SCATTER, narrow.truncated), "wrong"),
    ),
    *_of("zero1", COPIES, UNSEEN, deep=True),
    *_of(
        "zero2",
        ("shard of the next rank", of(SCATTER, next_shard), "parity wrong"),
        ("reduced twice", of(SCATTER, twice), "traffic"),
        ("reduced in 16 bits", of(SCATTER, narrowed), "parity traffic"),
        *_flips(GATHER, SCATTER, element=5),
        STATE,
        SHARED,
        REDUCED_LATE,
        ("weights keep their hooks", planted(flat.Zero2, "close", never), "memory"),
    ),
    *_of("zero2", COPIES, UNSEEN, deep=True),
    *_of("zero2", *ADDED, real=True),
    *_of(
        "zero3",
        ("parameters never freed", unfreed_after(1), "memory"),
        ("parameters not freed once", unfreed_after(9), "memory"),
        ("not gathered for backward", of(GATHER, only_with_grad), "parity traffic"),
        DIVISOR,
        *_flips(GATHER, SCATTER, element=5),
        STATE,
        REDUCED_LATE,
        LOST,
    ),
    *_of("zero3", COPIES, UNSEEN, CACHED, deep=True),
    *_of("zero3", *ADDED, real=True),
    *_of(
        "fsdp",
        DIVISOR_BF16,
        SHIFTED,
        UNRESHARDED,
        *_flips(GATHER, SCATTER, element=5),
        ("lowest bit flips once in bf16", transient(SCATTER, 3), "repeat"),
        STATE,
        LOST,
        GATHERED_TWICE,
        (
            "a number gathered in bf16 is always off",
            narrow.of(GATHER, flipped_in_call(None, bit=2)),
            "repeat",
        ),
    ),
    *_of(
        "fsdp",
        COPIES,
        UNSEEN,
        CACHED,
        ("gathered in bf16 as before the update", narrow.of(GATHER, narrow.stale), "parity"),
        deep=True,
    ),
    *_of("fsdp", ("last micro-batch alone", last_shard_alone, "parity"), real=True),
    *(
        bug
        for step in _REAL
        for bug in _of(
            step,
            ("norm of the local shard alone", own_norm, "parity traffic"),
            ("clipped after the update", clipped_late, "parity"),
            ("clipped before the reduction", clipped_before_reduced, "parity"),
            real=True,
        )
    ),
    *_of(
        "fsdp_prefetch",
        *_flips(GATHER, SCATTER, element=5),
        STATE,
        UNRESHARDED,
        ("kept when prefetched", kept_when_prefetched("set_modules_to_forward_prefetch"), "traffic memory"),
        DIVISOR_BF16,
        ("gathered off by one shard", of(GATHER, rotated), "parity"),
    ),
    *_of("fsdp_prefetch", ("all blocks gathered at once", all_prefetched, "memory"), size=4, deep=True),
    *_of(
        "fsdp_prefetch",
        ("prefetched before the update", of(GATHER, narrow.stale), "parity"),
        (UNADDED, of(SCATTER, own_summands_in_turn(DEEPER["layers"], SMALL["steps"])), "parity"),
        deep=True,
    ),
    *_of(
        "fsdp_mixed",
        *_flips(GATHER, SCATTER, element=5),
        STATE,
        ("no fp32 masters", of_model(narrow_model), "memory"),
        UNRESHARDED,
        (
            "reduced in 16 bits",
            planted(policies, "MixedPrecisionPolicy", told(reduce_dtype=None)),
            "parity traffic",
        ),
        DIVISOR,
        (UNADDED, of(SCATTER, own_summands_in_turn(SMALL["layers"], SMALL["steps"])), "parity"),
        *_updates(SGD),
        ("gathered as in the step before", narrow.of(GATHER, narrow.stale), "parity"),
        ("whole gradients added up in 16 bits", whole_added_in_bf16, "parity"),
        ("reduced with every micro-batch", reduced_every_time, "traffic"),
    ),
    *_of(
        "hsdp",
        ("last micro-batch alone", last_shard_alone, "parity"),
        (
            "replicas reduced with every micro-batch",
            planted(FSDPModule, "set_requires_all_reduce", never),
            "traffic",
        ),
        ("norm of the local shard alone, by torch", torchs_own_norm, "parity"),
        ("replicas not reduced", of("all_reduce", dropped_in_groups), "parity traffic wrong"),
        UNRESHARDED,
        DIVISOR_BF16,
        *_flips(GATHER, SCATTER, "all_reduce", at=5),
        STATE,
        ("nodes interleaved", elsewhere, "placement"),
        size=4,
    ),
    *_of(
        "zero_redundancy",
        ("no broadcast", of("broadcast", dropped), "parity traffic"),
        ("broadcast by the next rank", of("broadcast", next_root), "parity wrong"),
        MEAN,
        ("lowest bit flips once", transient_in_bucket(6), "repeat"),
        *_flips("broadcast"),
        STATE,
        UNCAST,
    ),
    *_of("zero_redundancy", COPIES, deep=True),
    *_of(
        "mixed_precision",
        ("reduced in 16 bits", of(SCATTER, narrowed), "parity traffic"),
        DIVISOR,
        ("no all-gather", of(GATHER, dropped), "traffic wrong"),
        *_flips(GATHER, SCATTER, element=5),
        ("optimizer state for all ranks", state_for_all(ADAM), "memory"),
        ("no fp32 masters", no_masters, "memory traffic"),
        *_updates(ADAM),
        ("Adam's count stuck", narrow.step_of(ADAM, narrow.count_stuck), "parity"),
        ("Adam's count stops", narrow.step_of(ADAM, narrow.count_stops), "parity"),
        ("no weight decays", narrow.step_of(ADAM, narrow.undecayed), "parity"),
        ("copies of the step before", narrow.stale_copies, "parity"),
        *ADDED,
        ("added up in 16 bits", added(added_in_bf16), "parity"),
        ("no weight decays in a fused update", undecayed_if_fused, "parity"),
    ),
    *_of(
        "recompute",
        ("generator not restored", checkpointed(told(preserve_rng_state=False)), "parity"),
        ("other masks on rank 1 alone", drawn(1, lambda _: True), "parity"),
        ("nothing recomputed", checkpointed(not_at_all), "memory"),
        ("input kept in 16 bits", checkpointed(narrow_input), "parity"),
        ("second forward differs", checkpointed(other_input), "parity"),
        ("lowest bit flips once", transient_in_bucket(6), "repeat"),
        UNCAST,
    ),
    *_of("overlap", BUCKETS, MEAN),
    *(
        bug
        for stage, parameters in _STAGES.items()
        for bug in in_step(
            "zero.deepspeed",
            parameters,
            (f"gathered off by one shard, {stage}", of(GATHER, rotated), "parity wrong"),
            (f"optimizer state for all ranks, {stage}", state_for_all(SGD), "memory"),
            (f"lowest bit flips once, {stage}", transient(GATHER, 2), "repeat"),
            (f"gathered twice, {stage}", of(GATHER, twice), "traffic"),
        )
    ),
]
