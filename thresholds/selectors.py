"""What a limit row may select on, and whether a case, or another row, meets it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from thresholds.units import ALGORITHMS, COLLECTIVES, DTYPES, PATHS, parse_size

Value = str | int
FAR = 65536  # the end of an open range where its ends are tried out


@dataclass(frozen=True)
class Selector:
    """A set of words, or whole numbers from `low` to `high` (None: no end). `text` is how it was written."""

    text: str
    values: frozenset[Value] | None = None
    low: int = 0
    high: int | None = None

    def matches(self, value: Value) -> bool:
        """Whether the value of a case lies in the set."""
        if self.values is not None:
            return value in self.values
        return isinstance(value, int) and self.low <= value and (self.high is None or value <= self.high)

    def meets(self, other: Selector) -> bool:
        """Whether some value lies in both sets."""
        if self.values is not None:
            return any(other.matches(value) for value in self.values)
        if other.values is not None:
            return other.meets(self)
        starts_late = other.high is not None and self.low > other.high
        return not starts_late and (self.high is None or other.low <= self.high)

    def samples(self) -> tuple[Value, ...]:
        """All listed values, or both ends of a range."""
        if self.values is not None:
            return tuple(sorted(self.values, key=str))
        return (self.low, max(FAR, self.low) if self.high is None else self.high)


def _items(raw: object) -> list[object]:
    items = raw if isinstance(raw, list) else [raw]
    if not items:
        raise ValueError("an empty list matches nothing")
    return items


def _text(raw: object) -> str:
    return " | ".join(repr(item) if item == "" else str(item) for item in _items(raw))


def words(*allowed: str) -> Callable[[object], Selector]:
    """A reader of one word or a list of words, all of them among `allowed` (none given: any name)."""

    def read(raw: object) -> Selector:
        for word in _items(raw):
            if not isinstance(word, str) or (allowed and word not in allowed):
                known = ", ".join(repr(name) for name in allowed) or "a word or a list of words"
                raise ValueError(f"{word!r} is not known here; write one or a list of: {known}")
        return Selector(_text(raw), frozenset(str(word) for word in _items(raw)))

    return read


def _whole(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or not 1 <= raw <= 10**9:
        raise ValueError(f'{raw!r} is not a count; write a whole number from 1, a list, "2..16" or ">=2"')
    return raw


def _digits(text: str) -> int:
    return _whole(int(text) if re.fullmatch("[0-9]{1,10}", text) else text)


def _range(text: str, number: Callable[[str], int]) -> Selector | None:
    if text.startswith(">="):
        return Selector(text, low=number(text[2:]))
    if text.startswith("<="):
        return Selector(text, high=number(text[2:]))
    if ".." not in text:
        return None
    low, high = (number(end) for end in text.split("..", 1))
    if low > high:
        raise ValueError(f"{text!r} holds nothing: write the smaller end first")
    return Selector(text, low=low, high=high)


def counts(raw: object) -> Selector:
    """A reader of a whole number, a list of them, or a range: "2..16", ">=2", "<=4"."""
    found = _range(raw, _digits) if isinstance(raw, str) else None
    return found or Selector(_text(raw), frozenset(_whole(item) for item in _items(raw)))


def sizes(raw: object) -> Selector:
    """A reader of a size, a list of sizes, or a range of sizes: "1GiB..16GiB", ">=4GiB"."""
    found = _range(raw, parse_size) if isinstance(raw, str) else None
    return found or Selector(_text(raw), frozenset(parse_size(item) for item in _items(raw)))


READERS: Mapping[str, Callable[[object], Selector]] = {
    "collective": words(*COLLECTIVES),
    "path": words(*PATHS),
    "nodes": counts,
    "ranks_per_node": counts,
    "size": sizes,
    "dtype": words(*DTYPES, "tf32"),
    "algorithm": words(*ALGORITHMS),
    "step": words(),
}


def overlap(left: Mapping[str, Selector], right: Mapping[str, Selector]) -> bool:
    """Whether some case could match both rows: a selector that a row lacks matches everything."""
    return all(selector.meets(right[name]) for name, selector in left.items() if name in right)
