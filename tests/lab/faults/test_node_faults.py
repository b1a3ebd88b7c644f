"""Every fault of machines and processes does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.node.processes import wait_until
from tests.lab import Lab, LabError
from tests.lab.probe import background, login, reach
from tests.lab.processes import status_of
from tests.lab.pytest_support import lab_of

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

# WATCH connects to LISTEN on another node, says so, and then prints how the connection ended.
LISTEN = """
import socket
server = socket.create_server(("0.0.0.0", 7100))
print("ready")
connection, _ = server.accept()
connection.send(b"x")
connection.recv(1)
"""
WATCH = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7100))
connection.recv(1)
connection.settimeout(float(sys.argv[2]))
print("ready")
try:
    print("closed" if connection.recv(1) == b"" else "data")
except OSError as error:
    print(type(error).__name__)
"""
COUNT = """
print("ready")
while True:
    input()
    print("still here")
"""


lab = lab_of(nodes=2, rate="200mbit")


def fate_of_a_connection(lab: Lab, end: str) -> str:
    """What n01 sees of its connection to n02 when n02 is ended by the method `end`."""
    with (
        background(lab, "n02", LISTEN),
        background(lab, "n01", WATCH, lab.address("n02"), "1.0") as watcher,
    ):
        getattr(lab, end)("n02")
        return watcher.communicate(timeout=20)[0].strip()


def test_power_off_is_noticed_by_peers_and_power_on_boots_anew(lab: Lab) -> None:
    boot = lab.on("n02", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout
    assert fate_of_a_connection(lab, "power_off") in ("closed", "ConnectionResetError")
    with pytest.raises(LabError, match="n02 is switched off"):
        lab.processes("n02")
    with pytest.raises(LabError, match="n02 is switched off"):
        lab.power_off("n02")
    with pytest.raises(LabError, match="n02 is switched off"):
        lab.env("n02", "NAME", "value")
    lab.power_on("n02")
    assert lab.on("n02", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout != boot
    assert login(lab, "n02", "hostname").stdout == "n02\n"
    assert "rate 200Mbit" in lab.on("n02", ["tc", "qdisc", "show", "dev", "eth0"]).stdout
    with pytest.raises(LabError, match="n02 is on"):
        lab.power_on("n02")
    again = lab.on("n02", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout
    lab.restart("n02")
    assert lab.on("n02", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout not in (boot, again)


def test_a_node_that_vanishes_says_nothing(lab: Lab) -> None:
    assert fate_of_a_connection(lab, "vanish") == "TimeoutError"
    lab.power_on("n02")
    assert reach(lab, "n01", "n02", timeout_s=5) == "ok"


def test_processes_are_stopped_continued_and_killed_by_what_they_run(lab: Lab) -> None:
    with background(lab, "n01", COUNT, "victim"), background(lab, "n01", COUNT, "other") as other:
        (process,) = lab.processes("n01", "victim")
        assert process.argv[-1] == "victim"
        assert lab.stop("n01", "victim") == [process.pid]
        assert status_of(process.outer_pid)["State"].startswith("T")
        assert lab.cont("n01", "victim") == [process.pid]
        assert not status_of(process.outer_pid)["State"].startswith("T")
        assert lab.kill("n01", "victim") == [process.pid]
        assert lab.processes("n01", "victim") == []
        assert other.communicate("\n", timeout=10)[0] == "still here\n"
    assert lab.kill("n01", "victim") == []
    with pytest.raises(LabError, match="an empty match"):
        lab.kill("n01", "")


def test_a_frozen_node_answers_nobody_until_it_thaws(lab: Lab) -> None:
    assert 1 in lab.freeze("n01")
    assert reach(lab, "n02", "n01") == "ok"  # its kernel takes the connection
    with pytest.raises(subprocess.TimeoutExpired):
        login(lab, "n01", "hostname", timeout_s=0.7)
    lab.thaw("n01")
    assert login(lab, "n01", "hostname").stdout == "n01\n"


def test_a_port_is_taken_and_given_back(lab: Lab) -> None:
    bind = [sys.executable, "-S", "-c", "import socket; socket.create_server(('0.0.0.0', 29500))"]
    assert lab.on("n01", bind).returncode == 0
    lab.occupy_port("n01", 29500)
    assert "Address already in use" in lab.on("n01", bind).stderr
    assert reach(lab, "n02", "n01", port=29500) == "ok"
    with pytest.raises(LabError, match="Address already in use"):
        lab.occupy_port("n01", 29500)
    lab.release_port("n01", 29500)
    assert lab.processes("n01", "lab-port") == []
    assert lab.on("n01", bind).returncode == 0


def test_hogs_run_until_they_are_ended(lab: Lab) -> None:
    lab.hog("n01", 2)
    hogs = lab.processes("n01", "lab-hog")
    assert len(hogs) == 2
    assert {status_of(hog.outer_pid)["State"][0] for hog in hogs} == {"R"}
    lab.unhog("n01")
    assert lab.processes("n01", "lab-hog") == []


def test_python_disappears_from_one_node(lab: Lab) -> None:
    run = f"{sys.executable} -S -c 'print(1)'"
    lab.remove_python("n01")
    assert login(lab, "n01", run).returncode == 127
    assert login(lab, "n02", run).stdout == "1\n"
    assert os.path.exists(sys.executable)
    lab.restore_python("n01")
    assert login(lab, "n01", run).stdout == "1\n"
    with pytest.raises(LabError, match="also holds the node's shell"):
        lab.remove_python("n01", "/usr/bin/python3")


def test_storage_takes_requests_and_answers_none_until_it_is_lost(lab: Lab) -> None:
    lab.silent_storage("n01", "/run/storage")
    asked = lab.popen_on("n01", ["stat", "-f", "/run/storage"])

    def states() -> list[str]:
        asking = lab.processes("n01", "stat -f")
        return [status_of(process.outer_pid)["State"][:1] for process in asking]

    assert wait_until(lambda: states() == ["S"], 10, poll_s=0.05)
    with pytest.raises(TimeoutError, match="took no notice of a signal"):
        lab.kill("n01", "stat -f")
    assert wait_until(lambda: states() == ["D"], 10, poll_s=0.05)
    lab.lost_storage("n01")
    asked.wait(10)
    told = lab.on("n01", ["stat", "/run/storage"])
    assert "Transport endpoint is not connected" in told.stderr


def test_a_name_can_mean_another_address_on_one_node(lab: Lab) -> None:
    machine = Path("/etc/hosts").read_text()
    lab.resolve("n01", "n01", "127.0.1.1")
    assert lab.on("n01", ["getent", "hosts", "n01"]).stdout.split() == ["127.0.1.1", "n01"]
    assert lab.on("n02", ["getent", "hosts", "n01"]).stdout.split() == [lab.address("n01"), "n01"]
    lab.unresolve("n01")
    assert lab.on("n01", ["getent", "hosts", "n01"]).stdout.split() == [lab.address("n01"), "n01"]
    assert Path("/etc/hosts").read_text() == machine


def test_pytorch_is_another_version_on_one_node(lab: Lab) -> None:
    ask = f"{sys.executable} -c 'import torch; print(torch.__version__)'"
    before = login(lab, "n02", ask, timeout_s=60).stdout
    lab.torch_version("n01", "2.9.1")
    assert login(lab, "n01", ask, timeout_s=60).stdout == "2.9.1\n"
    assert login(lab, "n02", ask, timeout_s=60).stdout == before
    lab.restore_torch("n01")
    assert login(lab, "n01", ask, timeout_s=60).stdout == before
