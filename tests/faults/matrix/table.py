"""The matrix as it is printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.faults.matrix.catalogue import CANNOT, CATALOGUE
from tests.faults.matrix.results import Result
from tests.faults.matrix.row import Row

_HEAD = ("#", "row", "fault", "detected", "right kind", "right name", "seconds", "healthy accepted")


def table(rows: Sequence[Row], results: Sequence[Result]) -> Iterator[str]:
    """One line per row: in how many of its trials each thing was right."""
    cells = [_HEAD, *(_cells(row, [one for one in results if one.row == row.name]) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _cells(row: Row, trials: Sequence[Result]) -> tuple[str, ...]:
    number, total = str(row.catalogue), len(trials)
    if not trials:
        return number, row.name, row.fault, *["-"] * 5
    seconds = [trial.seconds for trial in trials]
    return (
        number,
        row.name,
        row.fault,
        f"{sum(trial.detected for trial in trials)}/{total}",
        f"{sum(trial.kind for trial in trials)}/{total}",
        f"{sum(trial.name for trial in trials)}/{total}",
        f"{min(seconds):.0f}-{max(seconds):.0f}",
        _healthy(row, trials),
    )


def _healthy(row: Row, trials: Sequence[Result]) -> str:
    """How many healthy nodes were accepted, where there are any and they can be."""
    count, due = sum(trial.of for trial in trials), sum(trial.healthy for trial in trials)
    if row.faulty == row.nodes:
        return "none is healthy"
    return f"{due}/{count}" if "accepted" in row.expect.healthy else f"none can be: {due}/{count}"


def wrong(results: Sequence[Result]) -> Iterator[str]:
    """Everything that was not as expected, and where its report lies."""
    for result in results:
        if not result.right:
            drawn = ", ".join(result.drawn)
            yield f"{result.row}, repeat {result.repeat}, on {drawn}: {'; '.join(result.wrong)}"
            yield f"    {result.report}"


def impossible() -> Iterator[str]:
    """What the catalogue has and no lab can show."""
    for one in CANNOT:
        yield f"{one.catalogue:2} {CATALOGUE[one.catalogue]}: {one.fault}: not here: {one.reason}"


def listed(rows: Sequence[Row]) -> Iterator[str]:
    """Every row: what is planted, what is expected, and the limit."""
    width = max(len(row.name) for row in rows)
    for row in rows:
        expect = row.expect
        answer = f"{' or '.join(expect.faulty)}, blame {' or '.join(expect.kinds) or 'nobody'}"
        others = " or ".join(expect.healthy)
        yield (
            f"{row.catalogue:2} {row.name.ljust(width)}  {row.fault}: {answer} ({expect.names.value}), "
            f"others {others}, {row.nodes} nodes, {row.workload}, within {row.limit_s:g} s"
        )
