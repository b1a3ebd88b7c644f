"""Context parallelism in a world of 4 ranks, and its closed forms in larger ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fixtures.ranks.study.driver import EXACT, TRAINED
from suites.context import layout, steps
from suites.context.issued import Shape
from suites.context.layout import Span, hidden
from suites.context.techniques import AllGatherKV, Ring, Ulysses
from suites.context.test_context import CONTEXT, SIZES
from tests.fixtures.ranks.gloo_world import context
from tests.suites.parallel import assert_green

PARTS = ("parity", "repeat", "traffic", "memory", "figures", "wrong")
CASES = [(case.step, case.parameters) for case in CONTEXT]

Answers = list[tuple[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Every case of the suite in one world: the step, and what each rank says."""
    found = assert_green(4, CASES, PARTS)
    return [(step, ranks) for (step, _), ranks in zip(CASES, found, strict=True)]


def test_every_step_is_green_with_all_its_parts(answers: Answers) -> None:
    for step, ranks in answers:
        for said in ranks:
            assert said["figures"]["pattern"] > 0
            assert ("overlap" in said["figures"]) == (step in ("context.ring", "context.zigzag"))


def test_zigzag_is_balanced_and_the_plain_ring_is_not(answers: Answers) -> None:
    (zigzag,) = (ranks for step, ranks in answers if step == "context.zigzag")
    _odd, plain, full = (ranks for step, ranks in answers if step == "context.ring")
    size, tokens = len(zigzag), SIZES["tokens"]
    length = size * tokens
    # The last rank of a plain ring does (w-1) S^2 + S(S+1)/2 of L(L+1)/2 pairs.
    busiest = (size - 1) * tokens**2 + tokens * (tokens + 1) // 2
    assert plain[-1]["figures"]["imbalance"] == pytest.approx(busiest * size / (length * (length + 1) / 2))
    assert [said["figures"]["imbalance"] for said in (*zigzag, *full)] == [1.0] * (2 * size)


@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_the_closed_forms_of_the_work_count_what_masks_let_through(size: int) -> None:
    length = 4 * size
    cuts = (layout.contiguous(length, size), layout.zigzag(length, size))
    whole = Span.of(torch.arange(length), torch.device("cpu"))
    plain, balanced = (
        [int((~hidden(Span.of(places, torch.device("cpu")), whole)).sum()) for places in cut] for cut in cuts
    )
    assert plain == [layout.contiguous_pairs(length, size, rank, True) for rank in range(size)]
    assert balanced == [layout.zigzag_pairs(length, size)] * size
    assert len(set(plain)) == size
    assert all(sorted(torch.cat(cut).tolist()) == list(range(length)) for cut in cuts)


@pytest.mark.parametrize("size", [8, 64, 512])
def test_what_the_closed_forms_say_of_growing_worlds(size: int) -> None:
    """Numbers a reader can check by hand: B is one rank's K and V, 2 x 1 x 2 heads x 2 tokens x 4 dim."""
    shape = Shape(1, 2 * size, 4, 2, 4, True)
    ring, gathered = Ring(context(0, size), shape), AllGatherKV(context(0, size), shape)
    sent = [form["send"] for form in ring.issued(EXACT)]
    assert sum(count for count, _ in sent) == 3 * size - 2
    assert sum(bytes_ for _, bytes_ in sent) == (3 * size - 2) * 32 * 8
    # What is summed on its way is summed in fp32: twice the bytes of bf16.
    assert ring.issued(TRAINED)[1]["send"][1] == (size - 1) * 32 * 2 + size * 32 * 4
    assert gathered.issued(EXACT)[0]["all_gather"] == (1, size * 32 * 8)
    saved = [one.holds(TRAINED)["activations"] for one in (ring, gathered)]
    others = 32 * 2 + 32 * 4 + 8 * 4  # queries, the output and its norm
    assert saved == [others + 32 * 2, others + 32 * size * 4]


# refusals


@pytest.mark.parametrize(("length", "size"), [(97, 4), (3, 4), (0, 2)])
def test_a_length_that_does_not_divide_is_refused_with_its_numbers(length: int, size: int) -> None:
    each, over = divmod(length, size)
    said = f"a sequence of {length} positions does not divide over {size} ranks: {size} parts of {each}"
    with pytest.raises(ValueError, match=f"^{said} leave {over} over; use a multiple of {size}$"):
        AllGatherKV(context(0, size), Shape(1, length, 4, 2, 8, True))


def test_a_zigzag_needs_two_chunks_for_each_rank() -> None:
    said = (
        "12 positions does not divide into two chunks for each of 4 ranks: 8 parts of 1 leave 4 over; use a"
    )
    with pytest.raises(ValueError, match=said):
        steps.zigzag(context(0, 4), **{**SIZES, "tokens": 3})


def test_heads_that_do_not_divide_are_refused_all_at_once() -> None:
    said = "6 query heads do not divide over 4 ranks; 3 key heads neither divide over 4 ranks nor repeat to 4"
    with pytest.raises(ValueError, match=f"^{said}$"):
        Ulysses(context(0, 4), Shape(1, 8, 6, 3, 8, True))
    with pytest.raises(ValueError, match="6 query heads do not share 4 key heads evenly"):
        Shape(1, 8, 6, 4, 8, True)


def test_a_world_of_one_has_no_ring() -> None:
    with pytest.raises(ValueError, match="at least 2 ranks; this world has 1"):
        Ring(context(0, 1), Shape(1, 8, 4, 2, 8, True))
