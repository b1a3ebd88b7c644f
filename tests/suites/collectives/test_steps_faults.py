"""Faults planted in one rank's torch.distributed are reported with rank, offset and what they look like."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.ranks.exact.dtypes import FORMATS
from fixtures.ranks.exact.expected import moved_by
from fixtures.ranks.steps import Context
from suites.collectives import steps
from tests.fixtures.ranks.gloo_world import replace, run_world
from tests.teeth.patches.flips import flip

COUNT = 100
ALL = range(1000)
Corruption = dict[str, Any]
Damage = Callable[..., object]


def after(name: str, damage: Damage, calls: range = ALL) -> None:
    """Let the collective do its work, then damage what it left; only in the numbered calls."""
    real, counter = getattr(dist, name), iter(ALL)

    def patched(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if next(counter) in calls:
            damage(*args)
        return result

    replace(name, patched)


def before(name: str, damage: Damage, calls: range = ALL) -> None:
    """Damage what goes in."""
    real, counter = getattr(dist, name), iter(ALL)

    def patched(*args: Any, **kwargs: Any) -> Any:
        if next(counter) in calls:
            damage(*args)
        return real(*args, **kwargs)

    replace(name, patched)


def drop(name: str, call: int) -> None:
    """Do nothing at all in this call."""
    real, counter = getattr(dist, name), iter(ALL)
    replace(name, lambda *a, **k: None if next(counter) == call else real(*a, **k))


def stale(call: int, by: int) -> Damage:
    """Put what an earlier call had, so many before, in its place."""
    kept: list[torch.Tensor] = []

    def damage(*buffers: torch.Tensor) -> None:
        kept.append(buffers[-1].clone())
        if len(kept) == call + 1:
            buffers[-1].copy_(kept[call - by])

    return damage


def reported(
    size: int,
    collective: str,
    dtype: str,
    plant: Callable[[], object],
    *,
    on: int | None = None,
    op: str = "sum",
) -> list[list[Corruption]]:
    """What every rank reports of four iterations with the fault planted on one rank, or on all."""

    def run(ctx: Context) -> Any:
        if on in (None, ctx.rank):
            plant()
        said = steps.exact(ctx, collective=collective, dtype=dtype, op=op, elements=[COUNT], iterations=4)
        return said["wrong"]

    return run_world(size, run)


@pytest.mark.parametrize("dtype", [name for name in FORMATS if not name.startswith("fp8")])
def test_the_lowest_bit_flipped_after_one_all_reduce_of_one_rank(dtype: str) -> None:
    plant = partial(after, "all_reduce", lambda tensor: flip(tensor, 5), range(2, 3))
    healthy, [wrong] = reported(2, "all_reduce", dtype, plant, on=1)
    assert healthy == []
    assert wrong["rank"] == 1
    assert (wrong["collective"], wrong["dtype"], wrong["iteration"]) == ("all_reduce", dtype, 2)
    assert (wrong["first_offset"], wrong["count"], wrong["looks_like"]) == (5, 1, "bit 0 flipped")
    assert wrong["size_bytes"] == COUNT * FORMATS[dtype].item_bytes
    assert int(wrong["expected"], 16) ^ int(wrong["found"], 16) == 1
    assert len(wrong["found"]) == 2 + FORMATS[dtype].width // 4


@pytest.mark.parametrize(("size", "sender"), [(2, 0), (5, 4)])
def test_a_wrong_element_of_a_bisection_is_of_the_rank_that_sent_it(size: int, sender: int) -> None:
    plant = partial(before, "batch_isend_irecv", lambda pair: flip(pair[1].tensor, 5, 3))
    found = [wrong for rank in reported(size, "bisection", "int32", plant, on=sender) for wrong in rank]
    assert len(found) == 4
    for wrong in found:
        assert (wrong["rank"], wrong["source_rank"]) == ((sender + size // 2) % size, sender)
        assert (wrong["collective"], wrong["first_offset"], wrong["count"]) == ("bisection", 5, 1)
        assert wrong["looks_like"] == "bit 3 flipped"


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "uint8"])
def test_a_chunk_in_another_rank_s_place(dtype: str) -> None:
    def misplace(output: torch.Tensor, _: torch.Tensor) -> None:
        output[COUNT : 2 * COUNT] = output[2 * COUNT :].clone()

    plant = partial(after, "all_gather_single", misplace, range(1, 2))
    [wrong], healthy, also_healthy = reported(3, "all_gather", dtype, plant, on=0)
    assert healthy == also_healthy == []
    assert wrong["first_offset"] == COUNT
    assert wrong["looks_like"] == "rank 2's chunk"
    assert (wrong["rank"], wrong["source_rank"], wrong["iteration"]) == (0, 1, 1)


def test_swapped_chunks_name_no_single_source() -> None:
    def swap(output: torch.Tensor, _: torch.Tensor) -> None:
        output.copy_(torch.cat([output[COUNT : 2 * COUNT], output[:COUNT], output[2 * COUNT :]]))

    plant = partial(after, "all_gather_single", swap, range(1, 2))
    [wrong] = reported(3, "all_gather", "fp16", plant, on=2)[2]
    assert (wrong["first_offset"], wrong["count"]) == (0, 2 * COUNT)
    assert (wrong["looks_like"], wrong["source_rank"]) == ("rank 1's chunk", None)


def test_one_rank_that_sends_the_last_iteration_again() -> None:
    plant = partial(before, "all_to_all_single", stale(3, by=1))
    for rank, [wrong] in enumerate(reported(3, "all_to_all", "fp32", plant, on=1)):
        assert (wrong["first_offset"], wrong["count"]) == (COUNT, COUNT)
        assert wrong["looks_like"] == "iteration 2 again"
        assert (wrong["rank"], wrong["source_rank"], wrong["iteration"]) == (rank, 1, 3)


@pytest.mark.parametrize(
    ("dtype", "op"), [("fp32", "sum"), ("int32", "sum"), ("bf16", "sum"), ("fp64", "avg"), ("uint8", "sum")]
)
def test_a_contribution_that_is_skipped(dtype: str, op: str) -> None:
    plant = partial(before, "all_reduce", torch.Tensor.zero_, range(2, 3))
    for rank, [wrong] in enumerate(reported(3, "all_reduce", dtype, plant, on=1, op=op)):
        assert wrong["looks_like"] == "rank 1's contribution missing"
        assert (wrong["rank"], wrong["source_rank"], wrong["iteration"]) == (rank, 1, 2)


@pytest.mark.parametrize("dtype", ["fp32", "int64"])
def test_a_contribution_that_counts_twice(dtype: str) -> None:
    plant = partial(before, "all_reduce", lambda tensor: tensor.mul_(2), range(1, 2))
    for [wrong] in reported(3, "all_reduce", dtype, plant, on=2):
        assert (wrong["looks_like"], wrong["source_rank"]) == ("rank 2's contribution counted twice", 2)


@pytest.mark.parametrize("dtype", ["fp32", "int32"])
def test_a_contribution_of_the_iteration_before(dtype: str) -> None:
    plant = partial(before, "all_reduce", stale(2, by=1))
    for [wrong] in reported(3, "all_reduce", dtype, plant, on=0):
        assert (wrong["looks_like"], wrong["source_rank"]) == ("rank 0's contribution of iteration 1", 0)


@pytest.mark.parametrize(
    ("collective", "call", "said"),
    [
        ("all_gather", "all_gather_single", "never written"),
        ("all_reduce", "all_reduce", "this rank's own input, not reduced"),
    ],
)
def test_an_iteration_that_never_happens(collective: str, call: str, said: str) -> None:
    for [wrong] in reported(2, collective, "fp32", partial(drop, call, 2)):
        assert (wrong["iteration"], wrong["looks_like"]) == (2, said)


def test_the_output_of_the_iteration_before() -> None:
    def again(output: torch.Tensor, _: torch.Tensor) -> None:
        earlier(output)

    earlier = stale(3, by=3)
    plant = partial(after, "reduce_scatter_single", again)
    [wrong] = reported(2, "reduce_scatter", "bf16", plant, on=1)[1]
    assert (wrong["looks_like"], wrong["iteration"], wrong["first_offset"]) == ("iteration 0 again", 3, 0)


def test_a_broadcast_from_the_wrong_root() -> None:
    def plant() -> None:
        real, calls = dist.broadcast, iter(ALL)

        def misrouted(tensor: torch.Tensor, src: int) -> None:
            if (tag := next(calls)) == 1:
                src = src + 1
                if dist.get_rank() == src:  # as if this rank had thought itself the root
                    payload = moved_by(
                        FORMATS["int64"], 7, src, tag, start=0, count=COUNT, device=tensor.device
                    )
                    tensor.copy_(payload)
            real(tensor, src=src)

        replace("broadcast", misrouted)

    for rank, [wrong] in enumerate(reported(3, "broadcast", "int64", plant)):
        assert (wrong["looks_like"], wrong["source_rank"], wrong["iteration"]) == ("rank 2's chunk", 1, 1)
        assert (wrong["rank"], wrong["count"]) == (rank, COUNT)


def test_a_shift_by_one_element() -> None:
    def plant() -> None:
        real = dist.batch_isend_irecv

        def shifted(pair: list[Any]) -> list[Any]:
            for work in real(pair):
                work.wait()
            pair[0].tensor[:-1] = pair[0].tensor[1:].clone()
            return []

        replace("batch_isend_irecv", shifted)

    wrong = reported(2, "send_recv", "fp8_e4m3", plant, on=1)[1][0]
    assert (wrong["looks_like"], wrong["source_rank"]) == ("rank 0's data shifted by +1 elements", 0)


def test_a_zeroed_tail() -> None:
    plant = partial(after, "scatter", lambda tensor, _: tensor[60:].zero_(), range(2, 3))
    wrong = reported(2, "scatter", "fp32", plant, on=0)[0][0]
    assert (wrong["looks_like"], wrong["first_offset"]) == ("truncated: zeros from element 60 to the end", 60)


def beside(at: int) -> Damage:
    """Overwrite 16 bytes of the memory that an output lies in, from `at` bytes after its end."""

    def damage(output: torch.Tensor, *_: object, **__: object) -> None:
        end = output.storage_offset() * output.element_size() + output.nbytes
        whole = torch.tensor([], dtype=torch.uint8).set_(output.untyped_storage())
        whole[end + at : end + at + 16].zero_()

    return damage


@pytest.mark.parametrize(
    ("collective", "call"),
    [
        ("all_reduce", "all_reduce"),
        ("all_gather", "all_gather_single"),
        ("reduce_scatter", "reduce_scatter_single"),
        ("all_to_all_v", "all_to_all_single"),
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "uint8"])
def test_what_is_written_behind_an_output(collective: str, call: str, dtype: str) -> None:
    healthy, [wrong] = reported(2, collective, dtype, partial(after, call, beside(0), range(1, 2)), on=1)
    assert healthy == []
    assert (wrong["rank"], wrong["source_rank"], wrong["iteration"]) == (1, None, 1)
    assert (wrong["collective"], wrong["looks_like"]) == (
        f"beside the output of {collective}",
        "written behind its end",
    )
    assert wrong["count"] == 16 // FORMATS[dtype].item_bytes
    assert (set(wrong["expected"][2:]), set(wrong["found"][2:])) == ({"a", "5"}, {"0"})
    length = 2 * COUNT if collective == "all_gather" else COUNT
    assert collective == "all_to_all_v" or wrong["first_offset"] == length


def test_what_is_written_before_an_output_of_a_rank_that_receives_nothing() -> None:
    plant = partial(after, "reduce", beside(-4 * COUNT - 16), range(1))
    healthy, [wrong] = reported(2, "reduce", "int32", plant, on=1)
    assert healthy == []
    assert (wrong["first_offset"], wrong["count"], wrong["iteration"]) == (-4, 4, 0)
    assert wrong["looks_like"] == "written before its beginning"


def test_the_wrong_chunk() -> None:
    def take(output: torch.Tensor, sent: torch.Tensor) -> None:
        output[:COUNT] = sent[COUNT : 2 * COUNT]

    plant = partial(after, "all_to_all_single", take, range(1))
    wrong = reported(2, "all_to_all", "fp32", plant, on=0)[0][0]
    assert (wrong["looks_like"], wrong["source_rank"]) == ("rank 0's chunk for rank 1", 0)


def test_gathered_chunks_that_are_no_reduction_of_the_whole() -> None:
    def run(ctx: Context) -> Any:
        if ctx.rank == 1:
            after("all_gather_single", lambda output, _: flip(output, 7), range(1, 2))
        return steps.identity(ctx, dtype="bf16", elements=[17], iterations=3)["wrong"]

    healthy, [wrong] = run_world(2, run)
    assert healthy == []
    assert (wrong["collective"], wrong["iteration"]) == ("reduce_scatter + all_gather", 1)
    assert (wrong["first_offset"], wrong["looks_like"]) == (7, "bit 0 flipped")


def test_a_barrier_that_holds_nobody() -> None:
    plant = partial(replace, "barrier", lambda **_: None)
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
