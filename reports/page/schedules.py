"""Pipeline schedules as they were measured: who did what when, one row per rank on a common time axis.

What is drawn came from nodes, so all of it is checked, and a schedule that is none has no picture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports import atomic
from reports.clean import first_line
from reports.hostlist import fold
from reports.page import figures
from reports.page.schedule_svg import KINDS, WIDTH, Box, Row, height_of, svg
from reports.record import CheckRecord

MOST_PICTURES = 16
MOST_ROWS = 16
MOST_BOXES = 512  # of a row
_MOST_FIGURE = 1e6  # beyond it lies no second, stage, micro-batch or bubble of anybody
_LEAST_S = 1e-9


@dataclass(frozen=True)
class Schedule:
    """One pipeline's schedule with its figures; `left_out` ranks have no row."""

    step: str
    check: CheckRecord
    rows: tuple[Row, ...]
    formula: str
    left_out: int

    @property
    def key(self) -> tuple[str, bool]:
        """Schedules alike in this are drawn once."""
        return self.step, len(self.check.nodes) > 1

    def figure(self, name: str) -> float | None:
        """One of the check's figures."""
        found = self.check.recorded.get("figures")
        value = found.get(name) if isinstance(found, Mapping) else None
        return float(value) if isinstance(value, int | float) and abs(value) < _MOST_FIGURE else None


@dataclass(frozen=True)
class Picture:
    """A picture below the report directory; `text` says in words what it shows."""

    file: str
    title: str
    text: str
    width: int
    height: int


def draw(checks: Sequence[CheckRecord], report_dir: Path) -> list[Picture]:
    """Draw each schedule inside a node and across nodes; of many nodes the one with the worst bubble."""
    worst: dict[tuple[str, bool], Schedule] = {}
    count: dict[tuple[str, bool], int] = {}
    for check in checks:
        schedule = _schedule(check)
        if schedule is not None:
            key = schedule.key
            count[key] = count.get(key, 0) + 1
            worst[key] = max(worst.get(key, schedule), schedule, key=_badness)
    return [
        _picture(number, schedule, count[key], report_dir)
        for number, (key, schedule) in enumerate(list(worst.items())[:MOST_PICTURES], start=1)
    ]


def _badness(schedule: Schedule) -> float:
    excess = schedule.figure("bubble_excess")
    return excess if excess is not None else -math.inf


# reading


def _schedule(check: CheckRecord) -> Schedule | None:
    """Read the first pipeline of a check; None unless every rank of it says what it did."""
    recorded = check.recorded.get("schedule")
    if not isinstance(recorded, Mapping) or not isinstance(recorded.get("step"), str):
        return None
    said = recorded.get("ranks")
    ranks = [rank for rank in said if isinstance(rank, Mapping)] if isinstance(said, list | tuple) else []
    mine = [rank for rank in ranks if _said(rank).get("pipeline") == 0]
    rows = [row for rank in mine if (row := _row(rank)) is not None]
    if not rows or len(rows) != len(mine):
        return None
    rows.sort(key=lambda row: row.place)
    formula = first_line(str(_said(mine[0]).get("formula", "")), 40)
    step = first_line(recorded["step"], 60)
    return Schedule(step, check, tuple(rows[:MOST_ROWS]), formula, max(len(rows) - MOST_ROWS, 0))


def _said(rank: Mapping[str, object]) -> Mapping[str, object]:
    said = rank.get("said")
    return said if isinstance(said, Mapping) else {}


def _row(rank: Mapping[str, object]) -> Row | None:
    said = _said(rank)
    operations, place = said.get("operations"), said.get("place")
    if not isinstance(operations, list | tuple) or not 0 < len(operations) <= MOST_BOXES:
        return None
    boxes = [box for operation in operations if (box := _box(operation)) is not None]
    if len(boxes) != len(operations) or not isinstance(place, int):
        return None
    label = f"rank {first_line(str(rank.get('rank')), 6)} on {first_line(str(rank.get('node')), 16)}"
    return Row(place, label, tuple(boxes))


def _box(operation: object) -> Box | None:
    if not isinstance(operation, list | tuple) or len(operation) != len(Box._fields):
        return None
    kind, stage, micro_batch, begin_s, end_s = operation
    if kind not in tuple(KINDS) or not all(isinstance(one, int) for one in (stage, micro_batch)):
        return None
    if not all(_is_figure(one) for one in operation[1:]) or end_s - begin_s < _LEAST_S:
        return None
    return Box(kind, stage, micro_batch, float(begin_s), float(end_s))


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST_FIGURE


# saying


def _picture(number: int, schedule: Schedule, alike: int, report_dir: Path) -> Picture:
    name = schedule.step.rpartition(".")[2]
    where = "across nodes" if schedule.key[1] else "inside a node"
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    file = f"plots/schedule-{number}-{plain}.svg"
    formula = schedule.figure("bubble_formula")
    bubble = formula if formula is not None and formula >= 0 else None
    atomic.write_text(report_dir / file, svg(schedule.rows, bubble))
    return Picture(file, f"{name} {where}", _in_words(schedule, alike), WIDTH, height_of(schedule.rows))


def _in_words(schedule: Schedule, alike: int) -> str:
    boxes = [box for row in schedule.rows for box in row.boxes]
    size = {
        "p": len(schedule.rows) + schedule.left_out,
        "m": 1 + max(box.micro_batch for box in boxes),
        "v": max(len({box.stage for box in row.boxes}) for row in schedule.rows),
    }
    by = f"{schedule.formula} with " if schedule.formula else ""
    letters = ", ".join(f"{name} = {value}" for name, value in size.items())
    text = (
        f"bubble {_shown(schedule.figure('bubble'))} measured, "
        f"{_shown(schedule.figure('bubble_formula'))} by the formula ({by}{letters}), "
        f"{_shown(schedule.figure('bubble_simulated'))} simulated; on {fold(schedule.check.nodes)}"
    )
    text += f", the worst of {alike} places" if alike > 1 else ""
    return text + (f"; {schedule.left_out} more ranks are not drawn" if schedule.left_out else "")


def _shown(value: float | None) -> str:
    return "unknown" if value is None else figures.number(value, 3)
