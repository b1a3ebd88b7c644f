"""Pipeline schedules as measured: what each rank did when, one row per rank on a common time axis.

The data came from nodes, so all of it is checked first. A schedule that is malformed has no picture.
"""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from reports import notation
from reports.page import drawing
from reports.page.drawing import INK, PIXELS_PER_INCH, Picture
from reports.record import CheckRecord
from reports.text import first_line

MOST_PICTURES = 16
MOST_ROWS = 16
MOST_BOXES = 512  # of a row
_MOST_FIGURE = 1e6  # no time in seconds, stage, micro-batch or bubble is larger
_LEAST_S = 1e-9
_Index = Annotated[int, Field(strict=True, ge=0, lt=_MOST_FIGURE)]
_Seconds = Annotated[float, Field(strict=True, ge=0, lt=_MOST_FIGURE)]
KINDS = {
    "F": ("forward", "#3d7fb5", "#93bcdb"),
    "B": ("backward", "#c77a2b", "#e6bd8f"),
    "I": ("backward (input)", "#2f9484", "#8fcbc1"),
    "W": ("backward (weight)", "#8a72b8", "#c4b6de"),
}  # word, colour, and the colour of a rank's later stages
_IDLE = "#f6dcd8"
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _BOTTOM = 1120, 172, 14, 58, 26, 30  # pixels
_THICKNESS = 0.85  # of a bar, of its row
_DIGIT = 6.2  # pixels that a digit takes
# Of all bars and their numbers; SVG counts points.
_BARS = {
    "transform": f"scale({72 / PIXELS_PER_INCH})",
    "stroke": "#ffffff",
    "stroke-width": "0.8",
    "font-size": "10.67",
    "font-family": "'DejaVu Sans', sans-serif",
    "text-anchor": "middle",
    "dominant-baseline": "central",
}


class Box(NamedTuple):
    """One operation."""

    kind: Literal["F", "B", "I", "W"]
    stage: _Index
    micro_batch: _Index
    begin_s: _Seconds
    end_s: _Seconds


@dataclass(frozen=True)
class Row:
    """What one rank did."""

    label: str
    boxes: tuple[Box, ...]

    @property
    def busy_s(self) -> float:
        """The time that its operations took."""
        return sum(box.end_s - box.begin_s for box in self.boxes)


@dataclass(frozen=True)
class Schedule:
    """The schedule of one pipeline with its figures; `left_out` ranks have no row."""

    step: str
    check: CheckRecord
    rows: tuple[Row, ...]
    formula: str
    left_out: int


def draw(checks: Sequence[CheckRecord], report_dir: Path) -> list[Picture]:
    """Draw each schedule once inside a node and once across nodes: the one with the worst bubble."""
    places: dict[tuple[str, bool], list[CheckRecord]] = {}
    for check in checks:
        said = check.recorded.get("schedule")
        if isinstance(said, Mapping):  # as of few of them
            places.setdefault((str(said.get("step")), len(check.nodes) > 1), []).append(check)
    worst = [(schedule, len(same)) for same in places.values() if (schedule := _worst(same))]
    return [
        _picture(number, schedule, alike, report_dir)
        for number, (schedule, alike) in enumerate(worst[:MOST_PICTURES], start=1)
    ]


# reading


def _worst(checks: Sequence[CheckRecord]) -> Schedule | None:
    """The schedule with the worst bubble of those that are well-formed; to read all would take long."""

    def excess(check: CheckRecord) -> float:
        found = _bubble(check, "bubble_excess")
        return -math.inf if found is None else found

    ordered = sorted(checks, key=excess, reverse=True)
    return next((read for check in ordered if (read := _schedule(check))), None)


def _bubble(check: CheckRecord, name: str) -> float | None:
    """One of the figures that a check recorded of its bubble."""
    figures = check.recorded.get("figures")
    value = figures.get(name) if isinstance(figures, Mapping) else None
    return float(value) if isinstance(value, int | float) and abs(value) < _MOST_FIGURE else None


