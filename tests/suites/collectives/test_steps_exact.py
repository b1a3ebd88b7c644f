"""Every collective, dtype and operation that gloo has is exact in real worlds; what it lacks says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from fixtures.ranks.collectives.calls import CALLS, Call
from fixtures.ranks.exact.dtypes import FORMATS
from fixtures.ranks.exact.rotating import OPERATIONS
from fixtures.ranks.steps import Context, Unsupported
from fixtures.wire.collectives import AVERAGED, COLLECTIVES, NONFINITE
from suites.collectives import steps, test_collectives
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.teeth.bug import replaced, replacing

ELEMENTS = [1, 17, 4097]
ITERATIONS = 3
ONCE: Any = {"iterations": 1, "budget_s": 1, "copy": False}  # a sweep that would be short
REDUCING = [name for name, shape in COLLECTIVES.items() if shape.reduces]
MOVING = [name for name, shape in COLLECTIVES.items() if not shape.reduces]
CASES = [
    *itertools.product(REDUCING, FORMATS, OPERATIONS),
    *itertools.product(REDUCING, ("fp64", "fp32", "fp16", "bf16"), [NONFINITE]),
    *((name, dtype, "sum") for name, dtype in itertools.product(MOVING, FORMATS)),
]


def lacks(collective: str, dtype: str, op: str) -> bool:
    """What gloo of torch 2.13 is known to lack: fp8 except point to point, and integer averages."""
    point_to_point = bool(COLLECTIVES[collective].shifts)
    integer_average = collective in REDUCING and op in ("avg", AVERAGED) and not FORMATS[dtype].floating
    return (dtype.startswith("fp8") and not point_to_point) or integer_average


def every_case(ctx: Context) -> dict[tuple[str, str, str], Any]:
    """Run all of them in one world."""
    answers: dict[tuple[str, str, str], Any] = {}
    for collective, dtype, op in CASES:
        try:
            found = steps.exact(
                ctx, collective=collective, dtype=dtype, op=op, elements=ELEMENTS, iterations=ITERATIONS
            )
            answers[collective, dtype, op] = found
        except Unsupported as error:
            answers[collective, dtype, op] = str(error)
    return answers


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_collective_is_exact_and_what_gloo_lacks_is_said_by_gloo(size: int) -> None:
    ranks = run_world(size, every_case)
    for collective, dtype, op in CASES:
        answers = [rank[collective, dtype, op] for rank in ranks]
        if lacks(collective, dtype, op):
            assert all(isinstance(answer, str) for answer in answers), (collective, dtype, op)
            assert all(answer.startswith("the backend says: ") for answer in answers)
        else:
            assert all(answer["wrong"] == [] for answer in answers), (collective, dtype, op, answers)
            assert sum(answer["elements"] for answer in answers) >= sum(ELEMENTS) * ITERATIONS
            assert all(answer["iterations"] == len(ELEMENTS) * ITERATIONS for answer in answers)


def test_a_root_compares_and_the_others_say_that_they_did_not() -> None:
    def reduce_once(ctx: Context) -> Any:
        return steps.exact(ctx, collective="reduce", dtype="int32", elements=[5], iterations=1)

    assert [answer["elements"] for answer in run_world(2, reduce_once)] == [5, 0]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("collective", REDUCING)
def test_a_rank_that_takes_what_is_no_number_for_zero_is_caught(collective: str, dtype: str) -> None:
    """It is how a loss that is NaN on one rank stays unknown to the others; finite sums do not show it."""

    def sums(ctx: Context) -> list[list[Any]]:
        asked: Any = {"collective": collective, "dtype": dtype, "elements": [257], "iterations": 3}
        with mock.patch.dict(CALLS, {collective: flushing(CALLS[collective])}):
            return [steps.exact(ctx, **asked, op=op)["wrong"] for op in ("sum", NONFINITE)]

    ranks = run_world(3, sums)
    assert all(finite == [] for finite, _ in ranks)
    seen = [wrong for _, nonfinite in ranks for wrong in nonfinite]
    assert seen
    assert {wrong["source_rank"] for wrong in seen if "contribution missing" in wrong["looks_like"]} == {1}


def flushing(original: Callable[[Call], object]) -> Callable[[Call], None]:
    """Let rank 1 give zeros in place of infinities and NaN."""

    def flushed(call: Call) -> None:
        for buffer in (call.sent, call.received) if call.rank == 1 else ():
            buffer.nan_to_num_(0.0, 0.0, 0.0)
        original(call)

    return flushed


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("collective", test_collectives.AVERAGING)
def test_averages_that_are_cut_off_are_caught(collective: str, dtype: str) -> None:
    """Of equal terms, which `avg` has, nothing can be cut off."""

    def averages(ctx: Context) -> list[list[Any]]:
        asked: Any = {"collective": collective, "dtype": dtype, "elements": [257], "iterations": 2}
        with mock.patch.dict(CALLS, {collective: widened(CALLS[collective])}):
            return [steps.exact(ctx, **asked, op=op)["wrong"] for op in ("avg", AVERAGED)]

    healthy, (equal, unequal) = run_world(2, averages)
    assert healthy == [[], []]
    assert equal == []
    assert [wrong["rank"] for wrong in unequal] == [1, 1]
    assert dtype in test_collectives.ROUNDED_DTYPES


def widened(original: Callable[[Call], object]) -> Callable[[Call], None]:
    """Average in fp64; rank 1 drops the bits that do not fit, and the others round."""

    def averaged(call: Call) -> None:
        wide = replace(call, sent=call.sent.double(), received=call.received.double())
        original(wide)
        call.received.copy_(wide.received)
        if call.rank == 1:
            bits = call.received.view(torch.int32 if call.received.element_size() == 4 else torch.int16)
            bits -= (call.received.abs() > wide.received.abs()).to(bits.dtype)

    return averaged


FORMS = [(case.parameters["issue"], case.parameters["collective"]) for case in test_collectives.FORMS]


@pytest.mark.parametrize("size", [2, 3])
def test_every_form_of_call_is_exact(size: int) -> None:
    def issued(ctx: Context) -> list[Any]:
        asked: Any = {"dtype": "bf16", "elements": ELEMENTS, "iterations": ITERATIONS}
        return [steps.exact(ctx, **asked, collective=name, issue=form) for form, name in FORMS]

    for answers in run_world(size, issued):
        assert [answer["wrong"] for answer in answers] == [[]] * len(FORMS)
        assert all(answer["elements"] >= sum(ELEMENTS) * ITERATIONS for answer in answers)


@pytest.mark.parametrize("collective", [name for form, name in FORMS if form == "async"])
def test_zeros_of_calls_that_are_waited_for_later_are_caught(collective: str) -> None:
    def zeros(original: Callable[..., Any], output: torch.Tensor, *others: Any, **more: Any) -> Any:
        work = original(output, *others, **more)
        if not more.get("async_op"):
            return work
        return mock.Mock(wait=lambda: (work.wait(), output.zero_()))

    def both(ctx: Context) -> list[list[Any]]:
        asked: Any = {"collective": collective, "dtype": "bf16", "elements": [257], "iterations": 2}
        name = "all_to_all_single" if collective == "all_to_all" else f"{collective}_single"
        with replaced(dist, name, replacing(zeros)) if ctx.rank == 1 else nullcontext():
            return [steps.exact(ctx, **asked, issue=issue)["wrong"] for issue in ("", "async")]

    healthy, (usual, later) = run_world(2, both)
    assert healthy == [[], []]
    assert usual == []
    assert [(wrong["rank"], wrong["looks_like"]) for wrong in later] == [(1, "zeros")] * 2


@pytest.mark.parametrize("collective", [name for form, name in FORMS if form == "in_place"])
def test_a_library_that_is_wrong_within_one_buffer_alone_is_caught(collective: str) -> None:
    def overwriting(original: Callable[..., Any], output: torch.Tensor, *others: Any, **more: Any) -> Any:
        done = original(output, *others, **more)
        if output.untyped_storage().data_ptr() == others[0].untyped_storage().data_ptr():
            output[-1] = output[0]
        return done

    def both(ctx: Context) -> list[list[Any]]:
        asked: Any = {"collective": collective, "dtype": "bf16", "elements": [257], "iterations": 2}
        with (
            replaced(dist, f"{collective}_single", replacing(overwriting)) if ctx.rank == 1 else nullcontext()
        ):
            return [steps.exact(ctx, **asked, issue=issue)["wrong"] for issue in ("", "in_place")]

    healthy, (usual, within) = run_world(2, both)
    assert healthy == [[], []]
    assert usual == []
    assert [(wrong["rank"], wrong["count"]) for wrong in within] == [(1, 1)] * 2


@pytest.mark.parametrize("collective", [name for form, name in FORMS if form == "coalesced"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_coalesced_call_whose_data_are_lost_is_caught(collective: str, number: int) -> None:
    @contextmanager
    def losing(original: Callable[..., Any], *given: Any, **more: Any) -> Iterator[Any]:
        with original(*given, **more) as issued:
            yield issued
            calls = next(iter(c10d._world.pg_coalesce_state.values()))
            lost = calls[number].dst_tensor
            assert lost is not None
            calls[number].dst_tensor = torch.zeros_like(lost)

    def coalesced(ctx: Context) -> list[Any]:
        asked: Any = {"collective": collective, "dtype": "bf16", "elements": [256], "iterations": 1}
        with replaced(dist, "_coalescing_manager", replacing(losing)) if ctx.rank == 1 else nullcontext():
            return list(steps.exact(ctx, **asked, issue="coalesced")["wrong"])

    healthy, [wrong] = run_world(2, coalesced)
    assert healthy == []
    assert (wrong["rank"], wrong["first_offset"]) == (1, 128 * number)


def test_the_identity_holds_and_barriers_hold_everybody() -> None:
    def both(ctx: Context) -> Any:
        return (
            steps.identity(ctx, dtype="bf16", elements=[1, 17, 4097], iterations=2),
            steps.exact(ctx, collective="barrier", dtype="int32", elements=[0], iterations=6),
        )

    for same, barrier in run_world(3, both):
        assert same == {"iterations": 6, "elements": 3 * 4115 * 2, "wrong": []}
        assert barrier == {"iterations": 6, "elements": 12, "wrong": []}


@pytest.mark.parametrize("collective", [*COLLECTIVES, "barrier"])
def test_a_world_of_one_is_refused(collective: str) -> None:
    with pytest.raises(ValueError, match=f"{collective} needs at least two ranks"):
        steps.exact(context(0, 1), collective=collective, dtype="fp32", elements=[4], iterations=1)
    with pytest.raises(ValueError, match="needs at least two ranks"):
        steps.sweep(context(0, 1), collective=collective, dtype="fp32", sizes=[64], **ONCE)


@pytest.mark.parametrize(
    ("collective", "dtype", "op", "unknown"),
    [
        ("all_reduc", "fp32", "sum", "collective 'all_reduc'"),
        ("all_reduce", "fp31", "sum", "dtype 'fp31'"),
        ("all_reduce", "fp32", "xor", "operation 'xor'"),
    ],
)
def test_unknown_words_are_refused(collective: str, dtype: str, op: str, unknown: str) -> None:
    with pytest.raises(ValueError, match=f"unknown {unknown}"):
        steps.exact(context(0, 2), collective=collective, dtype=dtype, op=op, elements=[4], iterations=1)


def test_sizes_that_are_too_small_are_refused_all_at_once() -> None:
    with pytest.raises(ValueError, match=r"of 8 bytes.*of 16 bytes.*smallest size is 32 bytes"):
        steps.sweep(context(0, 2), collective="all_gather", dtype="fp32", sizes=[8, 16, 32], **ONCE)
