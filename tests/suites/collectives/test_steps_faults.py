"""Faults planted in one rank's torch.distributed are reported with rank, offset and what they look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.ranks.exact.dtypes import FORMATS
from fixtures.ranks.exact.expected import moved_by
from fixtures.ranks.steps import Context
from suites.collectives import steps
from tests.fixtures.ranks.gloo_world import replace, run_world

COUNT = 100
Corruption = dict[str, Any]
Patch = Callable[..., Any]


def after(name: str, damage: Callable[..., None], calls: range = range(1000)) -> None:
    """Let the collective do its work, then damage what it left; only in the numbered calls."""
    real, counter = getattr(dist, name), iter(range(1000))

    def patched(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if next(counter) in calls:
            damage(*args)
        return result

    replace(name, patched)


def before(name: str, damage: Callable[..., None], calls: range = range(1000)) -> None:
    """Damage what goes in."""
    real, counter = getattr(dist, name), iter(range(1000))

    def patched(*args: Any, **kwargs: Any) -> Any:
        if next(counter) in calls:
            damage(*args)
        return real(*args, **kwargs)

    replace(name, patched)


def drop(name: str, calls: range) -> None:
    """Do nothing at all in the numbered calls."""
    real, counter = getattr(dist, name), iter(range(1000))
    replace(name, lambda *a, **k: None if next(counter) in calls else real(*a, **k))


def reported(
    size: int, collective: str, dtype: str, plant: Callable[[Context], None], op: str = "sum"
) -> list[list[Corruption]]:
    """What every rank reports of four iterations with the fault planted in all ranks that `plant` picks."""

    def run(ctx: Context) -> Any:
        plant(ctx)
        return steps.exact(ctx, collective=collective, dtype=dtype, op=op, elements=[COUNT], iterations=4)[
            "wrong"
        ]

    return run_world(size, run)


def flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    size = tensor.element_size()
    tensor.view(torch.uint8)[element * size + bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("dtype", [name for name in FORMATS if not name.startswith("fp8")])
def test_the_lowest_bit_flipped_after_one_all_reduce_of_one_rank(dtype: str) -> None:
    def plant(ctx: Context) -> None:
        if ctx.rank == 1:
            after("all_reduce", lambda tensor: flip(tensor, 5, 0), range(2, 3))

    healthy, [wrong] = reported(2, "all_reduce", dtype, plant)
    assert healthy == []
    assert wrong["rank"] == 1
    assert (wrong["collective"], wrong["dtype"], wrong["iteration"]) == ("all_reduce", dtype, 2)
    assert (wrong["first_offset"], wrong["count"], wrong["looks_like"]) == (5, 1, "bit 0 flipped")
    assert wrong["size_bytes"] == COUNT * FORMATS[dtype].item_bytes
    assert int(wrong["expected"], 16) ^ int(wrong["found"], 16) == 1
    assert len(wrong["found"]) == 2 + FORMATS[dtype].width // 4


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "uint8"])
def test_a_chunk_in_another_rank_s_place(dtype: str) -> None:
    def plant(ctx: Context) -> None:
        def misplace(output: torch.Tensor, _: torch.Tensor) -> None:
            output[COUNT : 2 * COUNT] = output[2 * COUNT :].clone()

        if ctx.rank == 0:
            after("all_gather_single", misplace, range(1, 2))

    [wrong], healthy, also_healthy = reported(3, "all_gather", dtype, plant)
    assert healthy == also_healthy == []
    assert wrong["first_offset"] == COUNT
    assert wrong["looks_like"] == "rank 2's chunk"
    assert (wrong["rank"], wrong["source_rank"], wrong["iteration"]) == (0, 1, 1)


def test_swapped_chunks_name_no_single_source() -> None:
    def plant(ctx: Context) -> None:
        def swap(output: torch.Tensor, _: torch.Tensor) -> None:
            output.copy_(torch.cat([output[COUNT : 2 * COUNT], output[:COUNT], output[2 * COUNT :]]))

        if ctx.rank == 2:
            after("all_gather_single", swap, range(1, 2))

    [wrong] = reported(3, "all_gather", "fp16", plant)[2]
    assert (wrong["first_offset"], wrong["count"]) == (0, 2 * COUNT)
    assert (wrong["looks_like"], wrong["source_rank"]) == ("rank 1's chunk", None)


def test_one_rank_that_sends_the_last_iteration_again() -> None:
    def plant(ctx: Context) -> None:
        kept: list[torch.Tensor] = []

        def stale(_: torch.Tensor, sent: torch.Tensor) -> None:
            kept.append(sent.clone())
            if len(kept) == 4:
                sent.copy_(kept[2])

        if ctx.rank == 1:
            before("all_to_all_single", stale)

    for rank, [wrong] in enumerate(reported(3, "all_to_all", "fp32", plant)):
        assert (wrong["first_offset"], wrong["count"]) == (COUNT, COUNT)
        assert wrong["looks_like"] == "iteration 2 again"
        assert (wrong["rank"], wrong["source_rank"], wrong["iteration"]) == (rank, 1, 3)


@pytest.mark.parametrize(
    ("dtype", "op"), [("fp32", "sum"), ("int32", "sum"), ("bf16", "sum"), ("fp64", "avg"), ("uint8", "sum")]
)
def test_a_contribution_that_is_skipped(dtype: str, op: str) -> None:
    def plant(ctx: Context) -> None:
        if ctx.rank == 1:
            before("all_reduce", lambda tensor: tensor.zero_(), range(2, 3))

    for rank, [wrong] in enumerate(reported(3, "all_reduce", dtype, plant, op)):
        assert wrong["looks_like"] == "rank 1's contribution missing"
        assert (wrong["rank"], wrong["source_rank"], wrong["iteration"]) == (rank, 1, 2)


@pytest.mark.parametrize("dtype", ["fp32", "int64"])
def test_a_contribution_that_counts_twice(dtype: str) -> None:
    def plant(ctx: Context) -> None:
        if ctx.rank == 2:
            before("all_reduce", lambda tensor: tensor.mul_(2), range(1, 2))

    for [wrong] in reported(3, "all_reduce", dtype, plant):
        assert (wrong["looks_like"], wrong["source_rank"]) == ("rank 2's contribution counted twice", 2)


@pytest.mark.parametrize("dtype", ["fp32", "int32"])
def test_a_contribution_of_the_iteration_before(dtype: str) -> None:
    def plant(ctx: Context) -> None:
        kept: list[torch.Tensor] = []

        def stale(tensor: torch.Tensor) -> None:
            kept.append(tensor.clone())
            if len(kept) == 3:
                tensor.copy_(kept[1])

        if ctx.rank == 0:
            before("all_reduce", stale)

    for [wrong] in reported(3, "all_reduce", dtype, plant):
        assert (wrong["looks_like"], wrong["source_rank"]) == ("rank 0's contribution of iteration 1", 0)


def test_an_iteration_that_never_happens() -> None:
    def no_gather(ctx: Context) -> None:
        drop("all_gather_single", range(2, 3))

    def no_reduce(ctx: Context) -> None:
        drop("all_reduce", range(2, 3))

    for [wrong] in reported(2, "all_gather", "fp32", no_gather):
        assert (wrong["iteration"], wrong["looks_like"], wrong["count"]) == (2, "never written", 2 * COUNT)
    for [wrong] in reported(2, "all_reduce", "fp32", no_reduce):
        assert (wrong["iteration"], wrong["looks_like"]) == (2, "this rank's own input, not reduced")


def test_the_output_of_the_iteration_before() -> None:
    def plant(ctx: Context) -> None:
        kept: list[torch.Tensor] = []

        def stale(output: torch.Tensor, *_: Any, **__: Any) -> None:
            kept.append(output.clone())
            if len(kept) == 4:
                output.copy_(kept[0])

        if ctx.rank == 1:
            after("reduce_scatter_single", stale)

    [wrong] = reported(2, "reduce_scatter", "bf16", plant)[1]
    assert (wrong["looks_like"], wrong["iteration"], wrong["first_offset"]) == ("iteration 0 again", 3, 0)


def test_a_broadcast_from_the_wrong_root() -> None:
    def plant(ctx: Context) -> None:
        real = dist.broadcast
        kept: list[int] = []

        def misrouted(tensor: torch.Tensor, src: int) -> None:
            kept.append(src)
            if len(kept) == 2:
                src = src + 1
                if ctx.rank == src:  # as if this rank had thought itself the root
                    tensor.copy_(payload(ctx, src, len(kept) - 1))
            real(tensor, src=src)

        replace("broadcast", misrouted)

    for rank, [wrong] in enumerate(reported(3, "broadcast", "int64", plant)):
        assert (wrong["looks_like"], wrong["source_rank"], wrong["iteration"]) == ("rank 2's chunk", 1, 1)
        assert (wrong["rank"], wrong["count"]) == (rank, COUNT)


def payload(ctx: Context, rank: int, tag: int) -> torch.Tensor:
    return moved_by(FORMATS["int64"], ctx.seed, rank, tag, start=0, count=COUNT, device=ctx.device)


def test_a_shift_a_zeroed_tail_and_the_wrong_chunk() -> None:
    def shift(ctx: Context) -> None:
        real = dist.batch_isend_irecv

        def shifted(pair: list[Any]) -> list[Any]:
            for work in real(pair):
                work.wait()
            pair[0].tensor[:-1] = pair[0].tensor[1:].clone()
            return []

        if ctx.rank == 1:
            replace("batch_isend_irecv", shifted)

    def tail(ctx: Context) -> None:
        if ctx.rank == 0:
            after("scatter", lambda tensor, _: tensor[60:].zero_(), range(2, 3))

    def wrong_chunk(ctx: Context) -> None:
        def take(output: torch.Tensor, sent: torch.Tensor) -> None:
            output[:COUNT] = sent[COUNT : 2 * COUNT]

        if ctx.rank == 0:
            after("all_to_all_single", take, range(1))

    wrong = reported(2, "send_recv", "fp8_e4m3", shift)[1][0]
    assert (wrong["looks_like"], wrong["source_rank"]) == ("rank 0's data shifted by +1 elements", 0)
    wrong = reported(2, "scatter", "fp32", tail)[0][0]
    assert (wrong["looks_like"], wrong["first_offset"]) == ("truncated: zeros from element 60 to the end", 60)
    wrong = reported(2, "all_to_all", "fp32", wrong_chunk)[0][0]
    assert (wrong["looks_like"], wrong["source_rank"]) == ("rank 0's chunk for rank 1", 0)


def test_a_barrier_that_holds_nobody() -> None:
    def plant(ctx: Context) -> None:
        replace("barrier", lambda **_: None)

    wrong = [corruption for rank in reported(3, "barrier", "int32", plant) for corruption in rank]
    assert wrong
    assert all("us before rank" in corruption["looks_like"] for corruption in wrong)


def test_at_most_eight_corruptions_are_reported() -> None:
    def run(ctx: Context) -> Any:
        after("all_reduce", lambda tensor: flip(tensor, 0, 3))
        return steps.exact(ctx, collective="all_reduce", dtype="int32", elements=[9], iterations=20)

    assert [len(rank["wrong"]) for rank in run_world(2, run)] == [8, 8]


def test_a_sweep_under_corruption_ends_and_reports_it() -> None:
    """Its ranks agree on counts over the same fabric, and must not part ways."""

    def run(ctx: Context) -> Any:
        if ctx.rank == 1:
            after("all_reduce", lambda tensor, **_: flip(tensor, 0, 20))
        sizes = [1024, 1 << 16]
        return steps.sweep(
            ctx, collective="all_reduce", dtype="int32", sizes=sizes, iterations=12, budget_s=2, copy=False
        )

    healthy, corrupt = run_world(2, run)
    assert healthy["wrong"] == []
    assert [wrong["size_bytes"] for wrong in corrupt["wrong"]] == [1024, 1024, 1 << 16, 1 << 16]
    assert all(wrong["looks_like"] == "bit 20 flipped" for wrong in corrupt["wrong"])
