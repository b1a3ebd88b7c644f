"""Which faults a run gets, where and when: drawn from its seed, so that the same seed draws the same."""

from __future__ import annotations

import random
from dataclasses import dataclass

from fixtures.wire.messages import Connected, Hello, Listening
from tests.fixtures.hostile_node import ROWS

# How many messages each says in a healthy run: the first two also those of the self-check.
NODES = {"n1": 44, "n2": 42, "n3": 18, "n4": 18, "n5": 18}
CONTROLLER = "the controller"
# What becomes of one message, or from then on of all; `nodes.py` says how.
OF_A_MESSAGE = ("drop", "delay", "duplicate", "truncate", "refuse", "raise", "die", "hang")
OF_A_NODE = ("kill", "stop", "deaf", "flap", "slow", "wrong")
HOSTILE = "hostile: "
OF_PATHS = (
    "connections to nobody",
    "all connections failed",
)  # it says that of others, who are then in doubt
OF_THE_CONTROLLER = ("fill", "fill for a while", "descriptors", "kill", "terminate", "stand still")


@dataclass(frozen=True)
class Fault:
    """What happens where, with the message of that number that its place says; `span_s` where it passes.

    Before the first message number -1 comes: the run has not begun.
    """

    kind: str
    place: str
    moment: int
    span_s: float

    def __str__(self) -> str:
        return f"{self.kind} on {self.place} at message {self.moment} ({self.span_s:.2f} s)"


def draw(seed: int) -> tuple[Fault, ...]:
    """One fault or two: nothing of the machine or of the time is in it."""
    chance = random.Random(seed)  # noqa: S311 - it must be repeatable
    nodes = chance.sample(list(NODES), 2)
    return tuple(_one(chance, node) for node in nodes[: chance.choice((1, 1, 2))])


def _one(chance: random.Random, node: str) -> Fault:
    place = CONTROLLER if chance.random() < 0.2 else node
    last = sum(NODES.values()) if place == CONTROLLER else NODES[node]
    # Half of them fall into the start, where everything is new.
    moment = chance.randrange(-1 if place == CONTROLLER else 0, chance.choice((6, last)))
    span_s = chance.uniform(0.05, 1.5)
    if place == CONTROLLER:
        kind = chance.choice(OF_THE_CONTROLLER)
        # pytest itself needs descriptors before any plugin of ours is there.
        return Fault(kind, place, max(0, moment) if kind == "descriptors" else moment, span_s)
    kind = chance.choice(chance.choice((OF_A_MESSAGE, OF_A_NODE, ("hostile",))))
    if kind == "hostile":
        row = chance.choice([row for row in ROWS if row.name not in OF_PATHS])
        early = row.when in (Hello, Listening, Connected)  # said once
        return Fault(f"{HOSTILE}{row.name}", place, 0 if early else moment, span_s)
    return Fault(kind, place, moment, span_s)
