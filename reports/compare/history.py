"""The judged figures of many runs as a table: a row for each node and metric, a column for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.compare.runs import Run, values
from reports.notation import number

_ABSENT = "-"


def table(runs: Sequence[Run]) -> Iterator[str]:
    """The runs, oldest first, then a row per figure that has a unit; "-" where a run did not judge it."""
    ordered = sorted(runs, key=lambda run: run.first.started)
    for place, run in enumerate(ordered, start=1):
        cut = f"  (cut short: {run.cut})" if run.cut else ""
        yield f"{place}: {run.first.run_id}  {run.first.started}  {run.path}{cut}"
    told = [values(run) for run in ordered]
    rows = [("nodes", "check", "metric", "unit", *(str(place + 1) for place in range(len(ordered))))]
    for key in sorted({key for one in told for key in one}):
        found = [one.get(key) for one in told]
        unit = next(value[1] for value in found if value is not None)
        rows.append((*key, unit, *(_ABSENT if value is None else number(value[0]) for value in found)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(_aligned(row, widths)).rstrip()


def _aligned(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.rjust(width) if column >= 4 else cell.ljust(width)
