"""Traffic and memory are the closed forms as equalities, up to worlds that no machine of ours has.

torch's fake process group answers every collective at once and moves nothing: calls, bytes and shapes are
real, values are not. What compares values is left out, and what the unsharded model needs in the largest.
"""

from __future__ import annotations

import multiprocessing
import os
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from fixtures.remote import tensor_trial
from fixtures.remote.steps import REGISTRY
from suites.tensor import steps
from suites.tensor.test_tensor import STEPS
from tests.fixtures.remote.gloo_world import context

DEADLINE_S = 60.0
Accounts = list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]  # step, traffic, memory
SMALL = {"batch": 1, "channels": 2, "heads": 1, "hidden": 2}
LARGE = 64  # ranks up to which the unsharded model's activations are affordable


def accounts(size: int, rank: int) -> Accounts:
    """Traffic and memory of every step on one rank of a world of `size`."""
    ctx = context(rank, size)
    found: Accounts = []
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(tensor_trial, "unsharded", return_value={}))
        stack.enter_context(mock.patch.object(tensor_trial, "_pattern", return_value=({}, [])))
        if size > LARGE:
            stack.enter_context(mock.patch.object(tensor_trial, "_saved", return_value=(0, 0)))
        for case in STEPS:
            small = {name: SMALL.get(name, value) for name, value in case.parameters.items()}
            told = REGISTRY[case.step](ctx, **small)
            found.append((case.step, told["traffic"], told["memory"]))
    return found


def fake_world(size: int, rank: int) -> Accounts:
    """Run in a process of its own, which a process group never leaves."""
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=_child, args=(size, rank, theirs), daemon=True)
    child.start()
    theirs.close()  # so that a child that dies (its traceback is on standard error) is told from a slow one
    try:
        assert mine.poll(DEADLINE_S), f"rank {rank} of {size} said nothing for {DEADLINE_S:.0f} s"
        found: Accounts = mine.recv()
    finally:
        child.kill()
        child.join()
    return found


def _child(size: int, rank: int, pipe: Connection) -> None:
    torch.set_num_threads(1)  # the parent's OpenMP threads did not survive the fork
    dist.init_process_group("fake", rank=rank, world_size=size)
    pipe.send(accounts(size, rank))
    os._exit(0)


@pytest.mark.parametrize(("size", "rank"), [(8, 0), (8, 7), (64, 63), (512, 1)])
def test_traffic_and_memory_are_the_closed_forms(size: int, rank: int) -> None:
    assert steps.__name__ == "suites.tensor.steps"
    found = fake_world(size, rank)
    assert len(found) == len(STEPS)
    for step, traffic, memory in found:
        assert traffic, step
        for line in traffic:
            assert (line["count"], line["bytes"]) == (line["expected_count"], line["expected_bytes"]), (
                step,
                line,
            )
        for line in memory:
            assert line["bytes"] == line["expected_bytes"], (step, line)
