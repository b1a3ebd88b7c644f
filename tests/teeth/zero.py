"""Seeded bugs of data parallelism and ZeRO."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch

from suites.zero import flat, policies, wrapped
from suites.zero.test_zero import DEEPER, DEEPSPEED, OVERLAP, REAL, SMALL, STEPS
from tests.teeth.bug import Bug, Maker, Patch, is_narrow, never, of, planted, told
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

_PARAMETERS = {case.step: case.parameters for case in [*STEPS, *OVERLAP]}
_STAGES = {
    f"stage {number}": {**case.parameters, "module": "tests.suites.zero.deepspeed_stub"}
    for number, case in enumerate(DEEPSPEED, 1)
}
SGD, ADAM = torch.optim.SGD, torch.optim.AdamW
KEPT_WHOLE = planted(wrapped, "fully_shard", told(reshard_after_forward=False))
NEVER_FREED = unfreed_after(1)


def of_model(make: Maker) -> Patch:
    """Replace what gives a model its dtype."""
    return planted(torch.nn.Module, "to", make)


def _bug(step: str, name: str, patch: Patch, *red: str, size: int = 2) -> Bug:
    return Bug(name, step, _PARAMETERS[step], patch, red, size, narrow=is_narrow(name))


def _plain(bug: Bug) -> Bug:
    """What is not about micro-batches and clipping shows without them, in half of the time."""
    if bug.step not in ("zero.zero1", "zero.zero2", "zero.zero3", "zero.fsdp"):
        return bug
    return replace(bug, parameters={key: bug.parameters[key] for key in bug.parameters.keys() - REAL.keys()})


def _shallow(bug: Bug) -> Bug:
    """Two blocks are enough for what is above no ceiling of memory."""
    if not bug.parameters.keys() >= SMALL.keys():
        return bug
    return replace(bug, parameters={**bug.parameters, "layers": SMALL["layers"]})


# One lowest bit, once, in each kind of exchange: in the first run in fp64, or in one in bf16.
_TRANSIENTS = [
    _bug("zero.ddp", "lowest bit flips once", transient_in_bucket(4), "repeat"),
    _bug("zero.ddp", "lowest bit flips once in bf16", transient_in_bucket(20), "repeat"),
    _bug("zero.recompute", "lowest bit flips once", transient_in_bucket(6), "repeat"),
    _bug("zero.zero_redundancy", "lowest bit flips once", transient_in_bucket(6), "repeat"),
    _bug("zero.zero_redundancy", "lowest bit flips once, broadcast", transient("broadcast", 3), "repeat"),
    *(
        _bug(f"zero.{step}", f"lowest bit flips once, {call}", transient(call, 3, element=5), "repeat")
        for step in ("zero1", "zero2", "zero3", "fsdp", "fsdp_prefetch", "fsdp_mixed", "mixed_precision")
        for call in ("all_gather_single", "reduce_scatter_single")
    ),
    _bug("zero.zero1", "lowest bit flips once in bf16", transient("all_gather_single", 20), "repeat"),
    _bug("zero.fsdp", "lowest bit flips once in bf16", transient("reduce_scatter_single", 20), "repeat"),
    *(
        _bug("zero.hsdp", f"lowest bit flips once, {call}", transient(call, 5), "repeat", size=4)
        for call in ("all_gather_single", "reduce_scatter_single", "all_reduce")
    ),
]
_MEMORY = [
    *(
        _bug(f"zero.{step}", "optimizer state for all ranks", state_for_all(SGD), "memory")
        for step in (
            "ddp",
            "zero1",
            "zero2",
            "zero3",
            "fsdp",
            "fsdp_prefetch",
            "fsdp_mixed",
            "zero_redundancy",
        )
    ),
    _bug("zero.hsdp", "optimizer state for all ranks", state_for_all(SGD), "memory", size=4),
    _bug("zero.mixed_precision", "optimizer state for all ranks", state_for_all(ADAM), "memory"),
    _bug("zero.mixed_precision", "no fp32 masters", no_masters, "memory", "traffic"),
    _bug("zero.fsdp_mixed", "no fp32 masters", of_model(narrow_model), "memory"),
    _bug("zero.zero1", "share of the gradients is a view of all", shares_of_whole(SGD), "memory"),
    _bug("zero.zero2", "share of the gradients is a view of all", shares_of_whole(SGD), "memory"),
    _bug("zero.zero2", "gradients kept until backward is over", reduced_late, "memory"),
    _bug("zero.zero3", "gradients kept until backward is over", reduced_late, "memory"),
    _bug("zero.zero3", "parameters not freed once", unfreed_after(9), "memory"),
    _bug("zero.zero1", "outputs are kept", planted(torch.nn.Sequential, "forward", outputs_kept), "memory"),
    _bug("zero.zero2", "weights keep their hooks", planted(flat.Zero2, "close", never), "memory"),
    _bug("zero.fsdp_prefetch", "never resharded", KEPT_WHOLE, "traffic", "memory"),
    _bug("zero.fsdp_mixed", "never resharded", KEPT_WHOLE, "traffic", "memory"),
]
# A peak above its ceiling takes more than two blocks to show.
_CEILING = [
    *(
        _bug(f"zero.{step}", "a copy of what was updated is left", copies_of_shares(SGD), "memory")
        for step in ("ddp", "zero1", "zero2", "zero3", "fsdp", "zero_redundancy")
    ),
    *(
        _bug(f"zero.{step}", "more state in bf16, unseen", state_in_bf16(SGD), "memory")
        for step in ("ddp", "zero1", "zero2", "zero3", "fsdp")
    ),
    _bug("zero.fsdp_prefetch", "all blocks gathered at once", all_prefetched, "memory", size=4),
    _bug("zero.zero3", "two gathered blocks cached", gathered_cached("all_gather_single"), "memory"),
    _bug("zero.fsdp", "two gathered blocks cached", gathered_cached("all_gather_single"), "memory"),
]
# Outputs and gradients of all planned blocks are large enough to show what is wrong with one update.
_DEEP = [
    _bug(
        "zero.fsdp_prefetch", "prefetched before the update", of("all_gather_single", narrow.stale), "parity"
    ),
    _bug(
        "zero.fsdp_prefetch",
        "every second step is not added up",
        of("reduce_scatter_single", own_summands_in_turn(DEEPER["layers"], SMALL["steps"])),
        "parity",
    ),
    _bug(
        "zero.fsdp",
        "gathered in bf16 as before the update",
        narrow.of("all_gather_single", narrow.stale),
        "parity",
    ),
]
_START = [
    _bug("zero.ddp", "initial weights not broadcast", of("_broadcast_coalesced", dropped), "parity"),
    _bug("zero.ddp", "initial weights of the last rank", of("_broadcast_coalesced", last_rank), "parity"),
    _bug("zero.recompute", "initial weights not broadcast", of("_broadcast_coalesced", dropped), "parity"),
    _bug(
        "zero.zero_redundancy", "initial weights not broadcast", of("_broadcast_coalesced", dropped), "parity"
    ),
    _bug("zero.hsdp", "nodes interleaved", elsewhere, "placement", size=4),
]
_REAL = [
    *(
        _bug(f"zero.{step}", name, patch, *red)
        for step in ("zero1", "zero2", "zero3", "fsdp")
        for name, patch, red in (
            ("norm of the local shard alone", own_norm, ("parity", "traffic")),
            ("clipped after the update", clipped_late, ("parity",)),
            ("clipped before the reduction", clipped_before_reduced, ("parity",)),
        )
    ),
    *(
        _bug(f"zero.{step}", name, added(change), "parity")
        for step in ("zero2", "zero3", "mixed_precision")
        for name, change in (("last micro-batch alone", last_alone), ("averaged again", averaged))
    ),
    _bug("zero.mixed_precision", "added up in bf16", added(added_in_bf16), "parity"),
    _bug("zero.fsdp", "last micro-batch alone", last_shard_alone, "parity"),
]
_CAST = [
    _bug(
        "zero.fsdp_mixed",
        "reduced in bf16",
        planted(policies, "MixedPrecisionPolicy", told(reduce_dtype=None)),
        "parity",
        "traffic",
    ),
    _bug("zero.fsdp_mixed", "wrong divisor", of("reduce_scatter_single", SUMMED), "parity"),
    _bug(
        "zero.fsdp_mixed",
        "every second step is not added up",
        of("reduce_scatter_single", own_summands_in_turn(SMALL["layers"], SMALL["steps"])),
        "parity",
    ),
    _bug(
        "zero.fsdp_prefetch",
        "kept when prefetched",
        kept_when_prefetched("set_modules_to_forward_prefetch"),
        "traffic",
        "memory",
    ),
    _bug("zero.fsdp_prefetch", "wrong divisor in bf16", of("reduce_scatter_single", SUMMED), "parity"),
    _bug("zero.fsdp_prefetch", "gathered off by one shard", of("all_gather_single", rotated), "parity"),
]
_DEEPSPEED = [
    Bug(f"{name}, {stage}", "zero.deepspeed", parameters, patch, red)
    for stage, parameters in _STAGES.items()
    for name, patch, red in (
        ("gathered off by one shard", of("all_gather_single", rotated), ("parity", "wrong")),
        ("optimizer state for all ranks", state_for_all(SGD), ("memory",)),
        ("lowest bit flips once", transient("all_gather_single", 2), ("repeat",)),
        ("gathered twice", of("all_gather_single", twice), ("traffic",)),
    )
]
# What only bf16 shows, or what updates show and weights hide.
_TRAINED = [
    *(
        _bug(f"zero.{step}", name, narrow.step_of(optimizer, make), "parity")
        for step, optimizer in (("fsdp_mixed", SGD), ("mixed_precision", ADAM))
        for name, make in (
            ("masters never updated", never),
            ("first masters never updated", narrow.all_but_the_first),
            ("rank 1 loses an update", narrow.second_lost_on_rank_1),
        )
    ),
    _bug("zero.mixed_precision", "Adam's count stuck", narrow.step_of(ADAM, narrow.count_stuck), "parity"),
    _bug("zero.mixed_precision", "Adam's count stops", narrow.step_of(ADAM, narrow.count_stops), "parity"),
    _bug("zero.mixed_precision", "no weight decays", narrow.step_of(ADAM, narrow.undecayed), "parity"),
    _bug("zero.mixed_precision", "copies of the step before", narrow.stale_copies, "parity"),
    _bug(
        "zero.fsdp_mixed",
        "gathered as in the step before",
        narrow.of("all_gather_single", narrow.stale),
        "parity",
    ),
    _bug(
        "zero.zero1",
        "gathered in bf16 as in the step before",
        narrow.of("all_gather_single", narrow.stale),
        "parity",
    ),
    *(
        _bug(
            f"zero.{step}",
            "rank 1 loses an update in bf16",
            narrow.step_of(SGD, narrow.of_bf16_weights(narrow.second_lost_on_rank_1)),
            "parity",
        )
        for step in ("zero1", "zero3", "fsdp")
    ),
    *(
        _bug(f"zero.{step}", "gathered twice in bf16", narrow.of("all_gather_single", twice), "traffic")
        for step in ("zero1", "fsdp")
    ),
    _bug(
        "zero.fsdp",
        "a number gathered in bf16 is always off",
        narrow.of("all_gather_single", flipped_in_call(None, bit=2)),
        "repeat",
    ),
    _bug(
        "zero.zero1",
        "sums in bf16 cut off",
        narrow.of("reduce_scatter_single", narrow.truncated),
        "wrong",
    ),
]
_USUAL = [
    _bug(
        "zero.ddp", "no_sync synchronises", ddp("no_sync", lambda _: lambda _self: nullcontext()), "traffic"
    ),
    _bug("zero.ddp", "last micro-batch not synchronised", ddp("no_sync", for_good), "parity", "traffic"),
    _bug("zero.ddp", "sum in place of mean", hooked(sum_hook), "parity"),
    _bug("zero.ddp", "reduced in bf16", hooked(bf16_hook), "parity", "traffic"),
    _bug("zero.ddp", "last bucket not exchanged", hooked(late_hook), "parity", "traffic"),
    _bug("zero.ddp", "buckets ignored", ddp("__init__", told(bucket_cap_mb=25)), "traffic"),
    _bug("zero.ddp", "a bit of rank 1 always flips", of("all_reduce", flipped_always), "wrong"),
    _bug("zero.zero1", "wrong divisor", of("reduce_scatter_single", SUMMED), "parity"),
    _bug("zero.zero1", "no all-gather", of("all_gather_single", dropped), "parity", "traffic", "wrong"),
    _bug("zero.zero1", "gathered off by one shard", of("all_gather_single", rotated), "parity", "wrong"),
    _bug("zero.zero2", "shard of the next rank", of("reduce_scatter_single", next_shard), "parity", "wrong"),
    _bug("zero.zero2", "reduced twice", of("reduce_scatter_single", twice), "traffic"),
    _bug("zero.zero2", "reduced in bf16", of("reduce_scatter_single", narrowed), "parity", "traffic"),
    _bug("zero.zero3", "parameters never freed", NEVER_FREED, "memory"),
    _bug(
        "zero.zero3",
        "not gathered for backward",
        of("all_gather_single", only_with_grad),
        "parity",
        "traffic",
    ),
    _bug("zero.zero3", "wrong divisor", of("reduce_scatter_single", SUMMED), "parity"),
    _bug("zero.zero_redundancy", "no broadcast", of("broadcast", dropped), "parity", "traffic"),
    _bug("zero.zero_redundancy", "broadcast by the next rank", of("broadcast", next_root), "parity", "wrong"),
    _bug("zero.zero_redundancy", "sum in place of mean", hooked(sum_hook), "parity"),
    _bug("zero.fsdp", "wrong divisor in bf16", of("reduce_scatter_single", SUMMED), "parity"),
    _bug("zero.fsdp", "gathered off by one shard", of("all_gather_single", rotated), "parity", "wrong"),
    _bug("zero.fsdp", "never resharded", KEPT_WHOLE, "traffic", "memory"),
    _bug(
        "zero.hsdp",
        "replicas not reduced",
        of("all_reduce", dropped_in_groups),
        "parity",
        "traffic",
        "wrong",
        size=4,
    ),
    _bug("zero.hsdp", "never resharded", KEPT_WHOLE, "traffic", "memory", size=4),
    _bug("zero.hsdp", "wrong divisor in bf16", of("reduce_scatter_single", SUMMED), "parity", size=4),
    _bug(
        "zero.mixed_precision",
        "reduced in bf16",
        of("reduce_scatter_single", narrowed),
        "parity",
        "traffic",
    ),
    _bug("zero.mixed_precision", "wrong divisor", of("reduce_scatter_single", SUMMED), "parity"),
    _bug("zero.mixed_precision", "no all-gather", of("all_gather_single", dropped), "traffic", "wrong"),
    _bug("zero.recompute", "generator not restored", checkpointed(told(preserve_rng_state=False)), "parity"),
    _bug("zero.recompute", "other masks on rank 1 alone", drawn(1, lambda _: True), "parity"),
    _bug("zero.recompute", "nothing recomputed", checkpointed(not_at_all), "memory"),
    _bug("zero.recompute", "input kept in bf16", checkpointed(narrow_input), "parity"),
    _bug("zero.recompute", "second forward differs", checkpointed(other_input), "parity"),
    _bug("zero.overlap", "buckets ignored", ddp("__init__", told(bucket_cap_mb=25)), "traffic"),
    _bug("zero.overlap", "sum in place of mean", hooked(sum_hook), "parity"),
    *_TRANSIENTS,
    *_MEMORY,
    *_CAST,
    *_START,
    *_DEEPSPEED,
]
BUGS = [*map(_shallow, [*map(_plain, [*_USUAL, *_TRAINED]), *_REAL]), *map(_plain, [*_CEILING, *_DEEP])]
