"""Every device computes the same bits every time, and the same as its equals."""

from __future__ import annotations

from fixtures.check.check import Check
from fixtures.check.judges import repeatability
from fixtures.check.plan import NODE, Case, over

REPEATS = {"cpu": 20, "cuda": 100}
REPEATED = [Case("nodes.repeatability", (), {"repeats": REPEATS}, weight=2.0, compared=True)]


@over(REPEATED, NODE)
def test_the_same_kernels_give_the_same_bits(check: Check) -> None:
    """Products, reductions and a transformer block, compared across repeats, devices and equal nodes."""
    check.measure_step()
    check.judge_beside(repeatability.judge)