def _schedule(check: CheckRecord) -> Schedule | None:
    """Read the first pipeline of a check; None unless every one of its ranks has a row."""
    try:
        found = _Recorded.model_validate(check.recorded["schedule"])
    except ValidationError:
        return None
    ranks = sorted(found.ranks, key=lambda rank: rank.said.place)
    rows = [
        Row(f"rank {first_line(str(rank.rank), 6)} on {first_line(str(rank.node), 16)}", rank.said.operations)
        for rank in ranks[:MOST_ROWS]
    ]
    formula = first_line(str(ranks[0].said.formula), 40)
    return Schedule(first_line(found.step, 60), check, tuple(rows), formula, len(ranks) - len(rows))


def _lasting(box: Box) -> Box:
    if box.end_s - box.begin_s < _LEAST_S:
        raise ValueError("it took no time")
    return box


class _Said(BaseModel):
    place: _Index
    operations: Annotated[
        tuple[Annotated[Box, AfterValidator(_lasting)], ...], Field(min_length=1, max_length=MOST_BOXES)
    ]
    formula: object = ""


class _Rank(BaseModel):
    said: _Said
    rank: object = None
    node: object = None


def _first_pipeline(ranks: object) -> list[object]:
    every = [rank for rank in ranks if isinstance(rank, Mapping)] if isinstance(ranks, list | tuple) else []
    return [one for one in every if isinstance(one.get("said"), Mapping) and one["said"].get("pipeline") == 0]


class _Recorded(BaseModel):
    step: str
    ranks: Annotated[list[_Rank], Field(min_length=1), BeforeValidator(_first_pipeline)]


# drawing


def _picture(number: int, schedule: Schedule, alike: int, report_dir: Path) -> Picture:
    name = schedule.step.rpartition(".")[2]
    where = "across nodes" if len(schedule.check.nodes) > 1 else "inside a node"
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    formula = _bubble(schedule.check, "bubble_formula")
    bubble = formula if formula is not None and formula >= 0 else None
    # Text stays text: thousands of micro-batches as outlines would be a large file.
    with drawing.settings(**{"svg.fonttype": "none", "font.size": 8.0}):
        figure, bars = _figure(schedule.rows, bubble)
        file, text = f"plots/schedule-{number}-{plain}.svg", _in_words(schedule, alike)
        picture = Picture(file, f"{name} {where}", text, *drawing.pixels(figure))
        drawing.save(figure, report_dir, picture, bars)
    return picture


def _figure(rows: Sequence[Row], bubble: float | None) -> tuple[Figure, dict[str, ET.Element]]:
    """One row per rank, and lines where the work would end alone and with the `bubble` of the formula.

    The second value holds what each rank did by the gid of its row, which shows that it waits.
    """
    height = _TOP + _ROW * len(rows) + _BOTTOM
    figure = Figure(figsize=(_WIDTH / PIXELS_PER_INCH, height / PIXELS_PER_INCH))
    place = (_LEFT / _WIDTH, _BOTTOM / height, 1 - (_LEFT + _RIGHT) / _WIDTH, _ROW * len(rows) / height)
    axes = figure.add_axes(place)
    end_s = max(box.end_s for row in rows for box in row.boxes)
    busy_s = max(row.busy_s for row in rows)
    expected_s = busy_s * (1 + (bubble or 0.0))
    axes.set_xlim(0, max(end_s, expected_s) * 1e3)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    pixels_per_ms = (_WIDTH - _LEFT - _RIGHT) / axes.get_xlim()[1]
    bars = {f"row-{number}": _bars(number, row, pixels_per_ms) for number, row in enumerate(rows)}
    for number, name in enumerate(bars):
        corner = (0.0, number - _THICKNESS / 2)
        axes.add_artist(Rectangle(corner, end_s * 1e3, _THICKNESS, facecolor=_IDLE, gid=name))
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value_ms, _: f"{notation.number(value_ms)} ms")
    axes.spines[:].set_visible(False)
    _legend(figure, rows)
    _mark(axes, "work alone", busy_s * 1e3, 1 + 14 / (_ROW * len(rows)))
    if bubble is not None:
        _mark(axes, "end by the formula", expected_s * 1e3, 1 + 28 / (_ROW * len(rows)))
    return figure, bars


