"""One row of the matrix: a fault, how it is planted, and what the report must then say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.faults.runs import Running
from tests.lab import Lab

RATE = "200mbit"
HARDWARE = ("--hardware", "lab-200mbit")


class Names(str, Enum):
    """Whom the blame must name: each node with the fault by itself, both as a path, or no node."""

    EACH = "each"
    PAIR = "pair"
    WAY = "way"  # a pair in the order in which data go
    NOBODY = "nobody"


@dataclass(frozen=True)
class Scene:
    """A lab, the nodes that were drawn to have the fault, and a folder for files of this trial."""

    lab: Lab
    drawn: tuple[str, ...]
    place: Path

    @property
    def node(self) -> str:
        """The node with the fault, where there is one."""
        return self.drawn[0]

    def each(self, do: Callable[[str], object]) -> None:
        """Do something to every node that was drawn."""
        for node in self.drawn:
            do(node)


Plant = Callable[[Scene], object]
During = Callable[[Scene, Running], object]


def nothing(*_: object) -> None:
    """Plant nothing at this time."""


@dataclass(frozen=True)
class Expect:
    """What the report must say.

    `status` are the exit statuses that are right, `faulty` and `healthy` the standings that nodes with the
    fault and all others may have. One of `kinds` must be blamed, by the names that `names` says, and nothing
    else but `also`; without kinds nobody may be blamed. Each of `words` is in what is said of the fault.
    """

    status: tuple[int, ...]
    faulty: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    names: Names = Names.EACH
    words: tuple[str, ...] = ()
    healthy: tuple[str, ...] = ("accepted",)
    also: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()  # kinds that healthy nodes may be named for, because of what the lab lacks


@dataclass(frozen=True)
class Row:
    """A fault of the catalogue in a lab: `plant` before the run, `during` once its ranks are at work.

    `limit_s` is for the whole run. `arguments` are what the user gives beside the lab's own.
    """

    name: str
    catalogue: int
    fault: str
    expect: Expect
    plant: Plant = nothing
    during: During | None = None
    workload: str = "collectives"
    arguments: Callable[[Scene], tuple[str, ...]] = lambda _: HARDWARE
    nodes: int = 4
    slots: int = 1
    faulty: int = 1
    limit_s: float = 300.0
    cleans: bool = True  # whether the run can clean up; a node that stands still cannot


def rejected(*kinds: str, words: tuple[str, ...] = ()) -> Expect:
    """The nodes with the fault are rejected by name, and all others are accepted."""
    return Expect((1,), ("rejected",), kinds, words=words)


def unproven(*kinds: str, words: tuple[str, ...] = ()) -> Expect:
    """The nodes with the fault are named but not convicted, and all others are accepted."""
    return Expect((2,), ("unproven",), kinds, words=words)


def between(*kinds: str, names: Names, words: tuple[str, ...] = ()) -> Expect:
    """The fault is in no node: nobody is rejected, and nobody can be accepted either."""
    return Expect((2,), ("unproven",), kinds, names, words, healthy=("unproven",))


def harmless() -> Expect:
    """Not a fault at all: everybody is accepted and nobody blamed."""
    return Expect((0,), ("accepted",))
