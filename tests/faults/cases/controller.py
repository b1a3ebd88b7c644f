"""Single cases and rounds of a search in a lab: a controller in its own process, and a client for it.

Faster than a whole run, and a fault can be planted in exactly the case meant.

As a program it takes MBIT HOSTS SSH_CONFIG KNOWN_HOSTS PYTHON, and reads and writes JSON objects; MBIT is the
rate in Mbit/s to which all links of the lab are shaped.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from fixtures.blame.links.probe import Links
from fixtures.blame.search.model import Reading, Route, Trial
from fixtures.blame.search.search import Rules, search
from fixtures.blame.searches import LinksAndCase
from fixtures.check.plan import NETWORK, Case, Planned
from fixtures.check.requests import round_robin
from fixtures.check.target import Target
from fixtures.cluster.cluster import Cluster
from fixtures.cluster.measurement import CaseRequest, Measurement, Unchecked, World
from fixtures.node.processes import wait_until
from fixtures.run.provenance import ROOT
from reports.record import JobRecord, Record
from tests.lab import Lab
from tests.lab.controller import opened
from tests.lab.handle import end
from thresholds.loading.load import load

USUAL_MBIT = 200.0
HARDWARE = ROOT / "thresholds" / "lab-200mbit.toml"


@dataclass(frozen=True)
class Answered:
    """What became of one case, and how long it took."""

    ok: bool
    text: str
    sign: str
    blame: Sequence[Mapping[str, Any]]
    detail: str
    nodes: Sequence[str]
    ready: Sequence[str]
    jobs: Sequence[tuple[str, str]]  # id and why it ended, in the order of the journal
    seconds: float

    @property
    def named(self) -> list[tuple[str, list[str], int | None]]:
        """Kind, nodes and rank of every blame."""
        return [(each["kind"], list(each["nodes"]), each["rank"]) for each in self.blame]


@dataclass(frozen=True)
class Round:
    """What one round showed, and how long it took."""

    trials: tuple[Trial, ...]
    seconds: float

    @property
    def bad(self) -> set[tuple[str, str]]:
        """The routes that were bad, as (source, destination)."""
        return {(r.route.source, r.route.destination) for t in self.trials for r in t.readings if r.bad}

    @property
    def good(self) -> set[tuple[str, str]]:
        """The routes that were good."""
        return {(r.route.source, r.route.destination) for t in self.trials for r in t.readings if not r.bad}

    @property
    def unknown(self) -> list[str]:
        """Why nothing was learned of a group."""
        return [trial.unknown for trial in self.trials if trial.unknown]

    @property
    def sentences(self) -> list[str]:
        """What is said of the bad routes."""
        return [r.sentence for t in self.trials for r in t.readings if r.bad]


@dataclass(frozen=True)
class Searched:
    """What a whole search named, and how long it took."""

    named: Sequence[Sequence[Any]]  # kind and nodes
    sentence: str
    rounds: int
    seconds: float


class Controller:
    """The client of a controller process that is connected to every node of a lab."""

    def __init__(self, lab: Lab, mbit: float = USUAL_MBIT) -> None:
        argv = [sys.executable, "-m", __name__, str(mbit), *lab.suite_arguments()[1::2]]
        pipe = subprocess.PIPE
        self.process = lab.popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe)
        self._began = time.monotonic()
        self._read()

    def begin(
        self, step: str, parameters: Mapping[str, Any], nodes: Sequence[str] = (), deadline_s: float = 60.0
    ) -> None:
        """Order a case, on all nodes that are ready if none is named."""
        order = {"step": step, "parameters": dict(parameters), "nodes": list(nodes), "deadline_s": deadline_s}
        self._write({"call": "case", **order})

    def answer(self) -> Answered:
        """Wait for the answer."""
        return Answered(**self._read(), seconds=time.monotonic() - self._began)

    def run(self, step: str, parameters: Mapping[str, Any], **more: Any) -> Answered:
        """Order a case and wait."""
        self.begin(step, parameters, **more)
        return self.answer()

    def pairs(self, *pairs: tuple[str, str], long: bool = False) -> Round:
        """Try these pairs at once, for a short or a long time."""
        return self._round("pairs", pairs, long=long)

    def alone(self, *nodes: str) -> Round:
        """Try these nodes alone."""
        return self._round("alone", nodes)

    def search(self, seed: int) -> Searched:
        """Look for what is slow among all nodes."""
        self._write({"call": "search", "seed": seed})
        return Searched(**self._read())

    def _round(self, call: str, groups: Sequence[Any], **more: object) -> Round:
        self._write({"call": call, "groups": groups, **more})
        told = self._read()
        return Round(tuple(_trial(one) for one in told["trials"]), told["seconds"])

    def _write(self, order: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self._began = time.monotonic()
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told


def _trial(told: dict[str, Any]) -> Trial:
    readings = (Reading(Route(**one["route"]), one["bad"], one["sentence"]) for one in told["readings"])
    return Trial(tuple(told["group"]), tuple(readings), told["unknown"])


@contextlib.contextmanager
def controller(lab: Lab, mbit: float = USUAL_MBIT) -> Iterator[Controller]:
    """Open the nodes of a lab with links of this rate, and leave them clean."""
    lent = Controller(lab, mbit)
    try:
        yield lent
        assert lent.process.stdin is not None
        lent.process.stdin.close()
        assert lent.process.wait(60) == 0
    finally:
        end(lent.process)


def schedule(nodes: Sequence[str], count: int) -> list[list[tuple[str, str]]]:
    """Give `count` rounds of disjoint pairs."""
    return list(itertools.islice(itertools.cycle(round_robin(nodes)), count))


# The progress files of the job that was started last.
_PROGRESS = """
import glob, os
job = max(glob.glob("/tmp/shakedown-*/job-*"), key=os.path.getmtime, default="none")
print(b"".join(open(path, "rb").read() for path in glob.glob(job + "/progress.*")))
"""


def in_phase(lab: Lab, node: str, phase: str, deadline_s: float = 90.0) -> None:
    """Wait until a rank of a node is in a phase, read from its progress file as the supervisor does."""
    argv = [sys.executable, "-S", "-c", _PROGRESS]
    there = wait_until(lambda: phase in lab.on(node, argv).stdout, deadline_s, poll_s=0.1)
    assert there, f"{phase} on {node}? {lab.on(node, argv)}"


def starting(lab: Lab, node: str, deadline_s: float = 90.0) -> None:
    """Wait until a node has been told to start its ranks, which takes them seconds."""
    program = 'import glob; print(*glob.glob("/tmp/shakedown-*/job-*"))'
    argv = [sys.executable, "-S", "-c", program]
    there = wait_until(lambda: "job-" in lab.on(node, argv).stdout, deadline_s, poll_s=0.05)
    assert there, f"no job on {node}: {lab.on(node, argv)}"


# the controller


class _Calls:
    """What the controller can be told to do."""

    def __init__(self, cluster: Cluster, mbit: float, jobs: list[tuple[str, str]]) -> None:
        self._cluster, self._mbit, self._jobs = cluster, mbit, jobs

    def case(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run one case."""
        nodes = order["nodes"] or self._cluster.ready()
        request = CaseRequest(order["step"], World(tuple(nodes)), order["parameters"], order["deadline_s"])
        answer = self._cluster.run([request])[0]
        told = {"nodes": nodes, "ready": self._cluster.ready(), "jobs": self._jobs}
        if isinstance(answer, Measurement):
            return {**told, "ok": True, "text": "", "sign": "", "blame": [], "detail": ""}
        assert isinstance(answer, Unchecked), answer
        blame = [asdict(each) for each in answer.blame]
        wrong = {"text": str(answer), "sign": answer.sign, "blame": blame, "detail": answer.detail}
        return {**told, "ok": False, **wrong}

    def pairs(self, order: dict[str, Any]) -> dict[str, Any]:
        """Make one round of pairs."""
        pairs = [(first, second) for first, second in order["groups"]]
        return self._round(lambda links: links.pairs(pairs, long=order["long"]))

    def alone(self, order: dict[str, Any]) -> dict[str, Any]:
        """Make one round of nodes alone."""
        return self._round(lambda links: links.alone(order["groups"]))

    def _round(self, make: Callable[[Links], Sequence[Trial]]) -> dict[str, Any]:
        links, began = self._links, time.monotonic()
        trials = make(links)
        return {"seconds": time.monotonic() - began, "trials": [asdict(trial) for trial in trials]}

    def search(self, order: dict[str, Any]) -> dict[str, Any]:
        """Make a whole search."""
        links, began = self._links, time.monotonic()
        located = search(
            tuple(self._cluster.nodes), LinksAndCase(links, None), order["seed"], Rules(symptom="slow")
        )
        named = [(blame.kind.value, blame.nodes) for blame in located.blame]
        seconds = time.monotonic() - began
        return {"named": named, "sentence": located.sentence, "rounds": located.rounds, "seconds": seconds}

    @cached_property
    def _links(self) -> Links:
        """Rounds over the links of all nodes; the object remembers the speeds of healthy links."""
        cluster, hardware = self._cluster, load(HARDWARE)
        network = {**hardware.line_rate.links, "network": self._mbit / 8e3}
        shaped = replace(hardware, line_rate=replace(hardware.line_rate, links=network))
        names = tuple(cluster.nodes)
        ranks = {name: node.ranks for name, node in cluster.nodes.items()}
        planned = Planned(Case("collectives.sweep"), NETWORK, names, "rounds", ())
        cluster.run([CaseRequest("nodes.present", World((name,)), {}, 60.0) for name in names])
        return Links(cluster.run, Target(planned, ranks, shaped, "gloo", {}))


def main(arguments: list[str]) -> None:
    """Open the cluster, answer until the input ends, leave it clean."""
    mbit, *where = arguments
    jobs: list[tuple[str, str]] = []

    def keep(record: Record) -> None:
        if isinstance(record, JobRecord):
            jobs.append((record.id, record.ended))

    with opened(where, "search", keep) as cluster:
        calls = _Calls(cluster, float(mbit), jobs)
        print("{}", flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            print(json.dumps(getattr(calls, order["call"])(order)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
