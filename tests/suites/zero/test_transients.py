"""One lowest bit that flips once, anywhere: in any element of any exchange of any step of any technique."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fixtures.ranks.steps import Context
from fixtures.ranks.study.driver import EXACT, TRAINED, Run, run_once, same
from suites.zero.answers import replicated
from suites.zero.flat import Zero1, Zero2, Zero3
from suites.zero.held import RESHARDED, STAGES
from suites.zero.mixed import mixed_zero1
from suites.zero.recompute import Dropping, recomputed
from suites.zero.training import Task, Trained
from suites.zero.wrapped import FullySharded, ShardedOptimizer, on_mesh
from tests.fixtures.ranks.gloo_world import run_world
from tests.teeth.bug import replaced
from tests.teeth.patches.flips import OUTPUTS, flipped_in_call
from tests.teeth.patches.zero import hooked, mean_hook

SIZE = 2
Make = Callable[[Task], Trained[Any]]
Places = Mapping[str, list[int]]  # by call of torch.distributed, the elements of what each one delivered


def flat(stage: type[Zero1]) -> Make:
    return lambda task: Trained(task, partial(stage, task), STAGES[1])


# What trains, and in which dtype.
FLAT: dict[str, tuple[Make, torch.dtype]] = {
    "zero1": (flat(Zero1), EXACT),
    "zero2": (flat(Zero2), EXACT),
    "zero3": (flat(Zero3), EXACT),
    "zero3 in bf16": (flat(Zero3), TRAINED),
    "mixed_precision": (mixed_zero1, TRAINED),
}
BUCKETS: dict[str, Make] = {
    "ddp": replicated,
    "no_sync": lambda task: replicated(replace(task, micro_batches=2)),
    "recompute": lambda task: recomputed(Dropping(**vars(task)))[0],
    "zero_redundancy": lambda task: replicated(task, ShardedOptimizer),
}
SHARDS: dict[str, tuple[tuple[int, ...], bool]] = {
    "fsdp, resharded": ((2,), True),
    "fsdp, kept": ((2,), False),
    "hsdp, each rank a replica": ((2, 1), True),
}
EXCHANGES = ("all_gather_single", "reduce_scatter_single", "all_reduce", "broadcast")


def places(run: Callable[[], Run[Any]]) -> tuple[Run[Any], Places]:
    """A healthy run, and where a bit of it could flip."""
    found: dict[str, list[int]] = {name: [] for name in EXCHANGES}

    def noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            output = args[0] if args else next(kwargs[key] for key in OUTPUTS if key in kwargs)
            found[name].append(output.numel())
            return original(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for name in EXCHANGES:
            stack.enter_context(replaced(dist, name, partial(noted, name)))
        return run(), found


def swept(technique: Trained[Any], dtype: torch.dtype) -> tuple[int, list[str]]:
    """How many flips were tried, and which of them no entry tells."""

    def run() -> Run[Any]:
        done = run_once(technique, dtype)
        technique.close(done.kept)
        return done

    right, found = places(run)
    assert not differing(right, run()), "a healthy run does not repeat"
    tried, missed = 0, []
    for name, calls in found.items():
        for number, elements in enumerate(calls, 1):
            # All of the last call's, which has the least time to show; of each other call one, in turn.
            for element in range(elements) if number == len(calls) else [number % elements]:
                with replaced(dist, name, flipped_in_call(number, element)):
                    wrong = differing(right, run())
                tried += 1
                if dist.get_rank() == 1 and not wrong:
                    missed.append(f"{name}, call {number} of {len(calls)}, element {element}")
    return tried, missed


def differing(right: Run[Any], again: Run[Any]) -> list[str]:
    return [entry["what"] for entry in same(right, again) if entry["error"] > entry["tolerance"]]


def swept_on_mesh(ctx: Context, shape: tuple[int, ...], reshard: bool) -> tuple[int, list[str]]:
    found: list[tuple[int, list[str]]] = []

    def work(mesh: DeviceMesh) -> dict[str, Any]:
        task = small(ctx)
        make = partial(FullySharded, task, mesh, reshard)
        found.append(swept(Trained(task, make, RESHARDED), EXACT))
        return {}

    on_mesh(ctx, shape, work)
    return found[0]


def small(ctx: Context) -> Task:
    return Task(ctx, width=2, layers=2, rows=2, steps=2)


def none_missed(sweep: Callable[[Context], tuple[int, list[str]]], least: int) -> None:
    for tried, missed in run_world(SIZE, sweep):
        assert tried >= least
        assert missed == []


@pytest.mark.parametrize("name", FLAT)
def test_in_flat_buffers(name: str) -> None:
    make, dtype = FLAT[name]
    none_missed(lambda ctx: swept(make(small(ctx)), dtype), least=3 + 12 + 3 + 24)


@pytest.mark.parametrize("name", BUCKETS)
def test_in_buckets(name: str) -> None:
    def sweep(ctx: Context) -> tuple[int, list[str]]:
        with hooked(mean_hook)():
            return swept(BUCKETS[name](small(ctx)), EXACT)

    none_missed(sweep, least=2 + 24)


@pytest.mark.parametrize("name", SHARDS)
def test_in_shards(name: str) -> None:
    none_missed(lambda ctx: swept_on_mesh(ctx, *SHARDS[name]), least=3 + 24)
