"""A node can be judged at all."""

from __future__ import annotations

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.inventory import inventory
from fixtures.check.judges import judging
from fixtures.check.plan import NODE, Case

PRESENT = [Case("nodes.present")]


@over(PRESENT, NODE, ask=requests.presence, judges=[judging.presence, inventory.loaded])
def test_node_is_ready_and_its_ranks_are_its_own(check: Check) -> None:
    """Reached, free, without preflight findings, and every rank is where it should be."""
    check.run()
