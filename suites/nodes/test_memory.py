"""The memory of every device is as fast as it should be, and keeps what is written there."""

from __future__ import annotations

from fixtures.check.check import Check
from fixtures.check.judges import device_data, devices, peers
from fixtures.check.plan import NODE, Case, over

MEMORY = [Case("nodes.memory", weight=2.0, compared=True)]
PATTERN = [Case("nodes.pattern", weight=2.0)]


@over(MEMORY, NODE, metrics=("copy", "triad"))
def test_memory_holds_its_floor(check: Check) -> None:
    """Copy and triad of each device, all at once and alone."""
    check.measure_step()
    check.judge_by(device_data.right("copies and sums"), devices.figures, beside=peers.of_devices)


@over(PATTERN, NODE)
def test_every_cell_keeps_what_is_written_there(check: Check) -> None:
    """Nearly all of a device's memory is written, each word with its number and its inverse, and read."""
    check.measure_step()
    check.judge_by(device_data.pattern)
