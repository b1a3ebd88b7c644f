"""One row of the catalogue: a fault, how it is planted, and what the report must then say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fixtures.check.workload import FAMILIES
from tests.faults.runs import Finished, Running
from tests.lab import Lab

RATE = "200mbit"
HARDWARE = ("--hardware", "lab-200mbit")
HANGS_S = 600.0  # for rows in which several cases run into their deadlines
# The families whose patterns have a limit: each must find slow exchanges on its own.
STEPS = [family for family in FAMILIES if family not in ("nodes", "collectives", "soak")]


class Names(str, Enum):
    """Which nodes the blame must name: each faulty node by itself, two as a path, or none."""

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
Arguments = Callable[[Scene], tuple[str, ...]]


def nothing(*_: object) -> tuple[str, ...]:
    """Plant nothing, or have no complaints."""
    return ()


@dataclass(frozen=True)
class Expect:
    """What the report must say.

    `status` are the exit statuses that are right, `faulty` and `healthy` the standings that nodes with the
    fault and all others may have. One of `kinds` must be blamed, with the nodes that `names` says, and no
    other kind except `also`; without kinds nobody may be blamed. Each of `words` must be in a reason or
    blame, and all of `junit` in one message of junit.xml; {node} and {rank} are those of the drawn node.
    """

    status: tuple[int, ...]
    faulty: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    names: Names = Names.EACH
    words: tuple[str, ...] = ()
    healthy: tuple[str, ...] = ("accepted",)
    also: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()  # kinds that healthy nodes may be named for, because of what the lab lacks
    junit: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A fault of the catalogue in a lab: `plant` before the run, `during` once its ranks are at work.

    `arguments` are the user's, beside the lab's own. `limit_s` is for the whole run, and `complaints` says
    what else is wrong with the finished run. `subjects` are the subjects of the inventory that must fail on
    the nodes with the fault, while no other may fail anywhere; None leaves that open.
    """

    name: str
    catalogue: int
    fault: str
    expect: Expect
    plant: Plant = nothing
    during: During | None = None
    workload: str = "collectives"
    arguments: Arguments = lambda _: HARDWARE
    nodes: int = 4
    slots: int = 1
    faulty: int = 1
    limit_s: float = 300.0
    cleans: bool = True  # whether the run can clean up; a node that stands still cannot
    complaints: Callable[[Scene, Finished], Iterable[str]] = nothing
    subjects: tuple[str, ...] | None = None


def rejected(*kinds: str, words: tuple[str, ...] = (), junit: tuple[str, ...] = ()) -> Expect:
    """The nodes with the fault are rejected by name, and all others are accepted."""
    return Expect((1,), ("rejected",), kinds, words=words, junit=junit)


def unproven(*kinds: str, words: tuple[str, ...] = ()) -> Expect:
    """The nodes with the fault are named but not convicted, and all others are accepted."""
    return Expect((2,), ("unproven",), kinds, words=words)


def on_path(*kinds: str, names: Names) -> Expect:
    """The fault is between two nodes: nobody is rejected, and whoever is at neither end is accepted."""
    return Expect((2,), ("unproven",), kinds, names)


def of_fabric(*kinds: str) -> Expect:
    """The fault is in no node: nobody is rejected, and nobody can be accepted either."""
    return Expect((2,), ("unproven",), kinds, Names.NOBODY, healthy=("unproven",))


def nobody(*status: int, standings: tuple[str, ...] = ("unproven",), words: tuple[str, ...] = ()) -> Expect:
    """Nobody is accepted and nobody blamed."""
    return Expect(status, standings, names=Names.NOBODY, words=words, healthy=standings)


def harmless() -> Expect:
    """Not a fault at all: everybody is accepted and nobody blamed."""
    return Expect((0,), ("accepted",))


def with_file(text: str) -> Arguments:
    """The user gives a hardware file of their own."""

    def arguments(scene: Scene) -> tuple[str, ...]:
        file = scene.place / "hardware.toml"
        file.write_text(text, encoding="utf-8")
        return "--hardware", str(file)

    return arguments
