"""Foreign work on the one machine that all nodes of a lab are: it is seen, and held against nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.runs import Running
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

NODES = ["n01", "n02", "n03", "n04"]
# In real time, on each core for half of it: who is only busy gives way to ranks that wake up.
BURST = """
import time

end = time.monotonic() + 5.0
while time.monotonic() < end:
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    time.sleep(0.05)
"""


@pytest.mark.long
def test_a_burst_of_foreign_work_costs_nobody_the_verdict(tmp_path: Path) -> None:
    with Lab.up(nodes=4, rate="200mbit") as lab:
        running = Running(lab, tmp_path, "--hardware", "lab-200mbit", "--workload", "collectives")
        running.wait_for_ranks()
        for _ in range(2):
            lab.popen(["chrt", "-f", "50", sys.executable, "-S", "-c", BURST], stdout=subprocess.DEVNULL)
        done = running.finish(300)
    assert (done.status, done.listed("accepted")) == (0, NODES), done.output
    assert done.faults() == []
    again = [one for one in done.checks() if "measured_again" in one["properties"]]
    assert again, done.output
    for one in again:
        assert one["recorded"]["missed"]["outcome"] == "fail"
        assert "CPUs at work that all these nodes share" in one["reason"]
        assert one["reason"] in done.output
