"""The self-check on this machine: real supervisors, real ranks, real faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fixtures.cluster.job import WITHOUT_GPUS
from tests.house.tree import ROOT

MOST_S = 8.0


@dataclass(frozen=True)
class Ran:
    """A run that is over, and its journal."""

    status: int
    output: str
    records: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["type"] == kind]

    def outcomes(self, suite: str) -> dict[str, str]:
        return {one["name"]: one["outcome"] for one in self.of("check") if suite in one["id"]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "report"


def run(report: Path, *arguments: str) -> Ran:
    options = ["-m", "pytest", "-p", "no:cacheprovider", "--report-dir"]
    command = [sys.executable, *options, str(report), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=300, check=False
    )
    lines = (report / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return Ran(done.returncode, done.stdout + done.stderr, [json.loads(line) for line in lines])


@pytest.mark.alone  # two runs on one machine keep each other out
def test_every_planted_fault_is_found_and_named_and_judges_no_node(here: Path) -> None:
    ran = run(here, "suites/nodes/test_reachability.py")
    assert ran.status == 0, ran.output
    assert set(ran.outcomes("selfcheck").values()) == {"pass"}
    assert [record["blame"] for record in ran.of("check") if record["blame"]] == []
    own, real = {job["id"]: job for job in ran.of("job")}.values()
    assert WITHOUT_GPUS.items() <= own["environment"].items()
    assert len(own["ranks"]) == 2
    assert not WITHOUT_GPUS.items() <= real["environment"].items()
    [hang] = [one for one in ran.of("check") if "hang" in one["name"]]
    said = hang["recorded"]["planted"][-1]
    assert "rank 1 on localhost (cpu) did not arrive" in said["reason"]


@pytest.mark.quiet
def test_it_takes_a_few_seconds_beside_the_start_of_its_job(here: Path) -> None:
    ran = run(here, "suites/selfcheck")
    start_s = ran.of("job")[0]["start_seconds"]
    assert sum(record["seconds"] for record in ran.of("check")) - start_s < MOST_S


@pytest.mark.alone  # two runs on one machine keep each other out
def test_ranks_that_plant_nothing_are_found_out(here: Path) -> None:
    ran = run(here, "suites/nodes/test_reachability.py", "-p", "tests.suites.selfcheck.deaf")
    assert ran.status != 0
    outcomes = ran.outcomes("selfcheck")
    assert outcomes.pop("test_what_is_healthy_passes[apart]") == "pass"
    assert outcomes.pop("test_a_floor_that_nothing_can_meet_is_missed[apart]") == "pass"
    assert set(outcomes.values()) == {"fail"}
    assert "the self-check did not pass" in ran.output
    verdict = json.loads((here / "verdict.json").read_text(encoding="utf-8"))
    assert [node["verdict"] for node in verdict["nodes"]] == ["unproven"]
