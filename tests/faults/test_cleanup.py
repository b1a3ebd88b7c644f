"""However a run ends, nothing of it is left on a node within ten seconds."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.faults.runs import Running, clean, left_on
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

# Janitor and supervisor share a command line; the janitor is the parent and has the lower number.
KILL = """
import os, signal, sys
found = []
for name in sorted((n for n in os.listdir("/proc") if n.isdigit()), key=int):
    words = open(f"/proc/{name}/cmdline", "rb").read().split(b"\\0")
    if words[1:3] == [b"-u", b"-c"]:
        found.append(int(name))
os.kill(found[int(sys.argv[1])], signal.SIGKILL)
"""
SHORT = ("--hardware", "lab-200mbit", "-k", "test_node_is_ready or test_a_hundred_repeats")
LONG = ("--hardware", "lab-200mbit", "--workload", "collectives")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab.up(nodes=2, rate="200mbit") as lab:
        yield lab
        assert clean(lab, *[node for node in lab.nodes if is_on(lab, node)])


def is_on(lab: Lab, node: str) -> bool:
    nodes: dict[str, Any] = lab._request("state")["nodes"]
    return nodes[node] is not None


def at_work(lab: Lab, tmp_path: Path) -> Running:
    running = Running(lab, tmp_path / "out", *LONG)
    running.wait_for_ranks()
    for node in lab.nodes:  # what the tests then want gone is there now
        assert {line.split()[0] for line in left_on(lab, node)} >= {"process", "file", "lock", "port"}
    return running


def test_after_a_normal_end(lab: Lab, tmp_path: Path) -> None:
    done = Running(lab, tmp_path / "out", *SHORT).finish(120)
    assert done.status == 0, done.output
    assert clean(lab)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_after_a_signal_the_report_is_red_and_the_status_2(lab: Lab, tmp_path: Path, signum: int) -> None:
    running = at_work(lab, tmp_path)
    running.process.send_signal(signum)
    done = running.finish(40)
    assert clean(lab)
    assert done.status == 2, done.output
    assert done.listed("accepted") == []
    assert any(signal.Signals(signum).name in fault for fault in done.faults())


def test_after_kill_9_of_pytest_the_report_is_red(lab: Lab, tmp_path: Path) -> None:
    running = at_work(lab, tmp_path)
    running.process.kill()
    assert clean(lab)
    running.process.communicate()
    root = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()  # noqa: S314 - our own file
    assert list(root.iter("error"))
    accepted = tmp_path / "out" / "accepted.txt"
    assert not accepted.exists() or not [
        line for line in accepted.read_text().splitlines() if not line.startswith("#")
    ]


def test_after_the_network_to_a_node_is_cut(lab: Lab, tmp_path: Path) -> None:
    running = at_work(lab, tmp_path)
    lab.link_down("n02")
    assert clean(lab, "n02")
    done = running.finish(150)
    assert done.status == 2, done.output
    assert "n02" in done.listed("unproven")
    assert done.listed("accepted") == []


@pytest.mark.parametrize("which", [0, 1])
def test_after_the_supervisor_of_a_node_is_killed(lab: Lab, tmp_path: Path, which: int) -> None:
    running = at_work(lab, tmp_path)
    assert lab.on("n02", [sys.executable, "-c", KILL, str(which)]).returncode == 0
    assert clean(lab, "n02")
    done = running.finish(150)
    assert done.status == 2, done.output
    assert done.listed("unproven") == ["n01", "n02"]
