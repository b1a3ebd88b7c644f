"""Traffic and memory are the closed forms as equalities, up to worlds that no machine of ours has.

torch's fake process group answers every collective at once and moves nothing: calls, bytes and shapes are
real, values are not. What compares values is therefore left out here.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fixtures.remote.steps import REGISTRY
from fixtures.remote.zero.training import Task, Trace
from suites.zero.test_zero import STEPS
from tests.fixtures.remote.gloo_world import context
from tests.suites.parallel import load
from tests.teeth.zero_patches import bare

DEADLINE_S = 60.0
ACCOUNTS = ("traffic", "memory")


def nothing_trained(task: Task, *_: Any) -> Trace:
    """The shapes of an unsharded run."""
    model = task.model(torch.float64)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    return Trace(torch.zeros(task.steps), weights, weights, torch.zeros(task.rows, task.columns))


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


def accounts(size: int, rank: int) -> dict[str, dict[str, Any]]:
    """Traffic and memory of every step on one rank of a world of `size`."""
    load([case.step for case in STEPS])
    ctx = context(rank, size)
    found = {}
    with (
        mock.patch.object(DistributedDataParallel, "__init__", hooked(DistributedDataParallel.__init__)),
        mock.patch("fixtures.remote.zero.evidence.unsharded", nothing_trained),
        mock.patch("fixtures.remote.zero.mixed.unsharded", nothing_trained),
        mock.patch("fixtures.remote.zero.mixed.reduction_entries", return_value=[]),
        mock.patch("fixtures.remote.zero.exchanges.sent", return_value={}),
        mock.patch("fixtures.remote.zero.exchanges.sent_on_mesh", return_value={}),
    ):
        for case in STEPS:
            told = REGISTRY[case.step](ctx, **case.parameters)
            found[case.step] = {part: told[part] for part in ACCOUNTS}
    return found


def fake_world(size: int, rank: int) -> dict[str, dict[str, Any]]:
    """Run in a process of its own, which a process group never leaves."""
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=_child, args=(size, rank, theirs), daemon=True)
    child.start()
    theirs.close()  # so that a child that ends without a word is noticed
    try:
        assert mine.poll(DEADLINE_S), f"rank {rank} of {size} said nothing for {DEADLINE_S:.0f} s"
        found: dict[str, dict[str, Any]] = mine.recv()
    finally:
        child.kill()
        child.join()
    return found


def _child(size: int, rank: int, pipe: Connection) -> None:
    torch.set_num_threads(1)  # the parent's OpenMP threads did not survive the fork
    dist.init_process_group("fake", rank=rank, world_size=size)
    pipe.send(accounts(size, rank))
    os._exit(0)


@pytest.mark.parametrize(("size", "rank"), [(8, 0), (8, 7), (64, 63), (512, 0)])
def test_traffic_and_memory_are_the_closed_forms(size: int, rank: int) -> None:
    for step, parts in fake_world(size, rank).items():
        for line in parts["traffic"]:
            assert (line["count"], line["bytes"]) == (line["expected_count"], line["expected_bytes"]), (
                step,
                line,
            )
        for line in parts["memory"]:
            assert line["bytes"] == line["expected_bytes"], (step, line)
