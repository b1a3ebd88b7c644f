"""Which rows are dropped, by hand and by rule, and what the load-balance loss is where it is known."""

from __future__ import annotations

import pytest
import torch

from suites.expert.capacity import CappedExperts, UnshardedCapped, by_rule, taken
from suites.expert.issued import capacity_of
from suites.expert.parity import layer
from suites.expert.routing import Shape, top_k, uniform
from tests.fixtures.ranks.gloo_world import context

TABLE = torch.tensor([[0, 1], [0, 2], [1, 0], [0, 1]])


@pytest.mark.parametrize("rule", [by_rule, lambda chosen, most: taken(chosen, 4, most)])
def test_first_choices_come_before_second_ones_and_tokens_in_their_order(rule: object) -> None:
    assert callable(rule)
    two = [[True, True], [True, True], [True, False], [False, False]]
    assert rule(TABLE, 2).tolist() == two
    assert rule(TABLE, 1).tolist() == [[True, False], [False, True], [True, False], [False, False]]
    assert rule(TABLE, 4).all()
    assert rule(TABLE[:0], 2).shape == (0, 2)


def test_the_rule_and_its_tensors_agree_on_many_tables() -> None:
    for number in range(20):
        chosen = top_k(uniform(7, number, shape=(40, 6)), 3)
        for most in (0, 1, 5, 19, 20):
            assert torch.equal(taken(chosen, 6, most), by_rule(chosen, most))


@pytest.mark.parametrize(
    ("factor", "tokens", "slots", "experts", "most"),
    [(1.0, 16, 2, 8, 4), (1.25, 16, 2, 8, 5), (1.0, 16, 2, 64, 1), (2.0, 13, 2, 8, 7)],
)
def test_the_capacity_is_the_factor_times_an_even_share_rounded_up(
    factor: float, tokens: int, slots: int, experts: int, most: int
) -> None:
    assert capacity_of(factor, tokens, slots, experts) == most


def test_rows_are_sent_or_dropped_and_none_twice() -> None:
    made = CappedExperts(context(0, 4), layer(context(0, 4), "skewed", Shape(16, 8, 4, 16, 2)), 2)
    assert sum(map(sum, made.sent)) + int(made.dropped.sum()) == 4 * 16 * 2
    assert len(made.dropped) == 16
    assert int(made.dropped.sum()) > 0


def test_the_loss_is_one_where_all_experts_get_the_same() -> None:
    shape = Shape(8, 4, 2, 4, 2)
    chosen = torch.arange(16).view(8, 2) % 4
    wanted = torch.zeros(8, 4).scatter(1, chosen, 1e3)
    model = UnshardedCapped(shape, wanted).double()
    model.kept = torch.ones(8, 2, dtype=torch.bool)
    torch.nn.init.zeros_(model.router.weight)
    model(torch.ones(8, 4, dtype=torch.float64))
    assert float(model.balance.detach()) == pytest.approx(1.0)
