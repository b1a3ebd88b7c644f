"""What the self-check of a run says: without a good word of it, nothing that the run says can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.ledger import Ledger
from reports.record import Outcome, PlanRecord, Record

FOLDER = "suites/selfcheck/"


def distrust(records: Sequence[Record], ledger: Ledger) -> str:
    """Why no verdict of this run can be trusted; "" where every check of its self-check passed.

    A run that planned nothing says nothing, so that there is nothing to distrust.
    """
    planned = [check.id for record in records if isinstance(record, PlanRecord) for check in record.checks]
    if not planned:
        return ""
    own = [check for check in planned if check.startswith(FOLDER)]
    why = next(_bad(own, ledger), "") if own else "it was not planned"
    return f"the self-check failed: {why}; no verdict of this run can be trusted" if why else ""


def _bad(planned: Sequence[str], ledger: Ledger) -> Iterator[str]:
    """What is wrong with its checks, the first one first."""
    said = {check.id: check for check in ledger.sound}
    for name in planned:
        check = said.get(name)
        if check is None:
            yield f"{name.rpartition('::')[2]} has not reported"
        elif check.outcome is not Outcome.PASS:
            yield f"{check.name}: {check.reason}"
