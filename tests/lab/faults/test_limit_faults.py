"""Every limit on a node holds there, is lifted again, and leaves no group behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.lab.parts.groups import GROUPS, Group
from tests.lab.probe import background, login
from tests.lab.pytest_support import lab_of

WORK = """
import time
print("ready")
input()
start = time.process_time()
began = time.monotonic()
while time.process_time() - start < 0.2:
    pass
print(time.monotonic() - began)
"""
GREEDY = """
print("ready")
input()
kept = bytearray(300 << 20)
for place in range(0, len(kept), 4096):
    kept[place] = 1
print("had it")
"""


lab = lab_of(nodes=2)


def seconds_for_a_fifth_of_a_second(lab: Lab, share: float | None) -> float:
    with background(lab, "n01", WORK) as worker:
        lab.cpu_quota("n01", share)
        return float(worker.communicate("\n", timeout=30)[0])


@pytest.mark.alone
@pytest.mark.lab
def test_a_quota_makes_work_take_longer_until_it_is_lifted(lab: Lab) -> None:
    assert seconds_for_a_fifth_of_a_second(lab, 0.1) > 1.5
    assert seconds_for_a_fifth_of_a_second(lab, None) < 1.5


@pytest.mark.lab
def test_a_program_that_wants_more_memory_than_there_is_is_killed(lab: Lab) -> None:
    with background(lab, "n01", GREEDY) as greedy:
        lab.memory_limit("n01", 100 << 20)
        assert greedy.communicate("\n", timeout=30)[0] == ""
        assert greedy.returncode in (-9, 137)
    assert 0 < lab.memory_used("n01") < 100 << 20
    lab.memory_limit("n01", None)
    with background(lab, "n01", GREEDY) as greedy:
        assert greedy.communicate("\n", timeout=30)[0] == "had it\n"


@pytest.mark.lab
def test_a_limit_of_sshd_is_that_of_every_login(lab: Lab) -> None:
    before = login(lab, "n02", "ulimit -n").stdout
    lab.ulimit("n01", "nofile", 64)
    assert login(lab, "n01", "ulimit -n").stdout == "64\n"
    assert login(lab, "n02", "ulimit -n").stdout == before


@pytest.mark.lab
@pytest.mark.usefixtures("require_lab")
def test_nothing_is_left_of_the_groups_when_the_lab_is_down() -> None:
    with Lab.up(nodes=1) as lab:
        lab.cpu_quota("n01", 0.5)
        lab.memory_limit("n01", 1 << 30)
        groups = Group(GROUPS, lab.directory, "n01")._places()
        assert all(place.is_dir() for place in groups)
    deadline = time.monotonic() + 5
    while any(place.exists() for place in groups):
        assert time.monotonic() < deadline


def test_the_second_version_has_one_group_for_everything(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    group = Group(tmp_path, tmp_path, "n01")
    group.add([1])
    group.limit_cpu(2000, 10000)
    group.limit_memory(-1)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"
    (place,) = group._places()
    assert place.parent == tmp_path
    said = {path.name: path.read_text() for path in place.iterdir()}
    assert said == {"cgroup.procs": "1\n", "cpu.max": "2000 10000\n", "memory.max": "max\n"}
