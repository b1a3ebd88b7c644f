"""How figures and names of nodes are written for people: `64 MiB`, `361.2 GB/s`, `gpu[01-16,18]`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)


def size(size_bytes: int) -> str:
    """`64 MiB`, with at most two decimals."""
    value, step = float(size_bytes), 0
    while abs(value) >= 1024 and step < len(_STEPS) - 1:
        value, step = value / 1024, step + 1
    return f"{value:.2f}".rstrip("0").rstrip(".") + f" {_STEPS[step]}"


def number(value: float | None, digits: int = 4) -> str:
    """`digits` significant digits without an exponent; "" for None, `NaN` and `inf` as words."""
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
    """`361.2 GB/s`, "" for None."""
    return "" if value is None else f"{number(value)} {unit}".strip()


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


def fold(names: Iterable[str]) -> str:
    """The names in the notation of the hosts file: those that differ only in their last number as a range."""
    families: dict[tuple[str, str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        families.setdefault(_family_of(name), []).append(_number_in(name))
    return ", ".join(_folded(family, numbers) for family, numbers in families.items())


def _family_of(name: str) -> tuple[str, str, int]:
    """Prefix, suffix and number of digits (0: no number), alike in names that can be one range."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], match[3], len(match[2])) if match else (name, "", 0)


def _number_in(name: str) -> int:
    match = _NUMBERED.fullmatch(name)
    return int(match[2]) if match else 0


def _folded(family: tuple[str, str, int], numbers: Sequence[int]) -> str:
    prefix, suffix, width = family
    if not width:
        return prefix
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}{suffix}"
    parts = (_range(first, last, width) for first, last in _runs(sorted(numbers)))
    return f"{prefix}[{','.join(parts)}]{suffix}"


def _range(first: int, last: int, width: int) -> str:
    return f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}"


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
