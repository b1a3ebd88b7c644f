"""How long checks took in earlier runs of the same hardware, skimmed from journals of maybe gigabytes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pydantic_core import from_json

from reports.begin import JOURNAL
from reports.record import READY, Outcome

MOST_RUNS = 3  # the newest: the machines may have changed since older ones
MOST_BYTES = 1 << 30  # read of old journals: more would take longer than it is worth
# How the lines begin that are read; the others are of the run, its plan and its end.
_READ = tuple(f'{{"type":"{kind}",'.encode() for kind in ("check", "node", "job"))


@dataclass
class Skimmed:
    """One journal. `seconds` has the time of each kind of check, without the start of a job."""

    run_id: str
    hosts: tuple[str, ...]
    hardware: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(frozen=True)
class Earlier:
    """Medians over runs, by kind of check: `same` over runs on as many nodes, `other` over all others.

    The first job of a run is the self-check's, which has few ranks: `first_start_s`.
    """

    runs: tuple[str, ...] = ()  # on as many nodes
    same: Mapping[str, float] = field(default_factory=dict)
    other: Mapping[str, float] = field(default_factory=dict)
    first_start_s: float | None = None
    start_s: float | None = None


def history(runs: Path, *, leave_out: str = "") -> Iterator[Skimmed]:
    """Read each readable journal, the newest first: names of runs begin with their time."""
    read_bytes = 0
    for path in sorted(runs.glob(f"*/{JOURNAL}"), reverse=True):
        if path.parent.name == leave_out or (found := skim(path)) is None:
            continue
        yield found
        read_bytes += found.size_bytes
        if read_bytes > MOST_BYTES:
            return


def earlier(runs: Iterable[Skimmed], hardware: Collection[str], nodes: int) -> Earlier:
    """Take the newest runs of this hardware on as many nodes, and those on any other number."""
    found = [one for one in runs if one.hardware == set(hardware)]
    same = [one for one in found if len(one.hosts) == nodes][:MOST_RUNS]
    other = [one for one in found if len(one.hosts) != nodes][:MOST_RUNS]
    first = [one.starts[0] for one in same or other if one.starts]
    later = [start for one in same for start in one.starts[1:]]
    ids = tuple(one.run_id for one in same)
    return Earlier(ids, _medians(same), _medians(other), _median(first), _median(later))


def skim(path: Path) -> Skimmed | None:
    """Take the few figures from a journal; None where it is not one, or names the hardware of no node."""
    try:
        with path.open("rb") as file:
            first = from_json(file.readline())
            found = Skimmed(str(first["run_id"]), tuple(first["hosts"]))
            for line in file:
                if line.startswith(_READ) and line.endswith(b"\n"):
                    _note(from_json(line), found)
            found.size_bytes = file.tell()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return found if found.hardware else None


def _note(record: Mapping[str, Any], found: Skimmed) -> None:
    """Note which hardware a node is, how long a job took to start, or how long a check took.

    Of checks that are measured together the longest counts, which did the work. The time of a check that did
    not pass includes a search, so only its measurement counts.
    """
    if record["type"] == "node":
        if record["state"] == READY:
            found.hardware.add(str(record["hardware"]))
    elif record["type"] == "job":
        if not record["ended"]:
            found.starts.append(float(record["start_seconds"] or 0))
    else:
        passed = record["outcome"] in (Outcome.PASS.value, Outcome.NOT_APPLICABLE.value)
        told = [record["measurement"].get("seconds"), *([record["seconds"]] if passed else [])]
        if figures := [one for one in told if isinstance(one, int | float)]:
            kind = kind_of(record["id"], record["nodes"])
            found.seconds[kind] = max(*figures, found.seconds.get(kind, 0.0))


def kind_of(check: str, nodes: Sequence[str]) -> str:
    """The name of a check without its node, equal on all nodes; a check across nodes names none."""
    if len(nodes) != 1:
        return check
    return re.sub(rf"(?:-|(?<=\[)){re.escape(nodes[0])}(?:_[0-9a-f]{{6}})?\]$", "]", check)


def _medians(runs: Sequence[Skimmed]) -> dict[str, float]:
    every: defaultdict[str, list[float]] = defaultdict(list)
    for one in runs:
        for kind, seconds in one.seconds.items():
            every[kind].append(seconds)
    return {kind: median(values) for kind, values in every.items()}


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
