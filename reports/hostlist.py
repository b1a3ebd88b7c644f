"""Many node names in few characters: `gpu[01-16,18]`, the notation of the hosts file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)


def fold(names: Iterable[str]) -> str:
    """The names, those that differ in their last number only folded into ranges."""
    families: dict[tuple[str, str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        families.setdefault(_family(name), []).append(_number(name))
    return ", ".join(_write(family, numbers) for family, numbers in families.items())


def _family(name: str) -> tuple[str, str, int]:
    """What a name shares with those it can be folded with: prefix, suffix, digits (0: has no number)."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], match[3], len(match[2])) if match else (name, "", 0)


def _number(name: str) -> int:
    match = _NUMBERED.fullmatch(name)
    return int(match[2]) if match else 0


def _write(family: tuple[str, str, int], numbers: Sequence[int]) -> str:
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
