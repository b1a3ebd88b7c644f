"""The memory of every device is as fast as it should be, and keeps what is written there."""

from __future__ import annotations

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import corruption, device_data, devices, peers
from fixtures.check.plan import NODE, Case
from suites.nodes import amounts

MEMORY = [Case("nodes.memory", weight=2.0, compared=True, amounts=amounts.most)]
PATTERN = [Case("nodes.pattern", weight=2.0)]


@over(
    MEMORY,
    NODE,
    ask=requests.step,
    judges=[corruption.right("copies and sums"), devices.figures, peers.of_devices],
    metrics=("copy", "triad"),
)
def test_memory_holds_its_floor(check: Check) -> None:
    """Copy and triad of each device, all at once and alone."""
    check.run()


@over(PATTERN, NODE, ask=requests.step, judges=[device_data.pattern])
def test_every_cell_keeps_what_is_written_there(check: Check) -> None:
    """Nearly all of a device's memory is written, each word with its number and its inverse, and read."""
    check.run()
