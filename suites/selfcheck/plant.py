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
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from fixtures.ranks import timing
from fixtures.ranks.collectives.calls import CALLS, Call
from fixtures.ranks.steps import REGISTRY, Context, Progress
from fixtures.ranks.study.calibrated import calibrated_work

STEPS = frozenset({"collectives.exact", "collectives.sweep", "nodes.matmul"})
RANKS = 2
_FLIPPED_CALL = 5  # the first few are of one element, and the payload changes with each
_LAST_PHASE = 2  # a rank that hangs enters the first phase of its step, and never this one
_BEFORE = (dict(CALLS), timing.measure)  # as it was when this process began

Result = dict[str, Any]


class RefusedError(ValueError):
    """A fault was requested where none is allowed."""


def run(ctx: Context, name: str, parameters: Mapping[str, Any], plant: Mapping[str, Any]) -> Result:
    """Run a step with a fault in the rank that `plant` names; raise if any of it is left afterwards."""
    if name not in STEPS:
        raise RefusedError(f"no fault may be planted in {name!r}")
    if ctx.size != RANKS or ctx.device.type != "cpu":
        raise RefusedError(f"faults are planted on {RANKS} ranks on CPUs, not on {ctx.size} on {ctx.device}")
    fault = _FAULTS[plant["kind"]] if plant["rank"] == ctx.rank else _nothing
    with fault(ctx, plant) as (sick, spoil):
        result = REGISTRY[name](sick, **parameters)
    if (dict(CALLS), timing.measure) != _BEFORE:
        raise RuntimeError(f"{plant['kind']}: what was planted for one step is still there after it")
    return spoil(result)


Spoil = Callable[[Result], Result]
Fault = Iterator[tuple[Context, Spoil]]


def _as_it_is(result: Result) -> Result:
    return result


@contextmanager
def _nothing(ctx: Context, plant: Mapping[str, Any]) -> Fault:
    yield ctx, _as_it_is


@contextmanager
def _flipped_bit(ctx: Context, plant: Mapping[str, Any]) -> Fault:
    """The lowest bit of the middle element of what one all_reduce leaves on this rank."""
    calls = 0

    def flipping(call: Call) -> None:
        nonlocal calls
        before(call)
        calls += 1
        if calls == _FLIPPED_CALL:
            middle = call.received.numel() // 2 * call.received.element_size()
            call.received.view(-1).view(torch.uint8)[middle] ^= 1

    with _swapped(CALLS, "all_reduce", flipping) as before:
        yield ctx, _as_it_is


@contextmanager
def _delay(ctx: Context, plant: Mapping[str, Any]) -> Fault:
    """Every iteration of whatever is timed lasts so much longer on this rank."""

    def slower(ctx: Context, work: timing.Work, *rest: Any) -> timing.Samples:  # noqa: ANN401
        samples: timing.Samples = measured(ctx, _Slow(work, plant["seconds"]), *rest)
        return samples

    with _swapped(vars(timing), "measure", slower) as measured:
        yield ctx, _as_it_is


class _Slow:
    """Work to repeat, with a pause in each iteration."""

    def __init__(self, work: timing.Work, seconds: float) -> None:
        self._work, self._seconds = work, seconds
        self.host_clock, self.lockstep = work.host_clock, work.lockstep

    def prepare(self, i: int) -> None:
        """As healthy ranks do."""
        self._work.prepare(i)

    def run(self, i: int) -> None:
        """Begin late."""
        calibrated_work(time.perf_counter() + self._seconds)
        self._work.run(i)


@contextmanager
def _hang(ctx: Context, plant: Mapping[str, Any]) -> Fault:
    """This rank does not arrive in a phase in which the other one waits for it."""
    yield replace(ctx, progress=_Stuck(ctx.progress)), _as_it_is


class _Stuck:
    """A progress that does not return from the phase at which this rank hangs."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._phases = progress, 0

    def phase(self, name: str) -> None:
        """Enter it, or hang until the job is ended."""
        self._phases += 1
        if self._phases == _LAST_PHASE:
            while True:
                signal.pause()
        self._progress.phase(name)

    def done(self, count: int) -> None:
        """As healthy ranks do."""
        self._progress.done(count)

    def due(self, seconds: float) -> None:
        """As healthy ranks do."""
        self._progress.due(seconds)


@contextmanager
def _missing_sample(ctx: Context, plant: Mapping[str, Any]) -> Fault:
    """This rank leaves out the last sample of what it timed."""

    def spoil(result: Result) -> Result:
        result["sizes"][0]["seconds"].pop()
        return result

    yield ctx, spoil


@contextmanager
def _no_number(ctx: Context, plant: Mapping[str, Any]) -> Fault:
    """The last sample of this rank is no number."""

    def spoil(result: Result) -> Result:
        result["sizes"][0]["seconds"][-1] = math.nan
        return result

    yield ctx, spoil


_FAULTS = {
    "flipped bit": _flipped_bit,
    "delay": _delay,
    "hang": _hang,
    "missing sample": _missing_sample,
    "sample that is no number": _no_number,
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
