"""Every fault between nodes does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.node.processes import wait_until
from tests.lab import Lab
from tests.lab.probe import bits_per_s, reach
from tests.lab.pytest_support import lab_of

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

RATE = 200e6


lab = lab_of(nodes=3, rate="200mbit", scope="function")


def carrier(lab: Lab, node: str) -> str:
    return lab.on(node, ["cat", "/sys/class/net/eth0/carrier"]).stdout.strip()


def comes_to(lab: Lab, node: str, state: str) -> bool:
    return wait_until(lambda: carrier(lab, node) == state, 5.0, poll_s=0.01)


def test_a_switch_port_that_takes_only_small_packets_loses_large_ones_of_its_node(lab: Lab) -> None:
    for node in lab.nodes:
        lab.mtu(node, 9000)
        lab.switch_mtu(node, 9000)
    assert bits_per_s(lab, "n01", "n02") > 0.5 * RATE
    lab.switch_mtu("n02", 1500)
    assert reach(lab, "n01", "n02") == "ok"  # the handshake is small
    assert bits_per_s(lab, "n01", "n02", patience_s=0.7) == 0.0
    assert bits_per_s(lab, "n02", "n03", patience_s=0.7) == 0.0
    assert bits_per_s(lab, "n01", "n03") > 0.5 * RATE


def test_a_spine_joins_two_switches_and_has_a_rate_of_its_own(lab: Lab) -> None:
    lab.split("n03", "60mbit")
    assert bits_per_s(lab, "n01", "n02") > 0.5 * RATE
    assert 0.1 * RATE < bits_per_s(lab, "n01", "n03", 2_000_000) < 0.35 * RATE
    assert 0.1 * RATE < bits_per_s(lab, "n03", "n02", 2_000_000) < 0.35 * RATE


def test_a_link_comes_and_goes_until_it_is_made_fast(lab: Lab) -> None:
    lab.flap("n02", 0.1, 0.1)
    for state in ("0", "1", "0", "1"):
        assert comes_to(lab, "n02", state)
    lab.unflap("n02")
    assert reach(lab, "n01", "n02", timeout_s=5) == "ok"
    assert not (Path(lab.files("n02")) / "loose").exists()


def test_a_slow_loopback_is_slow_inside_one_node_only(lab: Lab) -> None:
    lab.shape_loopback("n02", "50mbit")
    assert "rate 50Mbit" in lab.on("n02", ["tc", "qdisc", "show", "dev", "lo"]).stdout
    assert bits_per_s(lab, "n02", "n02", 2_000_000) < 0.3 * RATE
    assert bits_per_s(lab, "n01", "n01", 2_000_000) > RATE
    assert bits_per_s(lab, "n01", "n02") > 0.5 * RATE
