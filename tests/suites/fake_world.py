"""One rank of a world that no machine of ours has.

torch's fake process group answers every collective at once and moves nothing: calls, bytes and shapes are
real, values are not. So traffic and memory can be held to closed forms there, and nothing else can.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist

from tests.fixtures.ranks.gloo_world import DEADLINE_S

Found = TypeVar("Found")
Accounts = list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]  # step, traffic, memory


def fake_world(size: int, rank: int, function: Callable[[int, int], Found]) -> Found:
    """Call `function(size, rank)` in a process of its own, which a process group never leaves."""
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=_child, args=(size, rank, function, theirs), daemon=True)
    child.start()
    theirs.close()  # so that a child that dies (its traceback is on standard error) is told from a slow one
    try:
        assert mine.poll(DEADLINE_S), f"rank {rank} of {size} said nothing for {DEADLINE_S:.0f} s"
        found: Found = mine.recv()
    finally:
        child.kill()
        child.join()
    return found


@contextmanager
def values_left_out(*modules: str) -> Iterator[None]:
    """Let the driver compare no values, and these modules send no exact payloads: there are none here."""
    driver = "fixtures.ranks.study.driver"
    with ExitStack() as left_out:
        for name, nothing in (("compared", []), ("repeated", ([], []))):
            instead = partial(_give, nothing)  # a mock would keep what it was called with
            left_out.enter_context(mock.patch(f"{driver}.{name}", instead))
        for module in modules:
            left_out.enter_context(mock.patch(f"{module}.sent", return_value={"figures": {}}))
        yield


def _give(given: object, *_: object, **__: object) -> object:
    return given


def _child(size: int, rank: int, function: Callable[[int, int], object], pipe: Connection) -> None:
    torch.set_num_threads(1)  # the parent's OpenMP threads did not survive the fork
    gc.freeze()  # a study collects what is left of each of its runs: no need to look at what the parent made
    dist.init_process_group("fake", rank=rank, world_size=size)
    pipe.send(function(size, rank))
    os._exit(0)


def assert_closed_forms(found: Accounts, steps: int) -> None:
    """Every one of so many runs issued what it should, and holds what it should."""
    assert len(found) == steps
    for step, traffic, memory in found:
        assert traffic, step
        for line in traffic:
            counted, expected = (
                (line["count"], line["bytes"]),
                (line["expected_count"], line["expected_bytes"]),
            )
            assert counted == expected, (step, line)
        for line in memory:
            ceiling = line.get("at_most_bytes")
            held = line["bytes"] == line["expected_bytes"] if ceiling is None else line["bytes"] <= ceiling
            assert held, (step, line)
