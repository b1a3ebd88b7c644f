"""Seeded bugs of data parallelism and ZeRO."""

from __future__ import annotations

from contextlib import nullcontext

from suites.zero.test_zero import OVERLAP, STEPS
from tests.teeth.bug import Bug, Patch
from tests.teeth.zero_patches import (
    bf16_hook,
    checkpointed,
    ddp,
    dropped,
    dropped_in_groups,
    flipped_always,
    flipped_once,
    for_good,
    hooked,
    kept_whole,
    late_hook,
    narrow_input,
    narrowed,
    never_freed,
    next_root,
    next_shard,
    not_at_all,
    of,
    one_bucket,
    only_with_grad,
    other_input,
    rotated,
    sum_hook,
    summed,
    twice,
)

_PARAMETERS = {case.step: case.parameters for case in [*STEPS, *OVERLAP]}


def _bug(step: str, name: str, patch: Patch, *red: str, size: int = 2) -> Bug:
    return Bug(name, step, _PARAMETERS[step], patch, red, size)


BUGS = [
    _bug(
        "zero.ddp", "no_sync synchronises", ddp("no_sync", lambda _: lambda _self: nullcontext()), "traffic"
    ),
    _bug("zero.ddp", "last micro-batch not synchronised", ddp("no_sync", for_good), "parity", "traffic"),
    _bug("zero.ddp", "sum in place of mean", hooked(sum_hook), "parity"),
    _bug("zero.ddp", "reduced in bf16", hooked(bf16_hook), "parity", "traffic"),
    _bug("zero.ddp", "last bucket not exchanged", hooked(late_hook), "parity", "traffic"),
    _bug("zero.ddp", "buckets ignored", ddp("__init__", one_bucket), "traffic"),
    _bug("zero.ddp", "a bit of rank 1 always flips", of("all_reduce", flipped_always), "wrong"),
    _bug("zero.zero1", "wrong divisor", of("reduce_scatter_single", summed), "parity"),
    _bug("zero.zero1", "no all-gather", of("all_gather_single", dropped), "parity", "traffic", "wrong"),
    _bug("zero.zero1", "gathered off by one shard", of("all_gather_single", rotated), "parity", "wrong"),
    _bug("zero.zero1", "a bit of rank 1 flips once", of("all_gather_single", flipped_once), "repeat"),
    _bug("zero.zero2", "shard of the next rank", of("reduce_scatter_single", next_shard), "parity", "wrong"),
    _bug("zero.zero2", "reduced twice", of("reduce_scatter_single", twice), "traffic"),
    _bug("zero.zero2", "reduced in bf16", of("reduce_scatter_single", narrowed), "parity", "traffic"),
    _bug("zero.zero3", "parameters never freed", never_freed, "memory"),
    _bug(
        "zero.zero3",
        "not gathered for backward",
        of("all_gather_single", only_with_grad),
        "parity",
        "traffic",
    ),
    _bug("zero.zero3", "wrong divisor", of("reduce_scatter_single", summed), "parity"),
    _bug("zero.zero_redundancy", "no broadcast", of("broadcast", dropped), "parity", "traffic"),
    _bug("zero.zero_redundancy", "broadcast by the next rank", of("broadcast", next_root), "parity", "wrong"),
    _bug("zero.zero_redundancy", "sum in place of mean", hooked(sum_hook), "parity"),
    _bug("zero.fsdp", "wrong divisor", of("reduce_scatter_single", summed), "parity"),
    _bug("zero.fsdp", "gathered off by one shard", of("all_gather_single", rotated), "parity", "wrong"),
    _bug("zero.fsdp", "never resharded", kept_whole, "traffic", "memory"),
    _bug(
        "zero.hsdp",
        "replicas not reduced",
        of("all_reduce", dropped_in_groups),
        "parity",
        "traffic",
        "wrong",
        size=4,
    ),
    _bug("zero.hsdp", "never resharded", kept_whole, "traffic", "memory", size=4),
    _bug("zero.hsdp", "wrong divisor", of("reduce_scatter_single", summed), "parity", size=4),
    _bug(
        "zero.mixed_precision",
        "reduced in bf16",
        of("reduce_scatter_single", narrowed),
        "parity",
        "traffic",
    ),
    _bug("zero.mixed_precision", "wrong divisor", of("reduce_scatter_single", summed), "parity"),
    _bug("zero.mixed_precision", "no all-gather", of("all_gather_single", dropped), "traffic", "wrong"),
    _bug("zero.recompute", "nothing recomputed", checkpointed(not_at_all), "memory"),
    _bug("zero.recompute", "input kept in bf16", checkpointed(narrow_input), "parity"),
    _bug("zero.recompute", "second forward differs", checkpointed(other_input), "parity"),
    _bug("zero.overlap", "buckets ignored", ddp("__init__", one_bucket), "traffic"),
    _bug("zero.overlap", "sum in place of mean", hooked(sum_hook), "parity"),
]
