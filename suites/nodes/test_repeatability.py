"""Every device computes the same bits every time, and the same as its equals."""

from __future__ import annotations

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.judges import repeatability
from fixtures.check.plan import NODE, Case

REPEATS = {"cpu": 20, "cuda": 100}
REPEATED = [Case("nodes.repeatability", (), {"repeats": REPEATS}, weight=2.0, compared=True)]


@over(REPEATED, NODE, ask=requests.step, judges=[repeatability.judge])
def test_the_same_kernels_give_the_same_bits(check: Check) -> None:
    """Products, reductions and a transformer block, compared across repeats, devices and equal nodes."""
    check.run()
