"""How much of DDP's exchange hides behind backward, on links of a known rate, as a user would see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.ranks.steps import Context
from fixtures.ranks.study.overlap import FEWEST_ROUNDS, ROUNDS
from suites.zero.overlap import Backward
from tests.faults.runs import Finished, accept
from tests.fixtures.ranks.gloo_world import run_world
from tests.lab import Lab

BUCKETED, ONE_BUCKET = 0.7, 0.1  # 1 - 1/6 and 0 in theory
RATE = "200mbit"
ARGUMENTS = ("--hardware", "lab-200mbit", "--workload", "zero", "-k", "overlap-network")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """The cases of this step, run across two nodes of two ranks each."""
    report: Path = tmp_path_factory.mktemp("overlap") / "out"
    with Lab.up(nodes=2, rate=RATE, slots=2) as lab:
        yield accept(lab, report, *ARGUMENTS)


def figures(finished: Finished) -> dict[str, float]:
    found: list[dict[str, Any]] = [check for check in finished.checks() if "figures" in check["recorded"]]
    assert len(found) == 1, finished.output
    recorded: dict[str, float] = found[0]["recorded"]["figures"]
    return recorded


@pytest.mark.lab
@pytest.mark.quiet
@pytest.mark.usefixtures("require_lab")
def test_on_a_shaped_link_buckets_hide_and_one_bucket_does_not(finished: Finished) -> None:
    found = figures(finished)
    assert finished.status == 0, finished.output
    assert found["overlap"] >= BUCKETED, found
    assert found["overlap_one_bucket"] <= ONE_BUCKET, found
    assert found["exchange_seconds"] < found["compute_seconds"], found


def timed_bits(ctx: Context) -> tuple[list[float], int, int]:
    """Errors of the repeat when a bit of a timed run had flipped, how many are compared, and the runs."""
    backward = Backward(ctx, layers=2, elements=64, bucket_bytes=512)
    backward.figures(0.001)
    backward.seen_bits[1][0] ^= 1
    entries = backward.repeat("x")
    return [entry["error"] for entry in entries], len(entries), len(backward.seen_bits)


def test_every_timed_run_is_held_against_the_others() -> None:
    errors, count, runs = run_world(1, timed_bits)[0]
    assert count == 2 + runs
    assert FEWEST_ROUNDS <= runs <= ROUNDS
    assert [error > 0 for error in errors] == [number == 2 + 1 for number in range(count)]
