"""Runs of the suite in a lab of four nodes, one or two of which have something happen to them meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fixtures.node.processes import wait_until
from fixtures.run.provenance import ROOT
from tests.chaos.invariants import complaints, of_places
from tests.chaos.trials import Tried, ended
from tests.faults.rows.planting import AGENT, RANK, SUPERVISOR
from tests.faults.rows.row import HARDWARE, RATE
from tests.faults.runs import Running, clean
from tests.lab import Lab, LabError

NODES = 4
HEALTHY_S = 75.0  # what a run takes in which nothing happens: the moments are drawn from so long
LIMIT_S = 600.0
Happens = Callable[[Lab, str], object]


def _to(verb: str, match: str) -> Happens:
    """Stop or kill a process of the run; nothing happens where there is none yet."""
    return lambda lab, node: getattr(lab, verb)(node, match)


HAPPENINGS: dict[str, Happens] = {
    **{
        f"{verb} {name}": _to(verb, match)
        for verb in ("stop", "kill")
        for name, match in (("torchrun", AGENT), ("a rank", RANK), ("the supervisor", SUPERVISOR))
    },
    "power off": Lab.power_off,
    "restart": Lab.restart,
    "vanish": Lab.vanish,
    "freeze": Lab.freeze,
    "slow link": lambda lab, node: lab.shape(node, "100mbit"),
}


@dataclass(frozen=True)
class Happening:
    """What happens to which node, so many seconds after the run began."""

    what: str
    node: str
    after_s: float

    def __str__(self) -> str:
        return f"{self.what} on {self.node} after {self.after_s:.1f} s"


def draw(seed: int, nodes: tuple[str, ...]) -> list[Happening]:
    """One happening or two, on different nodes."""
    chance = random.Random(seed)  # noqa: S311 - it must be repeatable
    hit = chance.sample(nodes, chance.choice((1, 1, 2)))
    drawn = [Happening(chance.choice([*HAPPENINGS]), node, chance.uniform(0, HEALTHY_S)) for node in hit]
    return sorted(drawn, key=lambda one: one.after_s)


def in_lab(seed: int, place: Path) -> Tried:
    """The collectives on four nodes; what befell them, what is wrong."""
    with Lab.up(NODES, RATE) as lab:
        happenings = draw(seed, lab.nodes)
        innocent = [node for node in lab.nodes if node not in {one.node for one in happenings}]
        began = time.monotonic()
        running = Running(lab, place / "report", "--workload", "collectives", *HARDWARE)
        for one in happenings:
            wait_until(partial(_befalls, one, lab, running, began), LIMIT_S, poll_s=0.05)
        finished = running.end(LIMIT_S)
        seconds = time.monotonic() - began
        wrong = [] if clean(lab, *innocent) else [f"it left something on one of {innocent}"]
    wrong += [f"it took more than {LIMIT_S:.0f} s"] if seconds > LIMIT_S else []
    found = ended(finished.report, finished.status, finished.output, ROOT)
    wrong += [*complaints(found, lab.nodes), *of_places(found, lab.nodes, {*lab.nodes} - {*innocent}, set())]
    return found, f"{'; '.join(map(str, happenings))}; it took {seconds:.0f} s", wrong


def _befalls(one: Happening, lab: Lab, running: Running, began: float) -> bool:
    """Let it happen at its moment, or as soon as there is what it happens to; say whether that is over."""
    if running.process.poll() is not None:
        return True
    if time.monotonic() - began < one.after_s:
        return False
    try:
        return HAPPENINGS[one.what](lab, one.node) != []
    except LabError:  # the run has ended meanwhile, and its processes with it
        return False
