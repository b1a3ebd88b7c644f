"""How figures and names of nodes are written for people: `64 MiB`, `361.2 GB/s`, `gpu[01-16,18]`."""

from __future__ import annotations

import itertools
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
    """The names in hosts-file notation: names that differ only in their last number become a range."""
    # Names with the same prefix, suffix and number of digits (0: no number) can be one range.
    families: dict[tuple[str, str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        family = (match[1], match[3], len(match[2])) if match else (name, "", 0)
        families.setdefault(family, []).append(int(match[2]) if match else 0)
    return ", ".join(_folded(*family, sorted(numbers)) for family, numbers in families.items())


def _folded(prefix: str, suffix: str, width: int, numbers: Sequence[int]) -> str:
    if not width:
        return prefix
    parts = []
    for _, pairs in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [f"{number:0{width}d}" for _, number in pairs]
        parts.append(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}")
    inside = ",".join(parts)
    return f"{prefix}[{inside}]{suffix}" if len(numbers) > 1 else f"{prefix}{inside}{suffix}"
