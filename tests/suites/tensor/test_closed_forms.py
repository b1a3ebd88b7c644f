"""Traffic and memory are the closed forms as equalities, up to worlds that no machine of ours has."""

from __future__ import annotations

from importlib import import_module
from unittest import mock

import pytest

from fixtures.ranks.steps import REGISTRY
from suites.tensor import overlap, steps
from suites.tensor.test_tensor import STEPS
from tests.fixtures.ranks.gloo_world import context
from tests.suites.fake_world import Accounts, assert_closed_forms, fake_world, values_left_out

SMALL = {"batch": 1, "channels": 2, "heads": 1, "hidden": 2}


def accounts(size: int, rank: int) -> Accounts:
    """Traffic and memory of every step on one rank of a world of `size`."""
    ctx = context(rank, size)
    found: Accounts = []
    with (
        values_left_out("suites.tensor.technique"),
        mock.patch.object(overlap, "overlap", return_value=0.0),
        mock.patch.object(overlap, "engine", lambda ctx, name, needs: import_module(name)),
    ):
        for case in STEPS:
            small = {name: SMALL.get(name, value) for name, value in case.parameters.items()}
            told = REGISTRY[case.step](ctx, **small)
            found.append((case.step, told["traffic"], told["memory"]))
    return found


@pytest.mark.parametrize(("size", "rank"), [(8, 0), (64, 63)])
def test_traffic_and_memory_are_the_closed_forms(size: int, rank: int) -> None:
    assert steps.__name__ == "suites.tensor.steps"
    assert_closed_forms(fake_world(size, rank, accounts), len(STEPS))
