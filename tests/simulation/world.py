"""Nodes that exist only as a list of their faults: a tester that answers by throwing dice."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from fixtures.blame.search.model import Reading, Route, Trial
from fixtures.blame.search.tallies import Part, ends

ALWAYS = 1.0
SHORT_S = (0.6, 0.9)  # how long a reading of one direction of a pair lasts, in the lab
LONG_S = 3.0
# Of an outage within a reading. So 0.3 s in every 2.3 s make 73 % of the trials of a pair bad, as measured.
SEEN_S = 0.1
Pair = tuple[str, str]


def named(count: int) -> list[str]:
    """Return n00, n01, ..."""
    return [f"n{number:02d}" for number in range(count)]


@dataclass(frozen=True)
class Flap:
    """A NIC that is away for so long, over and over."""

    down_s: float
    every_s: float

    def hits(self, phase_s: float, began_s: float, ended_s: float) -> bool:
        """Whether a reading from then to then meets it, for long enough to show."""
        down_s = phase_s - self.every_s * math.ceil(phase_s / self.every_s)
        while down_s < ended_s:
            if min(down_s + self.down_s, ended_s) - max(down_s, began_s) >= SEEN_S:
                return True
            down_s += self.every_s
        return False


@dataclass
class World:
    """What is bad, how often that shows and how often good things seem bad; and who was asked what.

    `links` are nodes that are bad whenever they send or receive, `parts` and `routes` are bad alone.
    A node that `flaps` is away over and over, and a reading is bad if it meets that; how often anything else
    shows is the same for short readings and long ones. Whoever is in `leaf` reaches the others over one link
    that carries so many pairs at once: more are slow together.
    `case` says whether the case itself fails on a group.
    """

    seed: int = 0
    links: Collection[str] = ()
    parts: Collection[Part] = ()
    routes: Collection[Route] = ()
    flaps: Mapping[str, Flap] = field(default_factory=dict)
    leaf: Collection[str] = ()
    carries: int = 1
    isolated_false_bad: Collection[str] = ()
    lost: Mapping[str, str] = field(default_factory=dict)  # nodes of which nothing is learned, and why
    case: Callable[[tuple[str, ...]], bool] = lambda group: False
    shows: float = ALWAYS
    false_alarm: float = 0.0
    rails: int = 1
    readings: int = 0
    asked: list[list[tuple[str, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)  # noqa: S311 - a simulation
        self._links, self._parts, self._routes = set(self.links), set(self.parts), set(self.routes)

    def alone(self, nodes: Sequence[str]) -> list[Trial]:
        """Try every node by itself."""
        self.asked.append([(node,) for node in nodes])
        return [
            self._trial((node,), [(Route(node, node), node in self.isolated_false_bad, False)])
            for node in nodes
        ]

    def pairs(self, pairs: Sequence[Pair], *, long: bool = False) -> list[Trial]:
        """Try every pair, in both directions and on every rail."""
        self.asked.append(list(pairs))
        shared, away = self._crowded(pairs), self._away(pairs, long=long)
        return [
            self._trial(
                pair,
                [
                    (route, self._bad(route) or route in shared, route in away)
                    for route in self._between(pair)
                ],
                long=long,
            )
            for pair in pairs
        ]

    def groups(self, groups: Sequence[tuple[str, ...]]) -> list[Trial]:
        """Try the case on every group."""
        self.asked.append(list(groups))
        return [
            self._trial(group, [(Route(group[0], group[-1]), self.case(group), False)]) for group in groups
        ]

    def _between(self, pair: Pair) -> list[Route]:
        one, other = pair
        return [
            route
            for rail in range(self.rails)
            for route in (Route(one, other, rail), Route(other, one, rail))
        ]

    def _bad(self, route: Route) -> bool:
        if route.source in self._links or route.destination in self._links or route in self._routes:
            return True
        return bool(self._parts) and not self._parts.isdisjoint(ends(route))

    def _away(self, pairs: Sequence[Pair], *, long: bool) -> set[Route]:
        """Return the routes in whose turn the NIC of an end is away."""
        length_s = LONG_S if long else self._random.uniform(*SHORT_S)
        away: set[Route] = set()
        for node, flap in self.flaps.items():
            phase_s = self._random.uniform(0, flap.every_s)
            for pair in (pair for pair in pairs if node in pair):
                for route in self._between(pair):
                    began_s = 0.0 if route.source == pair[0] else length_s
                    if flap.hits(phase_s, began_s, began_s + length_s):
                        away.add(route)
        return away

    def _crowded(self, pairs: Sequence[Pair]) -> set[Route]:
        """Return the routes that share the one link with too many others. Pairs take turns in direction."""
        routes = [*(Route(one, other) for one, other in pairs), *(Route(other, one) for one, other in pairs)]
        crowded: set[Route] = set()
        for turn in (routes[: len(pairs)], routes[len(pairs) :]):
            for way in ((True, False), (False, True)):  # up from the leaf, and down to it
                alike = [
                    one for one in turn if (one.source in self.leaf, one.destination in self.leaf) == way
                ]
                crowded.update(alike if len(alike) > self.carries else ())
        return crowded

    def _trial(
        self, group: tuple[str, ...], routes: Sequence[tuple[Route, bool, bool]], *, long: bool = True
    ) -> Trial:
        why = next((self.lost[node] for node in group if node in self.lost), "")
        if why:
            return Trial(group, (), why)
        self.readings += len(routes)
        return Trial(
            group, tuple(Reading(route, away or self._seems(bad), long=long) for route, bad, away in routes)
        )

    def _seems(self, bad: bool) -> bool:
        chance = self.shows if bad else self.false_alarm
        return chance >= ALWAYS or (chance > 0 and self._random.random() < chance)
