"""Run the suite in a lab as a user would, and look at what it leaves on nodes and in reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fixtures.cluster.job import WITHOUT_GPUS
from fixtures.node.processes import wait_until
from tests.lab import Lab

SUITE = [sys.executable, "-m", "pytest", "suites/", "-p", "no:cacheprovider"]
# Finds everything of a run that is left on a node, and prints one item per line.
LEFT = """
import glob, os
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        line = open(f"/proc/{name}/cmdline", "rb").read().replace(b"\\0", b" ").decode()
        if "python" in line and str(os.getpid()) != name:
            print("process", name, line[:120])
for path in glob.glob("/tmp/shakedown-*") + glob.glob("/dev/shm/*"):
    print("file", path)
for line in open("/proc/net/unix"):
    if "shakedown" in line:
        print("lock", line.split()[-1])
for line in open("/proc/net/tcp").readlines()[1:]:
    local, state = line.split()[1], line.split()[3]
    if state == "0A" and int(local.split(":")[1], 16) != 22:
        print("port", int(local.split(":")[1], 16))
"""


@dataclass(frozen=True)
class Finished:
    """A run that has ended, and its report."""

    status: int
    output: str
    report: Path

    @property
    def verdict(self) -> dict[str, Any]:
        """verdict.json."""
        verdict: dict[str, Any] = json.loads((self.report / "verdict.json").read_text())
        return verdict

    def listed(self, name: str) -> list[str]:
        """The host names in accepted.txt, rejected.txt or unproven.txt."""
        lines = (self.report / f"{name}.txt").read_text().splitlines()
        return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]

    def reason(self, node: str) -> str:
        """Why a node got its verdict."""
        return next(str(entry["reason"]) for entry in self.verdict["nodes"] if entry["node"] == node)

    def checks(self) -> list[dict[str, Any]]:
        """The check records of the journal, in the order in which they ended."""
        records = map(json.loads, (self.report / "results.jsonl").read_text().splitlines())
        return [record for record in records if record["type"] == "check"]

    def inventory(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The checks of the inventory, by node and subject."""
        checks = [check for check in self.checks() if "test_inventory[" in check["id"]]
        subjects = [check["name"].partition("[")[2].partition("-")[0] for check in checks]
        found = {(check["nodes"][0], subject): check for subject, check in zip(subjects, checks, strict=True)}
        assert len(found) == len(checks)
        return found

    def faults(self) -> list[str]:
        """The message of every failure and error in junit.xml."""
        root = ElementTree.parse(self.report / "junit.xml").getroot()  # noqa: S314 - our own file
        return [str(element.get("message")) for kind in ("failure", "error") for element in root.iter(kind)]


class Running:
    """The suite at work in a lab."""

    def __init__(self, lab: Lab, report: Path, *arguments: str) -> None:
        self.lab, self.report = lab, report
        argv = [*SUITE, *lab.suite_arguments(), "--report-dir", str(report), *arguments]
        self.process = lab.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def finish(self, timeout_s: float) -> Finished:
        """Wait for its end."""
        output, _ = self.process.communicate(timeout=timeout_s)
        return Finished(self.process.returncode, output, self.report)

    def end(self, most_s: float) -> Finished:
        """Wait for its end; kill it when it takes too long."""
        try:
            return self.finish(most_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.finish(most_s)

    def wait_for_ranks(self) -> None:
        """Wait until every node has ranks that take cases."""
        self.wait_for(lambda journal: any(map(_starts_cases, journal.splitlines(keepends=True))))

    def wait_for(self, condition: Callable[[str], bool], deadline_s: float = 240.0) -> None:
        """Wait until the condition holds for the text of the journal."""
        journal = self.report / "results.jsonl"
        there = wait_until(
            lambda: journal.exists() and condition(journal.read_text()), deadline_s, poll_s=0.1
        )
        assert there, f"{journal} does not say what was waited for"


def _starts_cases(line: str) -> bool:
    """Whether a journal line is complete and records a job that judges nodes, and not the self-check's."""
    record: dict[str, Any] = json.loads(line) if line.endswith("\n") else {"type": "cut"}
    return record["type"] == "job" and not WITHOUT_GPUS.items() <= record["environment"].items()


def accept(lab: Lab, report: Path, *arguments: str, timeout_s: float = 600.0) -> Finished:
    """Run the whole suite to its end."""
    return Running(lab, report, *arguments).finish(timeout_s)


def left_on(lab: Lab, node: str) -> list[str]:
    """What a run has left on a node, found by a Python that is there even where the suite's is gone."""
    done = lab.on(node, [os.path.realpath(sys.executable), "-c", LEFT])
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def clean(lab: Lab, *nodes: str, deadline_s: float = 10.0) -> bool:
    """Whether these nodes (all, if none is named) hold nothing of a run within the deadline."""
    return wait_until(
        lambda: not any(left_on(lab, node) for node in nodes or lab.nodes), deadline_s, poll_s=0.3
    )
