"""How much of a published figure of healthy machines may be lost before a row is red.

`healthy.csv` has these figures, for a hardware file and all that extend it, by all ranks of a node at once.
A figure of a smaller size than the row judges is a lower bound for the larger size. A floor above a figure
would reject the machine that published it. A floor that allows more loss than MOST must say why (`loose`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from thresholds.bounds import asked
from thresholds.hardware import Hardware, Limit
from thresholds.lookup import LimitError, describe, find, mismatches
from thresholds.selectors import Value
from thresholds.units import METRICS, format_number, parse_size

HEALTHY = Path(__file__).with_name("healthy.csv")
MOST = 0.15
INSIDE = "inside"  # the link inside a node, whatever a file calls it


@dataclass(frozen=True)
class Figure:
    """What healthy machines reached in a case, in the metric's unit; the source, and for which files."""

    files: tuple[str, ...]
    metric: str
    case: tuple[tuple[str, Value], ...]
    size_bytes: int | None
    value: float
    source: str


@dataclass(frozen=True)
class Loss:
    """A row and the published figure of which it allows the largest loss; None where none was published."""

    row: Limit
    figure: Figure | None = None
    asked: float = 0.0

    @property
    def share(self) -> float:
        """The share of the figure that may be lost."""
        return 1 - self.asked / self.figure.value if self.figure else 0.0

    @property
    def rejects(self) -> bool:
        """Whether the machine that published the figure is red; a smaller size need not reach the floor."""
        size, judged = self.figure and self.figure.size_bytes, self.row.selectors.get("size")
        return self.share < 0 and (not size or judged is None or judged.matches(size))

    def __str__(self) -> str:
        what = f"{self.row.where}: {describe(self.row)}"
        if self.figure is None:
            return f"{what}: nobody published a healthy figure"
        healthy, unit = format_number(self.figure.value, self.asked), METRICS[self.figure.metric].unit
        asked = format_number(self.asked, self.figure.value)
        share = f"{max(0.0, self.share):.1%} may be lost"
        return f"{what}: {share}, {asked} of {healthy} {unit} ({self.figure.source})"

    @property
    def fault(self) -> str:
        """What is wrong with the row, or nothing."""
        if self.rejects:
            return f"{self}: it would reject the machine that published this"
        if self.share > MOST and not self.row.loose:
            return f"{self}: more than {MOST:.0%}; raise it, or say in loose why it cannot be"
        return ""


@cache
def figures() -> tuple[Figure, ...]:
    """Read healthy.csv."""
    with HEALTHY.open(encoding="utf-8", newline="") as lines:
        return tuple(_figure(line) for line in csv.DictReader(lines))


def _figure(line: dict[str, str]) -> Figure:
    case: list[tuple[str, Value]] = [("nodes", int(line["nodes"]))]
    case += [(name, line[name]) for name in ("collective", "path", "dtype") if line[name]]
    size = parse_size(line["size"]) if line["size"] else None
    files = tuple(line["file"].split())
    return Figure(files, line["metric"], tuple(case), size, float(line["value"]), line["source"])


def losses(hardware: Hardware) -> list[Loss]:
    """Give each row with a floor, and the published figure that it rejects or of which most may be lost."""
    worst = {row.where: Loss(row) for row in hardware.limits if METRICS[row.metrics[0]].better == "more"}
    for figure in _nearest(hardware):
        for row, floor in _rows(hardware, figure):
            loss, held = Loss(row, figure, floor), worst[row.where]
            if held.figure is None or (loss.rejects, loss.share) > (held.rejects, held.share):
                worst[row.where] = loss
    return list(worst.values())


def _nearest(hardware: Hardware) -> Iterator[Figure]:
    """Give the figures of a file and of those that it extends; for each case those of the nearest file."""
    seen = set[tuple[object, ...]]()
    for name in (hardware.name, *(path.stem for path in hardware.extends)):
        own = [one for one in figures() if name in one.files and (one.metric, one.case) not in seen]
        seen |= {(one.metric, one.case) for one in own}
        yield from own


def _rows(hardware: Hardware, figure: Figure) -> Iterator[tuple[Limit, float]]:
    """Give the rows that judge the case of a figure, and the floor of each."""
    case: dict[str, Value] = {"ranks_per_node": int(hardware.expect.get("gpus_per_node") or 1)}
    case |= {"path": hardware.inside, **dict(figure.case)}
    if METRICS[figure.metric].bounded:
        case |= {"size": max(hardware.sweep.plateau)} | (
            {"path": hardware.inside} if case["path"] == INSIDE else {}
        )
        try:
            row = find(hardware, figure.metric, case)
        except LimitError:
            return
        yield row, asked(row, case, hardware.line_rate)
        return
    for row in hardware.limits:
        step = {name: one.samples()[0] for name, one in row.selectors.items() if name in ("step", "dtype")}
        if figure.metric in row.metrics and not mismatches(row, {**step, **case}):
            yield row, row.value
