"""Deliberate faults: the self-check plants them in one rank while a real step runs there, and removes them.

Only the step `selfcheck.planted` leads here: steps that judge nodes have no parameter for a fault, nor has
the code that passes requests to ranks. No environment variable, file or option is read. A fault lasts for one
run of one step, in one of two ranks on CPUs; no job that judges nodes is like that.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from fixtures.ranks import timing
from fixtures.ranks.collectives.calls import CALLS, Call
from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study.calibrated import calibrated_work

STEPS = frozenset({"collectives.exact", "collectives.sweep", "nodes.matmul"})
RANKS = 2
_FLIPPED_CALL = 5  # the first few are of one element, and the payload changes with each
_LAST_PHASE = 2  # a rank that hangs enters the first phase of its step, and never this one
_BEFORE = (dict(CALLS), timing.measure)  # as it was when this process began

Result = dict[str, Any]
Plant = Mapping[str, Any]
Spoil = Callable[[Result], None]


class RefusedError(ValueError):
    """A fault was requested where none is allowed."""


def run(ctx: Context, name: str, parameters: Mapping[str, Any], plant: Plant) -> Result:
    """Run a step with a fault in the rank that `plant` names; raise if any of it is left afterwards."""
    if name not in STEPS:
        raise RefusedError(f"no fault may be planted in {name!r}")
    if ctx.size != RANKS or ctx.device.type != "cpu":
        raise RefusedError(f"faults are planted on {RANKS} ranks on CPUs, not on {ctx.size} on {ctx.device}")
    fault, spoil = _FAULTS[plant["kind"]] if plant["rank"] == ctx.rank else _HEALTHY
    with fault(ctx, plant) as sick:
        result = REGISTRY[name](sick, **parameters)
    if (dict(CALLS), timing.measure) != _BEFORE:
        raise RuntimeError(f"{plant['kind']}: what was planted for one step is still there after it")
    spoil(result)
    return result


@contextmanager
def _flipped_bit(ctx: Context, plant: Plant) -> Iterator[Context]:
    """The lowest bit of the middle element of what one all_gather leaves on this rank of its own."""
    calls = 0

    def flipping(call: Call) -> None:
        nonlocal calls
        before(call)
        calls += 1
        if calls == _FLIPPED_CALL:
            own = call.received.view(-1).chunk(ctx.size)[ctx.rank]
            own.view(torch.uint8)[own.numel() // 2 * own.element_size()] ^= 1

    with _swapped(CALLS, "all_gather", flipping) as before:
        yield ctx


@contextmanager
def _delay(ctx: Context, plant: Plant) -> Iterator[Context]:
    """Every iteration of whatever is timed lasts so much longer on this rank."""

    def slower(ctx: Context, work: timing.Work, *rest: Any) -> timing.Samples:  # noqa: ANN401
        def late(i: int) -> None:
            calibrated_work(time.perf_counter() + plant["seconds"])
            work.run(i)

        slow = SimpleNamespace(
            prepare=work.prepare, run=late, host_clock=work.host_clock, lockstep=work.lockstep
        )
        samples: timing.Samples = measured(ctx, slow, *rest)
        return samples

    with _swapped(vars(timing), "measure", slower) as measured:
        yield ctx


@contextmanager
def _hang(ctx: Context, plant: Plant) -> Iterator[Context]:
    """This rank does not arrive in a phase in which the other one waits for it."""
    phases = 0

    def phase(name: str) -> None:
        nonlocal phases
        phases += 1
        while phases == _LAST_PHASE:
            signal.pause()  # until the job is ended
        ctx.progress.phase(name)

    stuck: Any = SimpleNamespace(phase=phase, done=ctx.progress.done, due=ctx.progress.due)
    yield replace(ctx, progress=stuck)


def _missing_sample(result: Result) -> None:
    """This rank leaves out the last sample of what it timed."""
    result["sizes"][0]["seconds"].pop()


def _no_number(result: Result) -> None:
    """The last sample of this rank is no number."""
    result["sizes"][0]["seconds"][-1] = math.nan


@contextmanager
def _nothing(ctx: Context, plant: Plant) -> Iterator[Context]:
    yield ctx


def _as_it_is(result: Result) -> None:
    pass


_HEALTHY = (_nothing, _as_it_is)
# By kind: what is planted while the step runs, and what is done to its result.
_FAULTS: Mapping[str, tuple[Callable[[Context, Plant], AbstractContextManager[Context]], Spoil]] = {
    "flipped bit": (_flipped_bit, _as_it_is),
    "delay": (_delay, _as_it_is),
    "hang": (_hang, _as_it_is),
    "missing sample": (_nothing, _missing_sample),
    "sample that is no number": (_nothing, _no_number),
}


@contextmanager
def _swapped(names: dict[str, Any], name: str, other: Any) -> Iterator[Any]:  # noqa: ANN401
    """Replace the value of a name inside a block; yields the original value."""
    before = names[name]
    names[name] = other
    try:
        yield before
    finally:
        names[name] = before
