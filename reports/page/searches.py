"""What a search for the bad part saw: a table of senders and receivers, and what larger groups showed.

It is drawn from the record of a check, which anybody may have written: all of it is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.record import CheckRecord

MOST_NODES = 16


@dataclass(frozen=True)
class Cell:
    """What was read of the way from one node to another. `word` is `bad`, `good` or "" (never tried)."""

    word: str
    text: str = ""


@dataclass(frozen=True)
class Searched:
    """One search: how it ended, and for each sender what came out at each receiver.

    `nodes` are those on bad ways first, and then others in the order in which they were read. `groups` are
    those of more than two nodes: what is bad among them is bad on no way that can be told.
    """

    sentence: str
    rounds: int
    nodes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    left_out: int
    groups: tuple[tuple[tuple[str, ...], Cell], ...]


@dataclass(frozen=True)
class _Seen:
    source: str
    destination: str
    group: tuple[str, ...]
    bad: bool
    sentence: str


def of(check: CheckRecord) -> Searched | None:
    """Give the search of a check, None when it has none or when what it recorded is none."""
    found = check.recorded.get("search")
    if not isinstance(found, Mapping):
        return None
    sentence, rounds = found.get("sentence"), found.get("rounds")
    if not isinstance(sentence, str) or not isinstance(rounds, int) or not rounds:
        return None
    readings = _seen(found.get("readings"))
    seen = [one for one in readings if len(one.group) <= 2]
    every = _in_order(seen)
    nodes = every[:MOST_NODES]
    rows = tuple((sender, tuple(_cell(seen, sender, receiver) for receiver in nodes)) for sender in nodes)
    return Searched(sentence, rounds, nodes, rows, len(every) - len(nodes), _groups(readings))


def _groups(readings: Sequence[_Seen]) -> tuple[tuple[tuple[str, ...], Cell], ...]:
    groups = dict.fromkeys(one.group for one in readings if len(one.group) > 2)
    return tuple((group, _summed([one for one in readings if one.group == group])) for group in groups)


def _seen(readings: object) -> list[_Seen]:
    entries = readings if isinstance(readings, Sequence) and not isinstance(readings, str) else []
    return [
        _Seen(
            entry["from"],
            entry["to"],
            _names(entry.get("group")),
            entry.get("bad") is True,
            str(entry.get("sentence", "")),
        )
        for entry in entries
        if isinstance(entry, Mapping) and all(isinstance(entry.get(end), str) for end in ("from", "to"))
    ]


def _names(group: object) -> tuple[str, ...]:
    return tuple(map(str, group)) if isinstance(group, list) else ()


def _in_order(seen: Sequence[_Seen]) -> tuple[str, ...]:
    """The nodes, those that are on most bad ways first."""
    count: dict[str, int] = {}
    for one in seen:
        for node in {one.source, one.destination}:
            count[node] = count.get(node, 0) + one.bad
    return tuple(sorted(count, key=lambda node: -count[node]))


def _cell(seen: Sequence[_Seen], sender: str, receiver: str) -> Cell:
    return _summed([one for one in seen if (one.source, one.destination) == (sender, receiver)])


def _summed(mine: Sequence[_Seen]) -> Cell:
    if not mine:
        return Cell("")
    worst = max(mine, key=lambda one: one.bad)
    times = f"{sum(one.bad for one in mine)} of {len(mine)} readings are bad"
    return Cell("bad" if worst.bad else "good", f"{times}; {worst.sentence}" if worst.sentence else times)
