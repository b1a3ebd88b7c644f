"""Faults that come and go, and machines that other programs keep busy: what fails, and what is unchecked."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.runs import Finished, accept
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

HEAD = """
[hardware]
name = "lab-tails"
about = "The lab, as these tests need it"
extends = "lab-200mbit"
auto = false
"""
TAIL = """
[sweep]
tail_iterations = 100

[[limit]]
metric = "slow_fraction"
path = "network"
nodes = "2..8"
ranks_per_node = 1
size = "1MiB"
max = 0.05
min_samples = 100
source = "a tenth of the iterations is twice that"
date = 2026-11-20
"""
COLLECTIVES = (
    '["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "broadcast", "reduce", '
    '"gather", "scatter", "send_recv"]'
)
UNREACHABLE = f"""
[[limit]]
metric = "busbw"
collective = {COLLECTIVES}
path = "memory"
nodes = 1
min_of_bound = 0.99
source = "nothing meets this"
date = 2026-11-20
"""
SHARED = 'shared = "the programs that this test starts"\n'
ALL_REDUCE = ("--workload", "collectives", "-k", "test_busbw_holds and all_reduce")
SLOW_S, USUAL_S = 0.4, 1.8  # a tenth of the iterations, at half the speed, takes a fifth of the time
# This rank's all_reduce takes a twentieth of a second, without using a CPU for it.
LATE = """
import os
import time

import torch.distributed as dist

healthy = dist.all_reduce

def all_reduce(*arguments, **named):
    if os.environ.get("LOCAL_RANK") == "1":
        time.sleep(0.05)
    return healthy(*arguments, **named)

dist.all_reduce = all_reduce
"""
SPIN = "while True: pass"


@contextmanager
def now_and_then(lab: Lab, node: str, rate: str) -> Iterator[None]:
    """Slow a node's link for a tenth of its messages."""
    over = threading.Event()

    def toggle() -> None:
        while not over.wait(USUAL_S):
            lab.shape(node, rate)
            over.wait(SLOW_S)
            lab.shape(node, "200mbit")

    thread = threading.Thread(target=toggle, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def spinning(lab: Lab, count: int) -> Iterator[None]:
    """Run other programs beside the ranks that never pause."""
    found = [lab.popen([sys.executable, "-c", SPIN], stdout=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for one in found:
            one.kill()
            one.wait()


def run(lab: Lab, directory: Path, text: str) -> Finished:
    file = directory / "tails.toml"
    file.write_text(HEAD + text, encoding="utf-8")
    return accept(lab, directory / "report", "--hardware", str(file), *ALL_REDUCE)


def outcomes(check: dict[str, Any]) -> dict[str, str]:
    return {one["metric"]: one["outcome"] for one in check["judgements"]}


def all_reduce(done: Finished) -> dict[str, Any]:
    (check,) = [one for one in done.checks() if "test_busbw_holds_its_floor[all_reduce" in one["id"]]
    return check


@pytest.mark.long
def test_a_link_that_is_slow_now_and_then_passes_the_median_and_fails_the_tail(tmp_path: Path) -> None:
    with Lab.up(nodes=2, rate="200mbit") as lab, now_and_then(lab, "n02", "100mbit"):
        check = all_reduce(run(lab, tmp_path, TAIL))
    assert outcomes(check) == {"busbw": "pass", "busbw_mean": "pass", "slow_fraction": "fail"}, check[
        "reason"
    ]


@pytest.mark.quiet
def test_a_healthy_link_keeps_its_tail(tmp_path: Path) -> None:
    with Lab.up(nodes=2, rate="200mbit") as lab:
        check = all_reduce(run(lab, tmp_path, TAIL))
    assert set(outcomes(check).values()) == {"pass"}, check["reason"]


@pytest.mark.long
def test_a_floor_missed_on_a_busy_machine_is_unchecked(tmp_path: Path) -> None:
    with Lab.up(nodes=1, slots=2, rate="200mbit") as lab, spinning(lab, 4):
        done = run(lab, tmp_path, SHARED + UNREACHABLE)
    check = all_reduce(done)
    assert check["outcome"] == "unchecked", check["reason"]
    assert "as other programs had CPUs that the ranks on n01 wanted for" in check["reason"]
    assert done.listed("rejected") == []


@pytest.mark.long
def test_a_slow_rank_is_a_failure_whoever_shares_the_machine(tmp_path: Path) -> None:
    with Lab.up(nodes=1, slots=2, rate="200mbit") as lab:
        lab.patch_torch("n01", LATE)
        check = all_reduce(run(lab, tmp_path, SHARED))
    assert check["outcome"] == "fail", check["reason"]
    assert "all_reduce busbw" in check["reason"]
