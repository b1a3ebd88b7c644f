"""A warm case on two nodes costs next to nothing; a torchrun for every case would cost seconds."""

from __future__ import annotations

import json
import sys

import pytest

from tests.lab import Lab

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

MOST_WARM_S = 0.025
LEAST_RATIO = 50


def test_a_warm_case_costs_at_most_25_ms_and_a_fiftieth_of_a_cold_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Lab.up(nodes=2, rate="200mbit") as lab:
        files = [str(lab.hosts_file), str(lab.ssh_config), str(lab.known_hosts), sys.executable]
        done = lab.run([sys.executable, "-m", "tests.bench.warm", *files], timeout_s=240)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    ratio = figures["cold_median_s"] / figures["warm_median_s"]
    with capsys.disabled():
        print(
            f"\na no-op case on 2 nodes: {figures['warm_median_s'] * 1e3:.1f} ms warm "
            f"(worst {figures['warm_worst_s'] * 1e3:.1f} ms), {figures['cold_median_s']:.1f} s "
            f"with a torchrun of its own: {ratio:.0f} times more"
        )
    assert figures["warm_median_s"] <= MOST_WARM_S
    assert ratio >= LEAST_RATIO
