"""Traffic and memory are the closed forms as equalities, up to worlds that no machine of ours has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fixtures.ranks.steps import REGISTRY
from suites.zero.issued import issued
from suites.zero.test_zero import STEPS
from tests.fixtures.ranks.gloo_world import context
from tests.suites.fake_world import Accounts, assert_closed_forms, fake_world, values_left_out
from tests.suites.parallel import load
from tests.teeth.patches.zero import bare


def hooked(original: Callable[..., None]) -> Callable[..., None]:
    """Exchange DDP's buckets by a hook: the fake group's work has no result, which DDP itself asks for."""

    def exchange(_state: object, bucket: Any) -> Any:
        dist.all_reduce(bucket.buffer())
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def init(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(None, bare(exchange))

    return init


def accounts(size: int, rank: int) -> Accounts:
    """Traffic and memory of every step on one rank of a world of `size`."""
    load([case.step for case in STEPS])
    ctx = context(rank, size)
    found: Accounts = []
    with (
        mock.patch.object(DistributedDataParallel, "__init__", hooked(DistributedDataParallel.__init__)),
        values_left_out("suites.zero.steps", "suites.zero.answers"),
        mock.patch("suites.zero.steps.alike", return_value=[]),
    ):
        for case in STEPS:
            told = REGISTRY[case.step](ctx, **case.parameters)
            found.append((case.step, told["traffic"], told["memory"]))
    return found


@pytest.mark.parametrize(("size", "rank"), [(8, 0), (64, 63)])
def test_traffic_and_memory_are_the_closed_forms(size: int, rank: int) -> None:
    found = fake_world(size, rank, accounts)
    assert_closed_forms(found, len(STEPS))
    for case, (_, traffic, _) in zip(STEPS, found, strict=True):
        assert expected(traffic) == issued(case.step, case.parameters, [size], on_gpu=False)


def expected(traffic: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, tuple[int, int]]]:
    """What a rank expects to issue, by group and dtype."""
    found: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    for line in traffic:
        calls = found.setdefault((line["group"], line["dtype"]), {})
        calls[line["op"]] = line["expected_count"], line["expected_bytes"]
    return found
