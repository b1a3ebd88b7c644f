"""Seeded bugs of large messages: small steps do not see them, those at the size of training do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fixtures.check.plan import Case
from suites.zero import flat, test_zero
from tests.teeth.bug import Bug, Maker, Patch, replaced
from tests.teeth.patches.large import copied_out, cut_off, in_bucket, in_output, swapped, unfinished
from thresholds.hardware import MODELS


def _parameters(case: Case, size: int) -> dict[str, Any]:
    """What a CPU is asked for."""
    scaled = case.scaled(MODELS["gloo"], size) if case.scaled else {}
    return {**case.parameters, **scaled, "at_size": True}


_SMALL = {case.step: dict(case.parameters) for case in test_zero.STEPS}
_LARGE = {case.step: case for case in test_zero.AT_SIZE}


def _bug(step: str, name: str, patch: Patch, *red: str, size: int = 2) -> Bug:
    return Bug(name, step, _parameters(_LARGE[step], size), patch, red, size)


def _of(owner: Any, name: str, make: Maker) -> Patch:
    return lambda: replaced(owner, name, make)


BUGS = [
    _bug("zero.ddp", "bucket put back too early", in_bucket(unfinished), "parity"),
    _bug("zero.ddp", "chunks of a bucket swapped", in_bucket(swapped), "parity"),
    _bug("zero.zero1", "shard read too early", _of(flat, "reduce_scatter", in_output(unfinished)), "parity"),
    _bug("zero.zero1", "gathered chunks swapped", _of(flat, "all_gather", in_output(swapped)), "parity"),
    _bug("zero.zero2", "end of a shard lost", _of(flat, "reduce_scatter", in_output(cut_off)), "parity"),
    _bug("zero.zero3", "parameters read too early", _of(flat, "all_gather", in_output(unfinished)), "parity"),
    _bug("zero.fsdp", "copied out too early", copied_out(unfinished), "parity"),
    _bug("zero.fsdp", "gathered chunks swapped", copied_out(swapped), "parity"),
    _bug("zero.hsdp", "copied out too early", copied_out(cut_off), "parity", size=4),
]


def in_small(bug: Bug) -> Bug:
    """The same bug in the small step, which does not see it."""
    return replace(bug, name=f"{bug.name}, small", parameters=_SMALL[bug.step], red=())
