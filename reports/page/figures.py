"""Figures as people write them."""

from __future__ import annotations

import math

_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(size_bytes: int) -> str:
    """`64 MiB`; sizes that are no round number of units keep two decimals."""
    value, step = float(size_bytes), 0
    while abs(value) >= 1024 and step < len(_STEPS) - 1:
        value, step = value / 1024, step + 1
    return f"{value:.2f}".rstrip("0").rstrip(".") + f" {_STEPS[step]}"


def number(value: float | None, digits: int = 4) -> str:
    """`digits` significant digits without an exponent, "" for nothing, the word for what is no number."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    places = min(max(digits - 1 - math.floor(math.log10(abs(value))), 0), 12)
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def quantity(value: float | None, unit: str) -> str:
    """`361.2 GB/s`."""
    return f"{number(value)} {unit}".strip()


def duration(seconds: float) -> str:
    """`3 min 05 s`."""
    if not math.isfinite(seconds) or seconds < 0:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds * 1000:.0f} ms"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
