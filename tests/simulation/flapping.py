"""Searches for one NIC that is away every few seconds, by the hundred: named, undecided, or another named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from random import Random

from fixtures.blame.search.model import Located
from fixtures.blame.search.search import search
from tests.simulation.world import Flap, World, named

COUNTS = (4, 8, 16)
AWAY = (Flap(0.3, 2.3), Flap(0.3, 3.3), Flap(0.3, 5.0), Flap(1.0, 10.0))
NOISES = (0.0, 0.01)
HEAD = (
    "| nodes | away | false alarms | searches | named | undecided | a path | the fabric | another | rounds |"
)


def flapping(nodes: int, away: Flap, noise: float, searches: int) -> tuple[Counter[str], float]:
    """Return what searches found, and how many rounds of pairs they took in the mean."""
    found: Counter[str] = Counter()
    rounds = 0
    for seed in range(searches):
        bad = Random(seed).choice(named(nodes))  # noqa: S311 - a simulation
        world = World(seed, flaps={bad: away}, false_alarm=noise, case=partial(_has, bad))
        located = search(named(nodes), world, seed)
        found[_came_to(located, bad)] += 1
        rounds += sum(len(trials[0].group) == 2 for trials in located.trials)
    return found, rounds / searches


def _has(node: str, group: tuple[str, ...]) -> bool:
    return node in group


def _came_to(located: Located, bad: str) -> str:
    convicted = {blame.nodes[0] for blame in located.blame if blame.convicts}
    if convicted:
        return "named" if convicted == {bad} else "another"
    if not located.blame:
        return "undecided"
    return "a path" if any(blame.nodes for blame in located.blame) else "the fabric"


def lines(searches: int) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield HEAD
    yield f"|{'---|' * HEAD.count(' | ')}---|"
    for nodes in COUNTS:
        for away in AWAY:
            for noise in NOISES:
                found, rounds = flapping(nodes, away, noise, searches)
                counts = [found[word] for word in ("named", "undecided", "a path", "the fabric", "another")]
                cells = [
                    nodes,
                    f"{away.down_s:g} s in {away.every_s:g} s",
                    noise,
                    searches,
                    *counts,
                    f"{rounds:.1f}",
                ]
                yield f"| {' | '.join(map(str, cells))} |"
