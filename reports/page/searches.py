"""What a search for the bad part measured: a table of senders and receivers, and groups of nodes.

The data came from the record of a check, which need not be well-formed, so all of it is checked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field, PositiveInt, ValidationError

from reports import notation
from reports.record import CheckRecord

MOST_NODES = 16


@dataclass(frozen=True)
class Cell:
    """The readings of the path from one node to another. `word` is `bad`, `good` or "" (never measured).

    `figure` is the lowest speed of the readings behind that word, in GB/s.
    """

    word: str
    text: str = ""
    figure: str = ""


@dataclass(frozen=True)
class Searched:
    """One search: its result, and for each sender a cell per receiver.

    `nodes` begin with those on the most bad paths; the others follow in the order of the readings. `groups`
    are readings of more than two nodes together, which are not about a single path.
    """

    sentence: str
    rounds: int
    nodes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    left_out: int
    groups: tuple[tuple[tuple[str, ...], Cell], ...]


class _Reading(BaseModel):
    source: str = Field(alias="from")
    destination: str = Field(alias="to")
    group: tuple[str, ...] = ()
    bad: bool = False
    sentence: str = ""
    gigabytes_per_s: float | None = None


class _Recorded(BaseModel):
    sentence: str
    rounds: PositiveInt
    readings: tuple[_Reading, ...]


def of(check: CheckRecord) -> Searched | None:
    """The search of a check; None when it has none, or one that is malformed."""
    if "search" not in check.recorded:
        return None
    try:
        found = _Recorded.model_validate(check.recorded["search"])
    except ValidationError:
        return None
    pairs = [reading for reading in found.readings if len(reading.group) <= 2]
    every = _in_order(pairs)
    nodes = every[:MOST_NODES]
    rows = tuple((sender, tuple(_cell(pairs, sender, receiver) for receiver in nodes)) for sender in nodes)
    left_out = len(every) - len(nodes)
    return Searched(found.sentence, found.rounds, nodes, rows, left_out, _groups(found.readings))


def _groups(readings: Sequence[_Reading]) -> tuple[tuple[tuple[str, ...], Cell], ...]:
    groups = dict.fromkeys(reading.group for reading in readings if len(reading.group) > 2)
    return tuple(
        (group, _summed([reading for reading in readings if reading.group == group])) for group in groups
    )


def _in_order(readings: Sequence[_Reading]) -> tuple[str, ...]:
    """The nodes, those on the most bad paths first."""
    count: dict[str, int] = {}
    for reading in readings:
        for node in (reading.source, reading.destination):
            count[node] = count.get(node, 0) + reading.bad
    return tuple(sorted(count, key=lambda node: -count[node]))


def _cell(readings: Sequence[_Reading], sender: str, receiver: str) -> Cell:
    path = (sender, receiver)
    return _summed([reading for reading in readings if (reading.source, reading.destination) == path])


def _summed(readings: Sequence[_Reading]) -> Cell:
    if not readings:
        return Cell("")
    worst = max(readings, key=lambda reading: reading.bad)
    speeds = [
        one.gigabytes_per_s for one in readings if one.bad is worst.bad and one.gigabytes_per_s is not None
    ]
    figure = notation.number(min(speeds), digits=3) if speeds else ""
    times = f"{sum(reading.bad for reading in readings)} of {len(readings)} readings are bad"
    text = f"{times}; {worst.sentence}" if worst.sentence else times
    return Cell("bad" if worst.bad else "good", text, figure)
