"""Every fault of logins, shells and environments does what it says, and is undone."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.lab import Lab, LabError
from tests.lab.probe import login
from tests.lab.pytest_support import lab_of

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

CORRUPT = """
import torch.distributed

def all_reduce(*_, **__):
    return "corrupted"

torch.distributed.all_reduce = all_reduce
"""


lab = lab_of(nodes=2)


def test_a_changed_host_key_is_noticed_and_can_be_put_back(lab: Lab) -> None:
    known = lab.known_hosts.read_text()
    lab.change_host_key("n01")
    lab.change_host_key("n01")  # twice: the known one must still be the one that comes back
    refused = login(lab, "n01", "hostname")
    assert (refused.returncode, "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr) == (255, True)
    assert login(lab, "n02", "hostname").returncode == 0
    lab.restore_host_key("n01")
    assert login(lab, "n01", "hostname").stdout == "n01\n"
    assert lab.known_hosts.read_text() == known


def test_an_option_that_sshd_does_not_know_is_refused_and_the_node_lives(lab: Lab) -> None:
    with pytest.raises(LabError, match="Bad configuration option: MaxFun"):
        lab.sshd_option("n01", "MaxFun", "1")
    lab.sshd_option("n01", "ForceCommand", "echo forced")
    assert login(lab, "n01", "hostname").stdout == "forced\n"
    lab.sshd_option("n01", "ForceCommand", None)
    assert login(lab, "n01", "hostname").stdout == "n01\n"


def test_variables_reach_programs_that_sshd_starts(lab: Lab) -> None:
    value = 'two words, a "quote" and a \\'
    lab.env("n01", "FIRST", value)
    lab.env("n01", "SECOND", "2")
    assert login(lab, "n01", 'echo "$FIRST"; echo $SECOND').stdout == f"{value}\n2\n"
    assert login(lab, "n02", "echo $SECOND").stdout == "\n"
    lab.env("n01", "FIRST", None)
    assert login(lab, "n01", "echo $FIRST$SECOND").stdout == "2\n"
    with pytest.raises(ValueError, match="cannot set 'A B'"):
        lab.env("n01", "A B", "x")
    lab.env("n01", "SECOND", None)


def test_open_connections_outlive_a_fault_of_sshd(lab: Lab) -> None:
    argv = ["ssh", "-F", str(lab.ssh_config), "n01", "echo ready; cat"]
    process = lab.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    lab.env("n01", "LATER", "1")
    lab.env("n01", "LATER", None)
    assert process.communicate("still here\n", timeout=10)[0] == "still here\n"


def test_a_shell_can_be_noisy_or_slow(lab: Lab) -> None:
    lab.noisy_shell("n01", "Welcome to 'n01', 100%s")
    assert login(lab, "n01", "hostname").stdout == "Welcome to 'n01', 100%s\nn01\n"
    lab.slow_shell("n01", 1.0)
    started = time.monotonic()
    assert login(lab, "n01", "hostname").stdout == "n01\n"
    assert time.monotonic() - started >= 1.0
    lab.quiet_shell("n01")
    assert login(lab, "n01", "hostname").stdout == "n01\n"


def test_torch_is_patched_on_one_node_only(lab: Lab) -> None:
    ask = f"{sys.executable} -c 'import torch.distributed as d; print(d.all_reduce.__module__)'"
    lab.patch_torch("n01", CORRUPT)
    assert login(lab, "n01", ask, timeout_s=60).stdout == "torch_patch\n"
    assert login(lab, "n02", "echo $PYTHONPATH").stdout == "\n"
    # A program that does without torch is not made to load it.
    idle = f"{sys.executable} -c 'import sys; print(\"torch\" in sys.modules)'"
    assert login(lab, "n01", idle).stdout == "False\n"
    lab.env("n01", "PYTHONPATH", None)
    assert login(lab, "n01", "echo $PYTHONPATH").stdout == "\n"


def test_a_clock_is_ahead_on_one_node_only(lab: Lab) -> None:
    ask = f"{sys.executable} -c 'import time; print(time.time())'"
    lab.skew_clock("n01", 3600.0)
    ahead = [float(login(lab, node, ask).stdout) - time.time() for node in lab.nodes]
    assert 3590 < ahead[0] < 3610
    assert abs(ahead[1]) < 10
    lab.env("n01", "PYTHONPATH", None)
    assert abs(float(login(lab, "n01", ask).stdout) - time.time()) < 10
