"""A pipeline schedule as a picture: rectangles and text with attributes, no style and no font file."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reports.page import figures

KINDS = {
    "F": ("forward", "#3d7fb5", "#93bcdb"),
    "B": ("backward", "#c77a2b", "#e6bd8f"),
    "I": ("backward (input)", "#2f9484", "#8fcbc1"),
    "W": ("backward (weight)", "#8a72b8", "#c4b6de"),
}  # the last colour is that of a rank's later stages
WIDTH = 1120
_IDLE, _INK, _FAINT, _QUIET = "#f6dcd8", "#333a42", "#9aa2ab", "#68727d"
_LEFT, _RIGHT, _TOP, _ROW, _BOX, _BOTTOM = 172, 14, 58, 26, 22, 30
_CHARACTER = 6.2  # what a digit takes
_TICKS = 8


class Box(NamedTuple):
    """One operation."""

    kind: str
    stage: int
    micro_batch: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Row:
    """What one rank did."""

    place: int
    label: str
    boxes: tuple[Box, ...]

    @property
    def busy_s(self) -> float:
        """Its work."""
        return sum(box.end_s - box.begin_s for box in self.boxes)


def height_of(rows: Sequence[Row]) -> int:
    """Give the picture's height."""
    return _TOP + _ROW * len(rows) + _BOTTOM


def svg(rows: Sequence[Row], bubble: float | None) -> str:
    """Draw one row per rank, and lines where the work alone and the `bubble` of a formula would end."""
    height = height_of(rows)
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH} {height}",
            "width": str(WIDTH),
            "height": str(height),
            "font-family": "DejaVu Sans, Arial, sans-serif",
            "font-size": "11",
        },
    )
    end_s = max(box.end_s for row in rows for box in row.boxes)
    busy_s = max(row.busy_s for row in rows)
    expected_s = busy_s * (1 + (bubble or 0.0))
    scale = (WIDTH - _LEFT - _RIGHT) / max(end_s, expected_s)
    _legend(root, rows)
    for number, row in enumerate(rows):
        _paint_row(root, row, _TOP + _ROW * number, scale, end_s)
    _axis(root, scale, end_s, height - _BOTTOM)
    _mark(root, "work alone", _LEFT + busy_s * scale, height, 52)
    if bubble is not None:
        _mark(root, "end by the formula", _LEFT + expected_s * scale, height, 38)
    return ET.tostring(root, encoding="unicode") + "\n"


def _legend(root: ET.Element, rows: Sequence[Row]) -> None:
    there = {box.kind for row in rows for box in row.boxes}
    x = float(_LEFT)
    entries = [(word, colour) for kind, (word, colour, _) in KINDS.items() if kind in there]
    for word, colour in [*entries, ("waiting: the bubble", _IDLE)]:
        _rectangle(root, (x, 8), (14, 14), {"fill": colour})
        _text(root, x + 20, 19, word)
        x += 40 + _CHARACTER * len(word)
    _text(root, x, 19, "numbers: micro-batches; paler: a rank's later stage", {"fill": _QUIET})


def _paint_row(root: ET.Element, row: Row, y: float, scale: float, end_s: float) -> None:
    _text(root, _LEFT - 8, y + 15, row.label, {"text-anchor": "end"})
    _rectangle(root, (_LEFT, y), (end_s * scale, _BOX), {"fill": _IDLE})
    first = min(box.stage for box in row.boxes)
    for box in row.boxes:
        x, width = _LEFT + box.begin_s * scale, (box.end_s - box.begin_s) * scale
        word, *colours = KINDS[box.kind]
        later = box.stage != first
        look = {"fill": colours[later], "stroke": "#ffffff", "stroke-width": "0.8"}
        made = _rectangle(root, (x, y), (width, _BOX), look)
        name = f"{word} of stage {box.stage}, micro-batch {box.micro_batch}"
        ET.SubElement(made, "title").text = f"{name}: {_ms(box.begin_s)} to {_ms(box.end_s)} ms"
        label = str(box.micro_batch)
        if width > _CHARACTER * len(label) + 3:
            ink = {"text-anchor": "middle", "fill": _INK if later else "#ffffff"}
            _text(root, x + width / 2, y + 15, label, ink)


def _axis(root: ET.Element, scale: float, end_s: float, y: float) -> None:
    """Milliseconds at round steps."""
    step_s = 10.0 ** math.floor(math.log10(end_s / _TICKS))
    step_s *= next(factor for factor in (1, 2, 5, 10) if end_s / (factor * step_s) <= _TICKS)
    for number in range(int(end_s / step_s) + 1):
        x = _LEFT + number * step_s * scale
        _line(root, x, y, y + 4, {"stroke": _FAINT})
        unit = " ms" if number == 0 else ""
        _text(root, x, y + 17, _ms(number * step_s) + unit, {"text-anchor": "middle"})


def _mark(root: ET.Element, word: str, x: float, height: float, y: float) -> None:
    _line(root, x, y - 9, height - _BOTTOM, {"stroke": _INK, "stroke-dasharray": "4 3"})
    _text(root, x - 4, y, word, {"text-anchor": "end"})


def _ms(seconds: float) -> str:
    return figures.number(seconds * 1e3)


def _rectangle(
    root: ET.Element, corner: tuple[float, float], size: tuple[float, float], look: Mapping[str, str]
) -> ET.Element:
    place = dict(zip(("x", "y", "width", "height"), (f"{one:.2f}" for one in corner + size), strict=True))
    return ET.SubElement(root, "rect", {**place, **look})


def _line(root: ET.Element, x: float, top: float, bottom: float, look: Mapping[str, str]) -> None:
    ET.SubElement(
        root,
        "line",
        {"x1": f"{x:.2f}", "x2": f"{x:.2f}", "y1": f"{top:.2f}", "y2": f"{bottom:.2f}", **look},
    )


def _text(root: ET.Element, x: float, y: float, words: str, look: Mapping[str, str] | None = None) -> None:
    ET.SubElement(root, "text", {"x": f"{x:.2f}", "y": f"{y:.2f}", "fill": _INK, **(look or {})}).text = words
