"""Bandwidth curves: what each sweep measured by message size, with limits, line rate and physical bound."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports import notation
from reports.page import drawing
from reports.page.drawing import FAINT, INK, QUIET, Picture
from reports.record import CheckRecord, Outcome
from reports.text import first_line

Points = tuple[tuple[float, float], ...]
_COLOURS = {
    Outcome.PASS: "#2f6f9f",
    Outcome.FAIL: "#c0342b",
    Outcome.UNCHECKED: "#a86a00",
    Outcome.NOT_APPLICABLE: "#8a929c",
}
_NAMED_CURVES = 4  # more names than these would fill the picture
_TICKS = 7
_FARTHEST = 3.0  # times the highest curve: a higher bound would flatten all curves
_LEFT, _LETTER = 0.115, 0.0105  # of the width: for the numbers on the left, and for a letter of a name
_APART = 0.062  # of the height, between the names of curves
_LINES = {"bound_gigabytes_per_s": ("physical bound", ":"), "line_rate_gigabytes_per_s": ("line rate", "-.")}


@dataclass(frozen=True)
class Curve:
    """One sweep: points and floors as (size in bytes, GB/s), and the rates of `_LINES` that it has."""

    label: str
    outcome: Outcome
    points: Points
    floors: Points
    lines: Mapping[str, float]


def draw(checks: Sequence[CheckRecord], report_dir: Path) -> list[Picture]:
    """One picture for each collective, path and dtype with a recorded sweep, those with trouble first."""
    groups: dict[tuple[str, str, str], list[Curve]] = {}
    for check in checks:
        curve = _curve(check)
        if curve is not None:
            key = (_word(check, "collective"), _word(check, "path"), _word(check, "dtype"))
            groups.setdefault(key, []).append(curve)
    green = {key: all(one.outcome is Outcome.PASS for one in curves) for key, curves in groups.items()}
    ordered = sorted(groups.items(), key=lambda item: (green[item[0]], item[0]))
    return [_picture(key, curves, report_dir) for key, curves in ordered]


def _word(check: CheckRecord, name: str) -> str:
    value = check.recorded.get(name, "")
    return value if isinstance(value, str) else ""


def _curve(check: CheckRecord) -> Curve | None:
    sweep = check.recorded.get("sweep")
    entries = sweep if isinstance(sweep, list | tuple) else []
    points = [point for entry in entries if (point := _point(entry))]
    if not points:
        return None
    floors = [
        (float(judgement.case["size"]), judgement.limit_value)
        for judgement in check.judgements
        if judgement.metric == "busbw" and judgement.limit_value and "size" in judgement.case
    ]
    lines = {name: rate for name in _LINES if (rate := _rate(check.recorded.get(name))) is not None}
    return Curve(notation.fold(check.nodes), check.outcome, tuple(sorted(points)), tuple(floors), lines)


def _rate(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < math.inf else None


def _point(entry: object) -> tuple[float, float] | None:
    if not isinstance(entry, Mapping):
        return None
    size, rate = entry.get("size_bytes"), entry.get("busbw_gigabytes_per_s")
    if not isinstance(size, int | float) or not isinstance(rate, int | float):
        return None
    return (float(size), float(rate)) if size > 0 and math.isfinite(rate) else None


def _picture(key: tuple[str, str, str], curves: Sequence[Curve], report_dir: Path) -> Picture:
    title = f"{key[0] or 'sweep'} over {key[1] or 'unknown path'}" + (f", {key[2]}" if key[2] else "")
    name = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(part for part in key if part)).strip("-") or "sweep"
    with drawing.settings():
        figure = Figure(figsize=(6.4, 3.3))
        _paint(figure.add_subplot(), curves)
        picture = Picture(f"plots/{name}.svg", title, _in_words(curves), *drawing.pixels(figure))
        drawing.save(figure, report_dir, picture)
    return picture


def _paint(axes: Axes, curves: Sequence[Curve]) -> None:
    names: list[tuple[float, str, str]] = []  # height, text and colour of the labels beside the curves
    few = len(curves) <= _NAMED_CURVES
    alike = [] if few else [curve.points for curve in curves if curve.outcome is Outcome.PASS]
    _paint_alike(axes, alike)
    named = [curve for curve in curves if few or curve.outcome is not Outcome.PASS]
    for curve in sorted(named, key=lambda curve: curve.outcome is not Outcome.PASS):
        _paint_curve(axes, curve)
        if len(names) < _NAMED_CURVES:
            words = f"{curve.outcome.value}: {curve.label}"  # a long list of names is cut at its end
            names.append((curve.points[-1][1], words, _COLOURS[curve.outcome]))
    if alike:
        height = median(points[-1][1] for points in alike)
        names.append((height, f"{len(alike)} that pass", _COLOURS[Outcome.PASS]))
    if floors := sorted({floor for curve in curves for floor in curve.floors}):
        sizes, rates = zip(*floors, strict=True)
        axes.plot(sizes, rates, "_", color=INK, markersize=13, markeredgewidth=1.6)
        names.append((rates[-1], "limit", INK))
    for name, (word, style) in _LINES.items():
        if heights := [curve.lines[name] for curve in curves if name in curve.lines]:
            axes.axhline(max(heights), color=QUIET, linewidth=0.9, linestyle=style)
            names.append((max(heights), f"{word} {notation.number(max(heights), 3)}", QUIET))
    highest = max(rate for curve in curves for _, rate in (*curve.points, *curve.floors))
    axes.set_ylim(0, min(axes.get_ylim()[1], _FARTHEST * highest) or None)
    _dress(axes, sorted({size for curve in curves for size, _ in curve.points}))
    _name(axes, names)


def _paint_alike(axes: Axes, curves: Sequence[Points]) -> None:
    """Draw many curves as one line with gaps: each line by itself takes a millisecond."""
    joined = [point for points in curves for point in (*points, (math.nan, math.nan))]
    if joined:
        sizes, rates = zip(*joined, strict=True)
        axes.plot(sizes, rates, color=_COLOURS[Outcome.PASS], linewidth=1.1, alpha=0.8)


def _paint_curve(axes: Axes, curve: Curve) -> None:
    sizes, rates = zip(*curve.points, strict=True)
    passed = curve.outcome is Outcome.PASS
    axes.plot(
        sizes,
        rates,
        color=_COLOURS[curve.outcome],
        linewidth=1.1 if passed else 2.0,
        linestyle="--" if curve.outcome is Outcome.UNCHECKED else "-",
        marker="o",
        markersize=3.0,
    )


def _dress(axes: Axes, sizes: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    step = max(1, math.ceil(len(sizes) / _TICKS))
    shown = sizes[::-1][::step]  # from the largest down: that is where the limits are
    axes.set_xticks(shown, [notation.size(int(size)) for size in shown])
    axes.minorticks_off()
    axes.set_ylabel("bus bandwidth, GB/s")
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _name(axes: Axes, names: Sequence[tuple[float, str, str]]) -> None:
    """Write each name beside its line's right end, from the lowest up, none over another.

    The axes leave room for the longest, and above for those of high lines. A layout that measures every text
    takes as long as the drawing.
    """
    top, last, longest = axes.get_ylim()[1], -math.inf, 0
    for height, words, colour in sorted(names):
        last = max(min(height / top, 1.0), last + _APART)
        text = first_line(words, 34) + (" ↑" if height > top else "")
        longest = max(longest, len(text))
        axes.annotate(
            text,
            (1.02, last),
            xycoords="axes fraction",
            va="center",
            color=colour,
            fontsize=8,
            annotation_clip=False,
        )
    axes.set_position((_LEFT, 0.1, 0.97 - _LEFT - _LETTER * longest, 0.86 / max(1.0, last)))


def _in_words(curves: Sequence[Curve]) -> str:
    """Compare only the sweeps that reach the largest size: sweeps for latency end at small sizes."""
    largest = max(curve.points[-1][0] for curve in curves)
    curves = [curve for curve in curves if curve.points[-1][0] == largest]
    best = max(curves, key=lambda curve: curve.points[-1][1])
    worst = min(curves, key=lambda curve: curve.points[-1][1])
    text = (
        f"{_at_the_end(worst)}" if len(curves) == 1 else f"from {_at_the_end(worst)} to {_at_the_end(best)}"
    )
    return f"{len(curves)} sweep{'s' if len(curves) > 1 else ''}; at the largest size {text}"


def _at_the_end(curve: Curve) -> str:
    return f"{notation.quantity(curve.points[-1][1], 'GB/s')} ({curve.label})"
