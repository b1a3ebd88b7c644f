"""Nodes that cannot be measured are unproven, each with one clear message; the others are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.runs import Running, accept
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

COLLECTIVES = ("--hardware", "lab-200mbit", "--workload", "nodes,collectives")
# Every kind of case and little of it; a selection accepts nobody, so verdicts are read check by check.
FEW = ("--hardware", "lab-200mbit", "-k", "test_node_is_ready or (every_element and fp32)")


def test_unreachable_and_changed_key_are_unproven_and_the_rest_is_accepted(tmp_path: Path) -> None:
    with Lab.up(nodes=4, rate="200mbit") as lab:
        lab.power_off("n03")
        lab.change_host_key("n04")
        done = accept(lab, tmp_path, *COLLECTIVES)
    assert (done.status, done.listed("accepted")) == (2, ["n01", "n02"]), done.output
    assert done.listed("unproven") == ["n03", "n04"]
    assert "No route to host" in done.reason("n03")
    assert "host key has changed" in done.reason("n04")
    assert done.output.count("No route to host") <= 3  # once when it is noticed, once per summary


def test_a_second_run_is_told_who_holds_the_nodes(tmp_path: Path) -> None:
    with Lab.up(nodes=2, rate="200mbit") as lab:
        first = Running(lab, tmp_path / "first", *COLLECTIVES)
        first.wait_for_ranks()
        second = accept(lab, tmp_path / "second", *FEW)
        done = first.finish(300)
    assert second.status == 1, second.output  # a selection ends as pytest users expect
    assert "another Shakedown run holds it" in second.reason("n01")
    assert "user root" in second.reason("n01")
    assert done.status == 0, done.output


def test_a_python_that_is_not_there_is_said(tmp_path: Path) -> None:
    with Lab.up(nodes=2, rate="200mbit") as lab:
        done = accept(lab, tmp_path, *FEW, "--remote-python", "/opt/none/python3")
    assert done.listed("accepted") == []
    assert "--remote-python" in done.reason("n02")


def test_a_noisy_login_shell_and_a_node_without_torch(tmp_path: Path) -> None:
    with Lab.up(nodes=3, rate="200mbit") as lab:
        lab.noisy_shell("n01", "Welcome to n01!\n::0000 {not a frame}")
        lab.patch_torch("n03", "raise ImportError('libcudart.so.12: cannot open shared object file')")
        done = accept(lab, tmp_path, *FEW)
    assert "libcudart.so.12" in done.reason("n03")
    passed = [check for check in done.checks() if check["outcome"] == "pass"]
    assert {tuple(check["nodes"]) for check in passed} >= {("n01",), ("n02",), ("n01", "n02")}
    assert not [check for check in passed if "n03" in check["nodes"]]
