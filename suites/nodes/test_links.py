"""The links inside a node are as wide and as fast as they should be."""

from __future__ import annotations

from fixtures.check.check import Check
from fixtures.check.judges import device_data, devices, peers
from fixtures.check.plan import NODE, Case, over

HOST = [Case("nodes.host_links", weight=2.0, compared=True)]
PAIRS = [Case("nodes.peer_links", weight=2.0, compared=True)]


@over(HOST, NODE, metrics=("host_to_device", "device_to_host"))
def test_links_to_the_host_hold_their_floor(check: Check) -> None:
    """Pinned copies to and from each device, all at once and alone; the PCIe link as it is under load."""
    check.measure_step()
    check.judge_by(device_data.right("copies"), devices.figures, device_data.pcie, beside=peers.of_devices)


@over(PAIRS, NODE, metrics=("peer_to_peer",))
def test_links_between_devices_hold_their_floor(check: Check) -> None:
    """Copies between every two devices, both ways: the slowest pair must hold the floor."""
    check.measure_step()
    check.judge_by(devices.pairs, beside=peers.of_pairs)
