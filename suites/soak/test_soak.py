"""When everything else is over: what did the load leave behind?"""

from __future__ import annotations

from fixtures.check import requests
from fixtures.check.check import Check, over
from fixtures.check.inventory import aftermath
from fixtures.check.plan import NODE, Case

AFTER = [Case("soak.inventory", ("after",))]


@over(AFTER, NODE, ask=requests.step, judges=[aftermath.judge])
def test_load_leaves_no_error_behind(check: Check) -> None:
    """No device is gone, no link went down, and no counter of errors says more than it may."""
    check.run()
