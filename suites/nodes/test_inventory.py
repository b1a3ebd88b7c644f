"""Every part of a node is there, is set up as it should be, and shows no trace of a fault."""

from __future__ import annotations

from fixtures.check.check import Check, over
from fixtures.check.inventory import inventory
from fixtures.check.inventory.table import SUBJECTS
from fixtures.check.plan import NODE, Case

INVENTORY = [
    Case("", (subject,), {"subject": subject}, weight=0.0, compared=subject == "peers")
    for subject in SUBJECTS
]


@over(INVENTORY, NODE, judges=[inventory.judge])
def test_inventory(check: Check) -> None:
    """What the node says of itself, beside its hardware file and the nodes of its kind; no job is needed."""
    check.run()
