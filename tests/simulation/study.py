"""Searches for nodes whose links are bad in both directions, by the thousand, and a table of their errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean

from fixtures.blame.search.belief import Belief
from fixtures.blame.search.model import Located, Trial
from fixtures.blame.search.rules import Rules
from fixtures.blame.search.search import search
from tests.bounds import clopper_pearson
from tests.simulation.world import World, named

SHOWS = (1.0, 0.9)  # how often what is bad is seen to be
RARELY = 0.5
NOISE = 0.01  # how often what is good seems bad
MANY = 1000
HEAD = (
    *("nodes", "bad", "shows", "false alarms", "searches"),
    *("bad: missed", "bad: undecided", "good: blamed", "searches that blame a path"),
    *("rounds of pairs: mean, most", "all rounds: mean, most"),
)


@dataclass(frozen=True)
class Setting:
    """How many nodes, how many of them bad, how often that shows, and how often good ones seem bad."""

    nodes: int
    bad: int
    shows: float
    false_alarm: float


@dataclass
class Errors:
    """What came of some searches, in nodes; `paths` are searches that blamed what is between good nodes."""

    setting: Setting
    searches: int = 0
    missed: int = 0
    undecided: int = 0
    false: int = 0
    paths: int = 0
    rounds: list[int] = field(default_factory=list)
    pair_rounds: list[int] = field(default_factory=list)


def study(setting: Setting, searches: int) -> Errors:
    """Search so many times, with other bad nodes and other chances each time."""
    errors = Errors(setting)
    nodes = named(setting.nodes)
    for seed in range(searches):
        bad = frozenset(Random(seed).sample(nodes, setting.bad))  # noqa: S311 - a simulation
        world = World(seed, bad, shows=setting.shows, false_alarm=setting.false_alarm)
        _count(errors, bad, nodes, search(nodes, world, seed))
    return errors


def _count(errors: Errors, bad: frozenset[str], nodes: Sequence[str], located: Located) -> None:
    convicted = {blame.nodes[0] for blame in located.blame if blame.convicts}
    pairs = [trials for trials in located.trials if len(trials[0].group) == 2]
    undecided = _undecided(nodes, pairs) & (bad - convicted)
    errors.searches += 1
    errors.undecided += len(undecided)
    errors.missed += len(bad - convicted - undecided)
    errors.false += len(convicted - bad)
    errors.paths += any(not blame.convicts for blame in located.blame)
    errors.rounds.append(located.rounds)
    errors.pair_rounds.append(len(pairs))


def _undecided(nodes: Sequence[str], pairs: Iterable[Sequence[Trial]]) -> frozenset[str]:
    """Return the nodes that more rounds would have decided."""
    belief = Belief(nodes, Rules())
    for trials in pairs:
        belief.learn(trials)
    return belief.weigh(left=MANY).open


def settings(sizes: Sequence[int]) -> Iterator[Setting]:
    """Yield none, one, up to a quarter of the nodes bad, seen always or mostly, without and with noise."""
    for nodes in sizes:
        yield Setting(nodes, 0, SHOWS[0], NOISE)
        for bad in sorted({1, nodes // 16, nodes // 8, nodes // 4}):
            yield from (Setting(nodes, bad, shows, alarm) for shows in SHOWS for alarm in (0.0, NOISE))
        yield from (Setting(nodes, bad, RARELY, NOISE) for bad in (1, nodes // 16))


def table(rows: Iterable[Errors]) -> Iterator[str]:
    """Yield the lines of a table in Markdown, with exact bounds of every share."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    for row in rows:
        yield f"| {' | '.join(_cells(row))} |"


def _cells(row: Errors) -> list[str]:
    setting, bad = row.setting, row.searches * row.setting.bad
    good = row.searches * (setting.nodes - setting.bad)
    plain = (setting.nodes, setting.bad, setting.shows, setting.false_alarm, row.searches)
    return [
        *(f"{value:g}" for value in plain),
        _share(row.missed, bad),
        _share(row.undecided, bad),
        _share(row.false, good),
        _share(row.paths, row.searches),
        _rounds(row.pair_rounds),
        _rounds(row.rounds),
    ]


def _share(hits: int, of: int) -> str:
    """Say how many of how many, and between which shares the truth lies with 95 % confidence."""
    if not of:
        return "-"
    low, high = clopper_pearson(hits, of)
    return f"{hits} of {of} ({_percent(low)} to {_percent(high)} %)"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"


def _rounds(rounds: Sequence[int]) -> str:
    return f"{fmean(rounds):.1f}, {max(rounds)}"
