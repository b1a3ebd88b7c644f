"""Every fault of the network does what it says, and `heal` undoes it, as measured by TCP between nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.lab import Lab, LabError
from tests.lab.probe import bits_per_s, login, reach
from tests.lab.pytest_support import lab_of

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

RATE = 200e6


shared = lab_of(nodes=3, rate="200mbit")


@pytest.fixture
def lab(shared: Lab) -> Iterator[Lab]:
    yield shared
    for node in shared.nodes:
        shared.heal(node)


def carries(lab: Lab, source: str, destination: str, share: float) -> bool:
    """Whether one direction between two nodes carries this share of the lab's rate, within 0.85 to 1.05.

    No sample may exceed the rate. A busy machine can fall short of it (headers alone take 4.5 %), so the best
    of three samples counts for the lower end.
    """
    size_bytes = round(5e6 * max(share, 0.6))
    samples: list[float] = []
    while len(samples) < 3 and max(samples, default=0.0) < 0.85 * share:
        samples.append(bits_per_s(lab, source, destination, size_bytes) / RATE)
    return 0.85 * share <= max(samples) <= 1.05 * share


def test_the_shape_is_real_and_so_is_another(lab: Lab) -> None:
    assert carries(lab, "n01", "n02", 1.0)
    lab.shape("n02", "100mbit")
    assert carries(lab, "n01", "n02", 0.5)
    assert carries(lab, "n02", "n01", 0.5)
    lab.heal("n02")
    assert carries(lab, "n01", "n02", 1.0)


def test_a_shape_can_be_lifted(lab: Lab) -> None:
    lab.shape("n01", None)
    lab.shape("n02", None)
    assert bits_per_s(lab, "n01", "n02") > 1.5 * RATE


def test_one_path_can_be_slow(lab: Lab) -> None:
    lab.shape_path("n01", "n02", "60mbit")
    assert carries(lab, "n01", "n02", 0.3)
    assert carries(lab, "n01", "n03", 1.0)
    assert carries(lab, "n02", "n01", 1.0)
    lab.shape_path("n01", "n03", "100mbit")  # a second one, and the first again
    lab.shape_path("n01", "n02", "80mbit")
    assert carries(lab, "n01", "n03", 0.5)
    assert carries(lab, "n01", "n02", 0.4)


def test_a_link_goes_down_and_comes_back(lab: Lab) -> None:
    lab.link_down("n02")
    assert lab.on("n02", ["cat", "/sys/class/net/eth0/carrier"]).stdout == "0\n"
    assert reach(lab, "n01", "n02") == "TimeoutError"
    assert [process.pid for process in lab.processes("n02")] == [1]  # the machine runs on
    lab.link_up("n02")
    assert reach(lab, "n02", "n01", timeout_s=5) == "ok"


def test_a_black_hole_is_silent_and_between_two_nodes_only(lab: Lab) -> None:
    lab.blackhole("n01", "n02")
    started = time.monotonic()
    assert reach(lab, "n01", "n02") == "TimeoutError"
    assert time.monotonic() - started >= 0.5  # nothing says that it is in vain
    assert reach(lab, "n01", "n03") == "ok"
    assert reach(lab, "n03", "n02") == "ok"
    lab.heal("n01")
    assert reach(lab, "n01", "n02", timeout_s=5) == "ok"
    with pytest.raises(LabError, match="n01 reaches itself"):
        lab.blackhole("n01", "n01")


@pytest.mark.parametrize(("how", "seen"), [("drop", "TimeoutError"), ("reject", "PermissionError")])
def test_a_firewall_keeps_peers_out_but_lets_ssh_in(lab: Lab, how: str, seen: str) -> None:
    lab.block_peers("n01", how)  # type: ignore[arg-type]  # parametrized
    assert {reach(lab, "n01", peer) for peer in ("n02", "n03")} == {seen}
    assert reach(lab, "n02", "n01") == "TimeoutError"
    assert reach(lab, "n02", "n03") == "ok"
    assert login(lab, "n01", "hostname").stdout == "n01\n"
    lab.heal("n01")
    assert reach(lab, "n01", "n02", timeout_s=5) == "ok"


def test_packets_too_large_for_the_switch_vanish(lab: Lab) -> None:
    for node in ("n01", "n02"):
        lab.mtu(node, 9000)
    assert reach(lab, "n01", "n02") == "ok"  # the handshake is small
    assert bits_per_s(lab, "n01", "n02", patience_s=0.7) == 0.0
    for node in ("n01", "n02"):
        lab.heal(node)
    assert carries(lab, "n01", "n02", 1.0)


def test_what_cannot_be_is_refused(lab: Lab) -> None:
    with pytest.raises(ValueError, match="no node 'n07' in this lab: it has n01 to n03"):
        lab.shape("n07", "100mbit")
    with pytest.raises(ValueError, match="rate 'slow' is not a rate"):
        lab.shape("n01", "slow")
    with pytest.raises(ValueError, match="direction 'up' is not both, tx or rx"):
        lab.shape("n01", "100mbit", "up")  # type: ignore[arg-type]
    with pytest.raises(LabError, match="mtu 7 failed in n01"):
        lab.mtu("n01", 7)
