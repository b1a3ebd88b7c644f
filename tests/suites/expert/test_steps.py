"""The expert steps hold where nothing is wrong, their closed forms at any size, and bad input is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from fixtures.ranks.steps import Context, Unsupported
from fixtures.ranks.study.driver import EXACT, TRAINED, Technique, run_once
from fixtures.ranks.study.pattern import LARGEST_BYTES, LAYERS
from fixtures.wire.held import LEFT
from suites.expert.disaggregated.figures import expected_span_s
from suites.expert.groups import Nodes, crossing, hop_matrices, limited_tables, nodes_of
from suites.expert.layer import Unsharded
from suites.expert.parity import Experts, layer
from suites.expert.routing import (
    Shape,
    even_tables,
    imbalance,
    matrix,
    tables,
    top_k,
    transposed,
    uniform,
    visited,
)
from suites.expert.speed import Traffic, TrafficFp8, even_traffic
from suites.expert.test_expert import ROUTINGS
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.fake_world import Accounts, assert_closed_forms, fake_world
from tests.suites.parallel import assert_green
from tests.teeth.bug import of
from tests.teeth.expert import APART, CAPPED, LIMITED, NARROW, PARITY, PARITY_FP8, PATTERN, SPEED, TOKENS
from tests.teeth.patches.expert import first_row_behind

SIZES = (2, 8, 64)
STEPS: list[tuple[str, dict[str, Any]]] = [
    *(("expert.dispatch_combine", {**TOKENS, "routing": kind}) for kind in ROUTINGS),
    *(("expert.parity", {**PARITY, "routing": kind}) for kind in ROUTINGS),
    ("expert.group_limited", LIMITED),
    *(("expert.m2n", {**APART, "routing": "skewed", "micro_batches": m}) for m in (1, 2, 3)),
    *(("expert.capacity", {**CAPPED, "routing": kind}) for kind in ("skewed", "zero_tokens")),
    *(("expert.parity", {**PARITY_FP8, "routing": kind}) for kind in ("skewed", "zero_tokens")),
    ("expert.parity", {**PARITY, "routing": "learned"}),
]
HELD = ("expert.parity", "expert.capacity", "expert.dispatch_combine")
TIMED: list[tuple[str, dict[str, Any]]] = [
    ("expert.throughput", SPEED),
    ("expert.m2n_speed", PATTERN),
    ("expert.throughput", NARROW),
]


def test_every_part_of_every_step_holds() -> None:
    parts = ("parity", "repeat", "traffic", "memory", "figures", "wrong")
    found = assert_green(4, [*STEPS, *TIMED], parts=parts)
    for (step, _), results in zip(STEPS, found, strict=False):
        left = [{one["what"] for one in result["memory"] if LEFT in one["what"]} for result in results]
        assert all(left), step
        assert all(
            (len(result["memory"]) > len(one)) == (step in HELD)
            for result, one in zip(results, left, strict=True)
        ), step
    sharded = found[4][0]
    assert {line["dtype"] for line in sharded["traffic"]} == {"fp64", "bf16"}
    assert {line["what"] for line in sharded["memory"]} == {
        "params",
        "grads",
        "peak",
        "params (bf16)",
        "grads (bf16)",
        "peak (bf16)",
        LEFT,
        f"{LEFT} (bf16)",
    }
    balanced, _, one_hot, _ = (results[0]["figures"]["imbalance"] for results in found[:4])
    assert (balanced, one_hot) == (1.0, 4)
    assert found[8][0]["figures"]["internode_saved"] > 0.2
    speed = found[len(STEPS)][0]["figures"]
    assert {"dispatch", "combine", "dispatch_us", "combine_us"} <= speed.keys()
    for results in found[:9]:
        for one in results[0]["moved"]:
            sizes = [size for _, size, _ in one["moves"]]
            assert max(sizes) >= LARGEST_BYTES["cpu"]
            assert sum(sizes) >= LAYERS * LARGEST_BYTES["cpu"]
    dispatch, combine = found[-1][0]["moved"][0]["moves"][:2]
    assert (dispatch[1] * 2 * 128, dispatch[0]) == (combine[1] * (128 + 4), "all_to_all")  # fp8, and bf16
    both, one_way = found[len(STEPS) + 1][0]["moved"]
    assert (both["name"], one_way["name"]) == ("4096 bytes", "m2n 4096 bytes")
    assert both["moves"] == 2 * one_way["moves"] == [["m_to_n", 4096, [2, 2]]] * 2


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("kind", ROUTINGS)
def test_no_row_is_lost_or_made_at_any_size(ranks: int, kind: str) -> None:
    shape = Shape(4, 8, 1, 2 * ranks, 2)
    sent = matrix(tables(kind, 7, ranks, shape), shape.experts)
    tokens = 4 * ((ranks + 1) // 2 if kind == "zero_tokens" else ranks)
    assert sum(map(sum, sent)) == sum(map(sum, transposed(sent))) == 2 * tokens
    if kind in ("balanced", "one_hot"):
        assert imbalance(sent) == {"balanced": 1.0, "one_hot": ranks}[kind]


@pytest.mark.parametrize("ranks", SIZES)
def test_a_token_crosses_to_at_most_m_nodes_and_once_to_each(ranks: int) -> None:
    nodes = Nodes(ranks // 2, 2)
    shape, most = Shape(4, 8, 1, 4 * ranks, 4), min(2, nodes.count)
    routed = limited_tables(7, ranks, shape, nodes, most)
    visits = [visited(chosen, shape.experts, nodes.count) for chosen in routed]
    assert max(int(one.sum(1).max()) for one in visits) <= most
    first, second = hop_matrices(routed, shape.experts, nodes)
    crossed = sum(crossing(first, rank, nodes) for rank in range(ranks))
    assert crossed == sum(int(one.sum()) - int(one[:, nodes.of(r)].sum()) for r, one in enumerate(visits))
    assert sum(map(sum, second)) == 4 * 4 * ranks
    assert sum(crossing(second, rank, nodes) for rank in range(ranks)) == 0


def issued(technique: Technique[None]) -> list[dict[str, Any]]:
    """What a technique issues in a fake world, beside its closed forms."""
    (dtype,) = technique.dtypes
    return technique.traffic(dtype, run_once(technique, dtype).seen)


@pytest.mark.parametrize("kind", [Traffic, TrafficFp8])
@pytest.mark.parametrize("ranks", [8, 64])
def test_timed_exchanges_issue_the_closed_form_in_fake_worlds(ranks: int, kind: type[Traffic]) -> None:
    def speed(size: int, rank: int) -> Accounts:
        goes = even_traffic(7, size, Shape(8, 128, 1, 2 * size, 2))
        return [("speed", issued(kind(context(rank, size), goes, 128)), [])]

    found = fake_world(ranks, 0, speed)
    assert_closed_forms(found, 1)
    assert [line["op"] for line in found[0][1]] == ["all_to_all"]


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("kind", [Traffic, TrafficFp8])
def test_rows_of_iterations_before_are_wrong_while_it_is_timed(kind: type[Traffic], calls: int) -> None:
    def wrong(ctx: Context) -> list[int]:
        shape = Shape(8, 128, 1, 4 * ctx.size, 2)
        work = kind(ctx, even_traffic(7, ctx.size, shape), shape.hidden)
        with of("all_to_all_single", first_row_behind(calls))():
            return [entry["differ"] for entry in work.timed(ctx, 10, 0.1)["parity"]]

    assert run_world(2, wrong) == [[1, 1]] * 2


def test_the_unsharded_layer_is_the_weighted_sum_of_the_chosen_experts() -> None:
    model = Unsharded(Shape(6, 8, 4, 5, 2), torch.zeros(5)).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    weights, chosen = model.route(x.flatten(0, 1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(6, dtype=torch.float64))
    shares = model.router(x.flatten(0, 1)).softmax(-1)
    assert torch.equal(shares.argsort(dim=-1, descending=True)[:, :2], chosen)
    every = torch.stack([expert(x.flatten(0, 1)) for expert in model.experts], dim=1)
    right = sum(every[torch.arange(6), chosen[:, slot]] * weights[:, slot, None] for slot in range(2))
    torch.testing.assert_close(model(x), torch.as_tensor(right).view_as(x))


@pytest.mark.parametrize("dtype", [EXACT, TRAINED])
def test_an_expert_too_many_on_a_rank_is_seen_in_its_memory(dtype: torch.dtype) -> None:
    def params(ctx: Context) -> list[dict[str, Any]]:
        technique = Experts(ctx, layer(ctx, "balanced", Shape(4, 8, 4, 4, 2)))
        run = run_once(technique, dtype)
        run.kept.experts.append(technique.whole(dtype).experts[3])
        return technique.memory(dtype, run)

    found = run_world(2, params)[0][0]
    assert found["bytes"] == found["expected_bytes"] + 3 * 8 * 4 * dtype.itemsize


@pytest.mark.parametrize(("micro_batches", "span_ms"), [(1, 360.0), (2, 380.0), (3, 400.0)])
def test_the_length_of_a_pass_by_the_formula(micro_batches: int, span_ms: float) -> None:
    # Six layers of two stages of 20 ms, 10 ms between them; from m = 3 on transfers are hidden.
    span_s = expected_span_s(0.02, 0.02, 0.01, layers=6, micro_batches=micro_batches)
    assert 1e3 * span_s == pytest.approx(span_ms)


def test_bad_shapes_are_refused_with_all_their_faults() -> None:
    with pytest.raises(
        ValueError, match=r"5 experts do not divide .* 2 ranks; .* 9 of 5 experts; .*at least 1"
    ):
        Shape(0, 8, 4, 5, 9).refuse(2)
    with pytest.raises(ValueError, match="unknown routing 'hot'"):
        tables("hot", 7, 2, Shape(4, 8, 4, 4, 2))


def test_real_nodes_count_where_there_are_several() -> None:
    alone = context(0, 4)
    assert nodes_of(alone, 4) == Nodes(4, 1)
    two = Context(0, 4, "gloo", alone.device, ["a", "a", "b", "b"], [0, 1, 0, 1])
    assert nodes_of(two, 4) == Nodes(2, 2)
    uneven = Context(0, 4, "gloo", alone.device, ["a", "a", "a", "b"], [0, 1, 2, 0])
    with pytest.raises(Unsupported, match="same number of ranks on every node"):
        nodes_of(uneven, 4)


def test_the_best_experts_are_those_of_the_scores() -> None:
    assert top_k(torch.tensor([[0.1, 0.9, 0.5]]), 2).tolist() == [[1, 2]]


def test_even_tables_cost_a_number_per_row_and_not_per_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        found = uniform(*args, **kwargs)
        drawn.append(found.numel())
        return found

    monkeypatch.setattr("suites.expert.routing.uniform", counted)
    shape = Shape(500, 8, 1, 64, 8)
    found = even_tables(7, 8, shape)
    assert sum(drawn) == 8 * shape.tokens * shape.top_k
    assert [len(set(row)) for row in torch.cat(found).tolist()] == [shape.top_k] * 8 * shape.tokens
    often = torch.bincount(torch.cat(found).flatten(), minlength=shape.experts)
    assert len(often) == shape.experts
    assert 400 < int(often.min()) <= int(often.max()) < 600  # 500 each; the deviation is some 21
    assert not torch.equal(found[0], found[1])


def test_a_combine_adds_up_every_row_of_a_token_in_one_order() -> None:
    shape = Shape(16, 32, 1, 8, 3)
    work = Traffic(context(1, 4), even_traffic(7, 4, shape), shape.hidden)
    work.back.copy_(torch.randn(work.back.shape))
    right = torch.zeros(16, 32, dtype=torch.float64).index_add_(0, work.token, work.back.double())
    torch.testing.assert_close(work.summed().double(), right, rtol=0.02, atol=0.05)
    assert torch.equal(work.summed(), work.summed())


def test_of_more_ranks_that_add_up_in_bf16_more_is_tolerated_of_the_router_alone() -> None:
    ctx = context(0, 512)
    technique = Experts(ctx, layer(ctx, "balanced", Shape(1, 8, 4, 512, 2)))
    assert [technique.summands(what) for what in ("grad:router", "forward")] == [512, 2]


def test_the_unsharded_model_visits_its_experts_as_often_in_any_world() -> None:
    visits = {}
    for ranks in (8, 16):
        ctx = replace(context(0, ranks), at_size=True)
        technique = Experts(ctx, layer(ctx, "balanced", Shape(8, 16, 8, ranks, 2)))
        with mock.patch.object(Unsharded, "work", autospec=True, side_effect=Unsharded.work) as work:
            whole = technique.reference(torch.float32)
        visits[ranks] = work.call_count / ranks
        assert len(whole["forward"]) == 8 * ranks
    assert visits[16] == visits[8]
