"""A node can be judged at all."""

from __future__ import annotations

from fixtures.check.check import Check
from fixtures.check.plan import NODE, Case, over

PRESENT = [Case("nodes.present")]


@over(PRESENT, NODE)
def test_node_is_ready_and_its_ranks_are_its_own(check: Check) -> None:
    """Reached, free, without preflight findings, and every rank is where it should be."""
    check.measure_presence()
    check.judge_presence()
