"""A file or floor that is calibrated in the lab accepts healthy nodes, and does not accept slow ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.rows.patches import PRODUCT_TWICE
from tests.faults.runs import Finished, accept
from tests.lab import Lab
from thresholds.__main__ import main

pytestmark = [pytest.mark.lab, pytest.mark.quiet, pytest.mark.usefixtures("require_lab")]
Capture = pytest.CaptureFixture[str]

# The steadiest of gloo's collectives, measured in two seconds.
SMALL = ("--workload", "nodes,collectives", "-k", "busbw_holds and network and all_reduce")
LIKE = (
    "--like",
    "lab-200mbit",
    "--most-margin",
    "busbw_mean=0.9",
)  # a mean has the stalls of two cores in it
NODES = ("--workload", "nodes")
CALIBRATED = """
[hardware]
name = "lab-calibrated"
about = "The lab, with a floor for products that this very machine reached a minute ago"
extends = "lab-200mbit"
auto = false

[[limit]]
metric = "tflops"
step = "nodes.matmul"
dtype = "fp32"
path = "memory"
min = {floor}
source = "three quarters of what both nodes of this lab reached in the run before"
date = 2026-11-20
derived = true
"""


@dataclass(frozen=True)
class Runs:
    """Report directories of runs in one lab: five healthy ones, and one in which a link was slow."""

    lab: Lab
    healthy: list[str]
    slow: str

    def id_of(self, report: str) -> str:
        """The id that a run gave itself."""
        with (Path(report) / "results.jsonl").open() as journal:
            return str(json.loads(journal.readline())["run_id"])


@pytest.fixture(scope="module")
def runs(require_lab: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    place = tmp_path_factory.mktemp("runs")
    with Lab.up(nodes=3, rate="200mbit") as lab:
        for number in range(5):
            accept(lab, place / f"healthy-{number}", "--hardware", "none", *SMALL)
        lab.shape("n03", "100mbit")
        accept(lab, place / "slow", "--hardware", "none", *SMALL)
        lab.shape("n03", "200mbit")
        yield Runs(lab, [str(place / f"healthy-{number}") for number in range(5)], str(place / "slow"))


def test_five_healthy_runs_and_the_sixth_passes(runs: Runs, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "learned.toml"
    assert main(["calibrate", *runs.healthy, *LIKE, "-o", str(file)]) == 0, capsys.readouterr().err
    done = accept(runs.lab, tmp_path / "sixth", "--hardware", str(file), *SMALL)
    assert done.status == 0, done.output
    assert [check["outcome"] for check in done.checks()] == ["pass"]
    # and it judges: what was slow then does not meet it
    capsys.readouterr()
    assert main(["diff", str(file), runs.slow]) == 1
    assert any(
        "all_reduce busbw at 1MiB" in line and line.split()[-2].startswith("-")
        for line in capsys.readouterr().out.splitlines()
    )


def test_a_run_with_a_slow_link_is_left_out_and_said(runs: Runs, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "learned.toml"
    main(["calibrate", *runs.healthy[:4], runs.slow, *LIKE, "-o", str(file)])
    said = capsys.readouterr().err
    assert f"run {runs.id_of(runs.slow)} is left out of all figures across nodes: " in said
    assert "busbw" in said
    assert "no node can be named" in said


def test_runs_that_all_have_a_slow_link_are_refused(runs: Runs, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "learned.toml"
    assert main(["calibrate", runs.slow, *LIKE, "-o", str(file)]) == 1
    said = capsys.readouterr().err
    assert "by lab-200mbit these nodes are not healthy: all_reduce busbw" in said
    assert not file.exists()


def test_a_node_at_half_its_speed_misses_the_calibrated_floor(tmp_path: Path) -> None:
    with Lab.up(nodes=2, rate="200mbit") as lab:
        before = accept(lab, tmp_path / "before", "--hardware", "lab-200mbit", *NODES)
        assert before.status == 0, before.output
        floor = 0.75 * min(tflops(before))
        file = tmp_path / "calibrated.toml"
        file.write_text(CALIBRATED.format(floor=floor), encoding="utf-8")
        healthy = accept(lab, tmp_path / "healthy", "--hardware", str(file), *NODES)
        lab.patch_torch("n02", PRODUCT_TWICE)
        slow = accept(lab, tmp_path / "slow", "--hardware", str(file), *NODES)
    assert healthy.status == 0, healthy.output
    assert slow.listed("rejected") == ["n02"], slow.output
    assert slow.listed("accepted") == ["n01"]
    assert any("nodes.matmul tflops" in one and "rank 0 on n02" in one for one in slow.faults())


def tflops(done: Finished) -> list[float]:
    """What every node reached in fp32, all devices at once and alone."""
    found = [check for check in done.checks() if "[fp32-n0" in check["id"]]
    assert len(found) == 2, json.dumps(found)
    return [one["value"] for check in found for one in check["recorded"]["devices"]]
