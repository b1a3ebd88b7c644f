"""Rounds of a search over the links of a lab: a controller that makes one after another, and the hand on it.

python -m tests.faults.rounds MBIT HOSTS SSH_CONFIG KNOWN_HOSTS PYTHON      reads and writes JSON objects

MBIT is the rate in Mbit/s to which all links of the lab are shaped.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fixtures.blame.links.probe import Links
from fixtures.blame.search.model import Reading, Trial, Way
from fixtures.blame.search.rounds import circle
from fixtures.blame.search.search import Rules, search
from fixtures.blame.searches import LinksOnly
from fixtures.check.plan import NETWORK, Case, Planned
from fixtures.check.target import Target
from fixtures.cluster.measurement import CaseRequest, World
from tests.lab import Lab
from tests.lab.controller import opened
from tests.lab.handle import end
from thresholds.hardware import Hardware
from thresholds.loading.load import load

USUAL_MBIT = 200.0
HARDWARE = Path(__file__).parents[2] / "thresholds" / "lab-200mbit.toml"


@dataclass(frozen=True)
class Round:
    """What one round showed, and what it cost."""

    trials: tuple[Trial, ...]
    seconds: float

    @property
    def bad(self) -> set[tuple[str, str]]:
        """The ways that were bad, as (source, destination)."""
        return {(r.way.source, r.way.destination) for t in self.trials for r in t.readings if r.bad}

    @property
    def good(self) -> set[tuple[str, str]]:
        """The ways that were good."""
        return {(r.way.source, r.way.destination) for t in self.trials for r in t.readings if not r.bad}

    @property
    def unknown(self) -> list[str]:
        """Why nothing was learned of a group."""
        return [trial.unknown for trial in self.trials if trial.unknown]

    @property
    def sentences(self) -> list[str]:
        """What is said of the bad ways."""
        return [r.sentence for t in self.trials for r in t.readings if r.bad]


@dataclass(frozen=True)
class Searched:
    """What a whole search named, and what it cost."""

    named: tuple[tuple[str, tuple[str, ...]], ...]
    sentence: str
    rounds: int
    seconds: float


class Rounds:
    """The hand on a controller that is at work in a lab."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def pairs(self, *pairs: tuple[str, str], long: bool = False) -> Round:
        """Try these pairs at once, for a short or a long time."""
        return self._ask("long" if long else "pairs", pairs)

    def alone(self, *nodes: str) -> Round:
        """Try these nodes by themselves."""
        return self._ask("alone", nodes)

    def search(self, seed: int) -> Searched:
        """Look for what is slow among all nodes."""
        told = self._tell({"call": "search", "seed": seed})
        named = tuple((kind, tuple(nodes)) for kind, nodes in told["named"])
        return Searched(named, told["sentence"], told["rounds"], told["seconds"])

    def _ask(self, call: str, groups: Sequence[Any]) -> Round:
        answer = self._tell({"call": call, "groups": groups})
        return Round(tuple(_trial(said) for said in answer["trials"]), answer["seconds"])

    def _tell(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _trial(said: dict[str, Any]) -> Trial:
    readings = (Reading(Way(**one["way"]), one["bad"], one["sentence"]) for one in said["readings"])
    return Trial(tuple(said["group"]), tuple(readings), said["unknown"])


@contextlib.contextmanager
def rounds(lab: Lab, mbit: float = USUAL_MBIT) -> Iterator[Rounds]:
    """Open the nodes of a lab with links of this rate, lend rounds in one job, and leave the nodes clean."""
    options = lab.suite_arguments()[1::2]
    argv = [sys.executable, "-m", "tests.faults.rounds", str(mbit), *options]
    pipe = subprocess.PIPE
    process = lab.popen(argv, stdin=pipe, stdout=pipe, cwd=Path(__file__).parents[2])
    try:
        yield Rounds(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        end(process)


def schedule(nodes: Sequence[str], count: int) -> list[list[tuple[str, str]]]:
    """Give so many rounds of disjoint pairs."""
    return list(itertools.islice(itertools.cycle(circle(nodes)), count))


# the controller


def _answer(links: Links, asked: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    groups = asked["groups"]
    alone = asked["call"] == "alone"
    pairs = [] if alone else [(first, second) for first, second in groups]
    trials = links.alone(groups) if alone else links.pairs(pairs, long=asked["call"] == "long")
    return {"seconds": time.monotonic() - began, "trials": [asdict(trial) for trial in trials]}


def _search(links: Links, nodes: Sequence[str], seed: int) -> dict[str, Any]:
    began = time.monotonic()
    located = search(nodes, LinksOnly(links), seed, Rules(symptom="slow"))
    named = [(blame.kind.value, blame.nodes) for blame in located.blame]
    seconds = time.monotonic() - began
    return {"named": named, "sentence": located.sentence, "rounds": located.rounds, "seconds": seconds}


def shaped(mbit: float) -> Hardware:
    """Give the lab's hardware file with links of another rate."""
    hardware = load(HARDWARE)
    links = {**hardware.line_rate.links, "network": mbit / 8e3}
    return replace(hardware, line_rate=replace(hardware.line_rate, links=links))


def main(arguments: list[str]) -> None:
    """Open the cluster, answer until the input ends, leave it clean."""
    mbit, *where = arguments
    with opened(where, "search") as cluster:
        names = tuple(cluster.nodes)
        ranks = {name: node.ranks for name, node in cluster.nodes.items()}
        planned = Planned(Case("collectives.sweep"), NETWORK, names, "rounds", ())
        links = Links(cluster.run, Target(planned, ranks, shaped(float(mbit)), "gloo", {}))
        cluster.run([CaseRequest("nodes.present", World((name,)), {}, 60.0) for name in names])
        for line in sys.stdin:
            asked = json.loads(line)
            looks = asked["call"] == "search"
            answer = _search(links, names, asked["seed"]) if looks else _answer(links, asked)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