def _bars(number: int, row: Row, pixels_per_ms: float) -> ET.Element:
    """What a rank did; matplotlib takes a millisecond for a bar, and a report has tens of thousands."""
    bars = drawing.shape("g", **_BARS)
    first = min(box.stage for box in row.boxes)
    top, height = _TOP + _ROW * (number + (1 - _THICKNESS) / 2), _ROW * _THICKNESS
    for box in row.boxes:
        word, *colours = KINDS[box.kind]
        later = box.stage != first
        begin, end = box.begin_s * 1e3, box.end_s * 1e3
        left, width = _LEFT + begin * pixels_per_ms, (end - begin) * pixels_per_ms
        bar = drawing.shape("rect", x=left, y=top, width=width, height=height, fill=colours[later])
        span = f"{notation.number(begin)} to {notation.number(end)} ms"
        title = f"{word} of stage {box.stage}, micro-batch {box.micro_batch}: {span}"
        bar.append(drawing.shape("title", title))
        bars.append(bar)
        label = str(box.micro_batch)
        if width > _DIGIT * len(label) + 3:
            ink, middle = INK if later else "#ffffff", top + height / 2
            bars.append(drawing.shape("text", label, x=left + width / 2, y=middle, fill=ink, stroke="none"))
    return bars


def _legend(figure: Figure, rows: Sequence[Row]) -> None:
    there = {box.kind for row in rows for box in row.boxes}
    entries = [Patch(color=colour, label=word) for kind, (word, colour, _) in KINDS.items() if kind in there]
    entries.append(Patch(color=_IDLE, label="waiting: the bubble"))
    entries.append(Patch(color="none", label="numbers: micro-batches; paler: a rank's later stage"))
    corner = (_LEFT / _WIDTH, 1.0)
    figure.legend(handles=entries, loc="upper left", bbox_to_anchor=corner, ncols=len(entries), frameon=False)


def _mark(axes: Axes, word: str, at_ms: float, top: float) -> None:
    """A dashed line over all rows up to `top` (1 is the top of the rows), and a word beside its upper end."""
    axes.axvline(at_ms, ymax=top, color=INK, linewidth=0.8, linestyle="--", clip_on=False)
    axes.annotate(
        word,
        (at_ms, top),
        xycoords=axes.get_xaxis_transform(),
        xytext=(-3, 0),
        textcoords="offset points",
        ha="right",
        va="top",
    )


def _in_words(schedule: Schedule, alike: int) -> str:
    boxes = [box for row in schedule.rows for box in row.boxes]
    size = {
        "p": len(schedule.rows) + schedule.left_out,
        "m": 1 + max(box.micro_batch for box in boxes),
        "v": max(len({box.stage for box in row.boxes}) for row in schedule.rows),
    }
    by = f"{schedule.formula} with " if schedule.formula else ""
    letters = ", ".join(f"{name} = {value}" for name, value in size.items())
    measured, formula, simulated = (
        _shown(_bubble(schedule.check, name)) for name in ("bubble", "bubble_formula", "bubble_simulated")
    )
    text = f"bubble {measured} measured, {formula} by the formula ({by}{letters}), {simulated} simulated"
    text += f"; on {notation.fold(schedule.check.nodes)}"
    text += f", the worst of {alike} places" if alike > 1 else ""
    return text + (f"; {schedule.left_out} more ranks are not drawn" if schedule.left_out else "")


def _shown(value: float | None) -> str:
    return "unknown" if value is None else notation.number(value, 3)
