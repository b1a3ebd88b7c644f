"""Every iteration that is timed is compared, and not the last ones alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.ranks.collectives.collectives import Collective
from fixtures.ranks.steps import Context
from fixtures.ranks.study.dealt import Dealt
from fixtures.ranks.study.pattern import Pattern, timed
from fixtures.wire.collectives import COLLECTIVES
from suites.collectives import steps
from tests.fixtures.ranks.gloo_world import run_world
from tests.teeth.bug import replaced, replacing
from tests.teeth.patches.flips import flipped_in_call


def repeated(ctx: Context) -> dict[str, list[Any]]:
    """What is said of every collective that is repeated without a fault, in two dtypes and odd lengths."""
    said = {}
    for name, dtype in itertools.product(COLLECTIVES, ("uint8", "fp32")):
        works = [Collective(ctx, name, dtype, "sum", 4 * count) for count in (1, 13)]
        said[f"{name} {dtype}"] = timed(ctx, Pattern(works), name, budget_s=0.0).wrong
    matrix = [[0, 3, 5], [2, 0, 0], [0, 0, 4]]
    said["dealt"] = timed(ctx, Pattern([Dealt(ctx, "dealt", matrix)]), "dealt", budget_s=0.0).wrong
    return said


def test_healthy_collectives_have_right_sums() -> None:
    for said in run_world(3, repeated):
        assert [name for name, found in said.items() if found] == []
        assert len(said) == 2 * len(COLLECTIVES) + 1


def flipped_once(ctx: Context, name: str, call: str, number: int) -> list[tuple[Any, ...]]:
    """What this rank says of a sweep in which a bit of rank 1's flips in one of some 30 iterations."""
    with replaced(dist, call, flipped_in_call(number, element=5, bit=3)):
        said = steps.sweep(
            ctx, collective=name, dtype="int64", sizes=[1536], iterations=20, budget_s=0.0, copy=False
        )
    return [
        (one["collective"], one["iteration"], one["looks_like"], one["source_rank"]) for one in said["wrong"]
    ]


def late(away: int) -> Callable[..., Any]:
    """Give rank 1 what arrived so many exchanges before, as from a buffer that is read too late."""
    arrived: list[torch.Tensor] = []

    def delivered(original: Callable[..., Any], output: torch.Tensor, *others: Any, **more: Any) -> None:
        original(output, *others, **more)
        arrived.append(output.clone())
        if dist.get_rank() == 1 and len(arrived) > away:
            output.copy_(arrived[-1 - away])

    return replacing(delivered)


def stale(ctx: Context) -> dict[str, set[str]]:
    """What this rank says of two kinds of exchanges when rank 1 is given earlier data."""
    found = {}
    for away in (1, 2, 3, 4, 8):
        works = Collective(ctx, "all_to_all", "int64", "sum", 24), Dealt(ctx, "dealt", [[3, 9], [9, 3]])
        for work in works:
            with replaced(dist, "all_to_all_single", late(away)):
                said = timed(ctx, Pattern([work]), "late", budget_s=0.0).wrong
            found[f"{type(work).__name__} {away}"] = {one["looks_like"].split()[0] for one in said}
    return found


def test_what_arrived_in_any_earlier_iteration_is_found() -> None:
    first, second = run_world(2, stale)
    assert {key: said for key, said in first.items() if said} == {}
    assert {key: said for key, said in second.items() if said != {"iteration"}} == {}


def spilled(ctx: Context) -> list[tuple[Any, ...]]:
    """What this rank says of a sweep in which one iteration in some 30 writes behind rank 1's output."""
    calls = itertools.count()

    def spilling(original: Callable[..., Any], output: torch.Tensor, *others: Any, **more: Any) -> Any:
        done = original(output, *others, **more)
        if next(calls) == 7 and ctx.rank == 1:
            output.as_strided((2,), (1,), output.storage_offset() + output.numel()).zero_()
        return done

    with replaced(dist, "all_gather_single", replacing(spilling)):
        said = steps.sweep(
            ctx, collective="all_gather", dtype="int64", sizes=[1536], iterations=20, budget_s=0.0, copy=False
        )
    return [(one["collective"], one["count"], one["looks_like"]) for one in said["wrong"]]


def test_what_is_written_behind_an_output_once_while_it_is_timed_is_found() -> None:
    first, second, third = run_world(3, spilled)
    assert first == third == []
    assert second == [("beside the output of all_gather", 2, "written behind its end")]


@pytest.mark.parametrize(
    ("name", "call", "number", "source"),
    [
        ("all_to_all", "all_to_all_single", 7, None),
        ("broadcast", "broadcast", 7, 0),
        ("reduce", "reduce", 8, None),  # to rank 1
    ],
)
def test_a_bit_that_flips_once_while_a_collective_is_timed_is_found(
    name: str, call: str, number: int, source: int | None
) -> None:
    first, second, third = run_world(3, lambda ctx: flipped_once(ctx, name, call, number))
    assert first == third == []
    assert second == [(name, number - 1, "bit 3 of one word flipped", source)]
