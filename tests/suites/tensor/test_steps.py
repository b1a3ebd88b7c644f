"""Tensor and sequence parallelism: every part of every step in real worlds on gloo, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from fixtures.ranks.steps import REGISTRY, Context
from suites.tensor.blocks import KvHeads, kv_heads, sharing
from suites.tensor.models import multiple, vocabulary
from suites.tensor.regions import Group
from suites.tensor.test_tensor import BLOCK, STEPS
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.parallel import assert_green, load

PARTS = ("parity", "repeat", "traffic", "memory", "figures", "wrong")
OUTPUTS = ("forward", "loss")


@pytest.mark.parametrize("size", [2, 4, 8])
def test_every_part_of_every_step_holds(size: int) -> None:
    cases = [(case.step, case.parameters) for case in STEPS]
    found = assert_green(size, cases, parts=PARTS)
    for (step, _), ranks in zip(cases, found, strict=True):
        for rank in ranks:
            compared = {entry["what"] for entry in rank["parity"]}
            assert compared >= {*OUTPUTS, *(f"bf16:{what}" for what in OUTPUTS)}, step
            repeated = {entry["what"] for entry in rank["repeat"]}
            exact = {what for what in compared if "unfused" not in what and "bf16:" not in what}
            words = ("", " (bf16)", " (timed, bf16)")
            assert repeated >= {f"{what}{word}" for what in exact for word in words}, step
            assert len([what for what in repeated if "delivered" in what]) >= 2, step
            assert {line["dtype"] for line in rank["traffic"]} == {"fp64", "bf16"}, step
            held = {entry["what"] for entry in rank["memory"]}
            assert held >= {"params", "grads", "params (bf16)", "grads (bf16)"}, step
            assert rank["figures"]["pattern"] > 0, step


def test_a_world_whose_size_is_odd_holds_too() -> None:
    assert_green(
        3, [(case.step, case.parameters) for case in STEPS if case.words[0] in ("attention", "sequence")]
    )


def test_every_gradient_of_a_block_is_compared() -> None:
    ranks = assert_green(2, [("tensor.sequence", BLOCK)])[0]
    gradients = {entry["what"] for entry in ranks[0]["parity"] if entry["what"].startswith("grad:")}
    assert len(gradients) == 10  # the input, two norms, four matrices of attention and three of the MLP


def test_no_step_leaves_a_process_group_behind() -> None:
    load(["tensor.block"])

    def groups_left(ctx: Context) -> int:
        for case in STEPS:
            if case.words[0] in ("attention", "dtensor"):
                REGISTRY[case.step](ctx, **case.parameters)
        return len(dist.distributed_c10d._world.pg_map)

    assert run_world(2, groups_left) == [1, 1]


def test_only_what_a_rank_computes_alone_can_convict_its_node() -> None:
    cases = [(case.step, case.parameters) for case in STEPS if case.words[0] == "column"]
    gathered, split = (
        [one["what"] for one in ranks[0]["parity"] if one.get("local")] for ranks in assert_green(2, cases)
    )
    assert gathered == []
    assert split == ["forward", "bf16:forward"]


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
