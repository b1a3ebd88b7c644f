"""A report beside what a row expects of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.matrix.row import Expect, Names
from tests.faults.runs import Finished

Pair = tuple[str, ...]
DIRECTED = "link direction"


@dataclass(frozen=True)
class Said:
    """What a run said: exit status, the standing and reason of every node, and whom its checks blame."""

    status: int
    standing: Mapping[str, str]
    reasons: Mapping[str, str]
    blame: tuple[tuple[str, Pair, str], ...] = ()  # kind, nodes, sentence
    red: bool = True  # whether junit.xml, which is there from the first second on, has a failure or error


@dataclass(frozen=True)
class Judged:
    """Whether fault, kind and name were right, and how many healthy nodes (of how many) had their due."""

    detected: bool
    kind: bool
    name: bool
    healthy: int
    of: int
    misnamed: tuple[str, ...]  # the healthy nodes that were named
    wrong: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether all of it was as expected."""
        return not self.wrong


def read(done: Finished) -> Said:
    """Read a report; a run that left no verdict said nothing of anybody."""
    red = bool(done.faults())
    if not (done.report / "verdict.json").exists():
        return Said(done.status, {}, {}, red=red)
    verdict = done.verdict
    blame = tuple((str(one["kind"]), tuple(one["nodes"]), str(one["sentence"])) for one in _blame(verdict))
    standing = {name: word for word in ("accepted", "rejected", "unproven") for name in done.listed(word)}
    reasons = {node["node"]: str(node["reason"]) for node in verdict["nodes"]}
    return Said(done.status, standing, reasons, blame, red)


def _blame(verdict: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = verdict["blame"]
    return found


@dataclass
class _Judge:
    expect: Expect
    drawn: Pair
    said: Said
    wrong: list[str] = field(default_factory=list)

    def holds(self, faults: Iterator[str]) -> bool:
        found = list(faults)
        self.wrong += found
        return not found

    def detected(self) -> Iterator[str]:
        expect, said = self.expect, self.said
        if said.status not in expect.status:
            yield f"exit status {said.status}, not {_either(expect.status)}"
        if said.red == (0 in expect.status):
            yield f"junit.xml is {'red' if said.red else 'green'}"
        for node in self.drawn:
            if said.standing.get(node, "missing") not in expect.faulty:
                yield f"{node} is {said.standing.get(node, 'missing')}, not {_either(expect.faulty)}"
        told = " ".join([*said.reasons.values(), *(sentence for _, _, sentence in said.blame)])
        for word in expect.words:
            if word not in told:
                yield f"nothing says {word!r}"

    def kind(self) -> Iterator[str]:
        expect = self.expect
        seen = {kind for kind, _, _ in self.said.blame}
        if expect.kinds and not seen & set(expect.kinds):
            yield f"blamed for {_either(sorted(seen)) or 'nothing'}, not for {_either(expect.kinds)}"
        for kind in sorted(seen - {*expect.kinds, *expect.also, *expect.stray}):
            yield f"somebody is blamed for {kind}"

    def name(self) -> Iterator[str]:
        named = {
            _shape(kind, nodes, self.expect.names)
            for kind, nodes, _ in self.said.blame
            if kind in self.expect.kinds
        }
        for wanted in self._wanted() if self.expect.kinds else ():
            if wanted not in named:
                yield f"nobody names {' and '.join(wanted) or 'the part'}"
        if strangers := self.misnamed():
            yield f"{', '.join(strangers)} named without a fault"

    def _wanted(self) -> list[Pair]:
        if self.expect.names is Names.EACH:
            return [(node,) for node in self.drawn]
        if self.expect.names is Names.NOBODY:
            return [()]
        return [_shape(DIRECTED, self.drawn, self.expect.names)]

    def misnamed(self) -> tuple[str, ...]:
        """The healthy nodes that are rejected, or that some blame names."""
        guilty = () if self.expect.names is Names.NOBODY else self.drawn
        named = {
            node for kind, nodes, _ in self.said.blame if kind not in self.expect.stray for node in nodes
        }
        named |= {node for node, standing in self.said.standing.items() if standing == "rejected"}
        return tuple(sorted(named - set(guilty)))

    def healthy(self, nodes: Sequence[str]) -> Iterator[str]:
        for node in nodes:
            standing = self.said.standing.get(node, "missing")
            if standing not in self.expect.healthy:
                yield f"{node} has no fault and is {standing}: {self.said.reasons.get(node, '')}"


def judge(expect: Expect, drawn: Sequence[str], nodes: Sequence[str], said: Said) -> Judged:
    """Hold what a run said against what it must say."""
    one = _Judge(expect, tuple(drawn), said)
    others = [node for node in nodes if node not in drawn]
    detected, kind, name = one.holds(one.detected()), one.holds(one.kind()), one.holds(one.name())
    one.holds(one.healthy(others))
    due = sum(said.standing.get(node) in expect.healthy for node in others)
    return Judged(detected, kind, name, due, len(others), one.misnamed(), tuple(one.wrong))


def _shape(kind: str, nodes: Pair, names: Names) -> Pair:
    """The nodes of a blame, in their order only where the order was asked for and means something."""
    return nodes if names is Names.WAY and kind == DIRECTED else tuple(sorted(nodes))


def _either(values: Sequence[object]) -> str:
    return " or ".join(map(str, values))
