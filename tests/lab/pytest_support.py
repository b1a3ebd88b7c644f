"""For tests that need a lab: `pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]`.

`lab = lab_of(nodes=2)` lends them one.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.lab import Lab
from tests.lab.parts.sshd import PROGRAM

_PROGRAMS = ("ip", "tc", "bridge", "unshare", "nsenter", "setpriv", "mount", "ssh")
# What every lab does first, on devices that vanish with the command.
_TRIAL = """
ip link add name br0 type bridge
ip link add name n01 type veth peer name n02
ip link set dev n01 master br0
tc qdisc add dev n01 root tbf rate 100mbit burst 131072 latency 50ms
mount -t tmpfs lab /tmp
"""


@functools.cache
def lab_possible() -> str:
    """Why no lab can be made on this machine; "" when it can."""
    if not sys.platform.startswith("linux"):
        return f"a lab needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "a lab needs root"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    missing += [] if Path(PROGRAM).exists() else [PROGRAM]
    if missing:
        return f"a lab needs {', '.join(missing)} (iproute2, util-linux, openssh-server, openssh-client)"
    trial = ["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-ec", _TRIAL]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=30, check=False)
    return "" if done.returncode == 0 else f"no namespaces, bridge or shaper here: {done.stderr.strip()}"


@pytest.fixture(scope="session")
def require_lab() -> None:
    """Skip where no lab can be made, but fail in CI: there nothing may be left out quietly."""
    reason = lab_possible()
    if reason and os.environ.get("CI"):
        pytest.fail(f"CI must be able to make a lab: {reason}")
    if reason:
        pytest.skip(reason)  # noqa: TID251 - on a CI server this is a failure


def lab_of(nodes: int, rate: str | None = None, scope: Literal["module", "function"] = "module") -> Any:
    """A fixture: a lab for all tests of a module, or one for each."""

    @pytest.fixture(scope=scope)
    def lab(require_lab: None) -> Iterator[Lab]:
        with Lab.up(nodes, rate) as up:
            yield up

    return lab
