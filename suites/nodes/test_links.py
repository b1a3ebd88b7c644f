"""The links inside a node are as wide and as fast as they should be."""

from __future__ import annotations

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import corruption, device_data, devices, peers
from fixtures.check.plan import NODE, Case
from suites.nodes import amounts

HOST = [Case("nodes.host_links", weight=2.0, compared=True, amounts=amounts.most)]
PAIRS = [Case("nodes.peer_links", weight=2.0, compared=True, amounts=amounts.most)]


@over(
    HOST,
    NODE,
    ask=requests.step,
    judges=[corruption.right("copies"), devices.figures, device_data.pcie, peers.of_devices],
    metrics=("host_to_device", "device_to_host"),
)
def test_links_to_the_host_hold_their_floor(check: Check) -> None:
    """Pinned copies to and from each device, all at once and alone; the PCIe link as it is under load."""
    check.run()


@over(PAIRS, NODE, ask=requests.step, judges=[devices.pairs, peers.of_pairs], metrics=("peer_to_peer",))
def test_links_between_devices_hold_their_floor(check: Check) -> None:
    """Copies between every two devices, both ways: the slowest pair must hold the floor."""
    check.run()
