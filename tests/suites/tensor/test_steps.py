"""Tensor and sequence parallelism: every part of every step in real worlds on gloo, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study.overlap import seconds_of
from suites.tensor import technique
from suites.tensor.blocks import KvHeads, kv_heads, sharing
from suites.tensor.issued import multiple
from suites.tensor.models import vocabulary
from suites.tensor.regions import Group
from suites.tensor.test_tensor import STEPS
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.parallel import assert_green, load

PARTS = ("parity", "repeat", "traffic", "memory", "figures", "wrong")
OUTPUTS = ("forward", "loss")


def test_every_part_of_every_step_holds() -> None:
    found = assert_green(4, [(case.step, case.parameters) for case in STEPS], parts=PARTS)
    for case, ranks in zip(STEPS, found, strict=True):
        step = case.step
        for rank in ranks:
            compared = {entry["what"] for entry in rank["parity"]}
            # Of a sequence the input, two norms, four matrices of attention and three of the MLP.
            gradients = sum(what.startswith("grad:") for what in compared)
            assert step != "tensor.sequence" or gradients == 10
            # Only what a rank computes alone can convict its node.
            alone = [entry["what"] for entry in rank["parity"] if entry.get("local")]
            assert alone == (["forward", "bf16:forward"] if case.words == ("column", "split") else []), step
            assert compared >= {*OUTPUTS, *(f"bf16:{what}" for what in OUTPUTS)}, step
            repeated = {entry["what"] for entry in rank["repeat"]}
            exact = {what for what in compared if "unfused" not in what and "bf16:" not in what}
            assert repeated >= {f"{what} (timed, bf16)" for what in exact}, step
            assert rank["figures"]["pattern"] > 0, step


def timed_in_a_fixed_order(ctx: Context) -> bool:
    fixed = list[bool]()

    def noting(ctx: Context, run: Callable[[], object]) -> float:
        fixed.append(torch.are_deterministic_algorithms_enabled())
        return seconds_of(ctx, run)

    setattr(torch.cuda, "is_available", lambda: True)  # noqa: B010 - in its own process
    setattr(technique, "seconds_of", noting)  # noqa: B010
    case = next(case for case in STEPS if case.step == "tensor.mlp")
    REGISTRY[case.step](ctx, **case.parameters)
    return fixed == [True]


def test_the_run_that_is_timed_adds_in_the_same_order_as_those_that_it_must_equal() -> None:
    load(["tensor.mlp"])
    assert all(run_world(2, timed_in_a_fixed_order))


def test_a_world_whose_size_is_odd_holds_too() -> None:
    assert_green(
        3, [(case.step, case.parameters) for case in STEPS if case.words[0] in ("attention", "sequence")]
    )


# heads


@pytest.mark.parametrize(
    ("heads", "kv", "ranks", "shared"), [(8, 8, 4, 1), (8, 4, 4, 1), (8, 2, 4, 2), (8, 1, 4, 4), (8, 8, 8, 1)]
)
def test_key_value_heads_are_split_or_shared(heads: int, kv: int, ranks: int, shared: int) -> None:
    assert sharing(heads, kv, ranks) == shared


def test_heads_that_cannot_be_dealt_out_are_refused_with_every_reason() -> None:
    with pytest.raises(ValueError, match="neither be split among 4 ranks nor replicated"):
        sharing(12, 6, 4)
    with pytest.raises(ValueError, match="9 query heads do not divide among 4 ranks; 9 query heads do not"):
        sharing(9, 2, 4)


@pytest.mark.parametrize(("ranks", "few"), [(2, 1), (3, 1), (4, 2), (8, 4), (9, 3), (512, 256)])
def test_the_replicated_case_has_fewer_heads_than_ranks(ranks: int, few: int) -> None:
    assert kv_heads(ranks, replicate=True) == few
    assert kv_heads(ranks, replicate=False) == ranks


def test_ranks_that_share_a_head_hold_the_same_rows() -> None:
    weight = torch.arange(4.0).unsqueeze(1)  # two heads of two channels
    held = [KvHeads(2, 2).part(weight, Group(rank, 4)).flatten().tolist() for rank in range(4)]
    assert held == [[0, 1], [0, 1], [2, 3], [2, 3]]


@pytest.mark.parametrize("size", [2, 8, 64])
def test_words_and_targets_lie_on_both_sides_of_every_border(size: int) -> None:
    words = multiple(96, size)
    whole, numbers = vocabulary(context(0, size), 2, 8, 4, words)
    part = words // size
    borders = {first + more for first in range(0, words, part) for more in (0, part - 1)}
    assert borders <= set(numbers.flatten().tolist())
    assert borders <= set(whole.targets.flatten().tolist())


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="dimension 0 of 5 elements does not divide among 2 ranks"):
        Group(0, 2).part(torch.zeros(5), 0)
