"""Compare a report with what a row expects of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.faults.rows.row import Expect, Names
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
    junit: tuple[str, ...] = ()  # failures and errors of junit.xml, which is there from the first second on


@dataclass(frozen=True)
class Judged:
    """Whether the fault was noticed, which healthy nodes were named, and all that is not as expected."""

    noticed: bool
    misnamed: tuple[str, ...]
    wrong: tuple[str, ...]


def read(done: Finished) -> Said:
    """Read a report; a run that left no verdict said nothing of anybody."""
    junit = tuple(done.faults())
    if not (done.report / "verdict.json").exists():
        return Said(done.status, {}, {}, junit=junit)
    verdict = done.verdict
    blame = tuple((one["kind"], tuple(one["nodes"]), one["sentence"]) for one in verdict["blame"])
    standing = {name: word for word in ("accepted", "rejected", "unproven") for name in done.listed(word)}
    reasons = {node["node"]: node["reason"] for node in verdict["nodes"]}
    return Said(done.status, standing, reasons, blame, junit)


def judge(expect: Expect, drawn: Sequence[str], nodes: Sequence[str], said: Said) -> Judged:
    """Compare what a run said with what it must say."""
    missed = tuple(_missed(expect, drawn, nodes, said))
    strangers = _misnamed(expect, drawn, said)
    wrong = [*missed, *_kinds(expect, said), *_names(expect, drawn, said)]
    if strangers:
        wrong.append(f"{', '.join(strangers)} named without a fault")
    for node in nodes:
        standing = said.standing.get(node, "missing")
        if node not in drawn and standing not in expect.healthy:
            wrong.append(f"{node} has no fault and is {standing}: {said.reasons.get(node, '')}")
    return Judged(not missed, strangers, tuple(wrong))


def judge_each(expected: Mapping[str, Expect], nodes: Sequence[str], said: Said) -> Iterator[str]:
    """Compare what a run said about several faults, each on its own node, with what it must say of each."""
    for node, expect in expected.items():
        others = expected.keys() - {node}
        own = replace(
            said,
            standing={name: word for name, word in said.standing.items() if name not in others},
            reasons={name: why for name, why in said.reasons.items() if name not in others},
            blame=tuple(one for one in said.blame if not one[1] or set(one[1]) - others),
        )
        # The other faults are unknown here; at least one of them rejects a node, and a node that is set aside
        # or lost shifts the ranks of the others.
        junit = tuple(word for word in expect.junit if "{rank}" not in word)
        whole = replace(expect, status=(1,), healthy=(*expect.healthy, "missing"), junit=junit)
        yield from (f"{node}: {wrong}" for wrong in judge(whole, (node,), nodes, own).wrong)


def _missed(expect: Expect, drawn: Sequence[str], nodes: Sequence[str], said: Said) -> Iterator[str]:
    """What the run missed about the fault itself."""
    if said.status not in expect.status:
        yield f"exit status {said.status}, not {_either(expect.status)}"
    if bool(said.junit) == (0 in expect.status):
        yield f"junit.xml is {'red' if said.junit else 'green'}"
    for node in drawn:
        if said.standing.get(node, "missing") not in expect.faulty:
            yield f"{node} is {said.standing.get(node, 'missing')}, not {_either(expect.faulty)}"
    told = " ".join([*said.reasons.values(), *(sentence for _, _, sentence in said.blame)])
    for word in _of(expect.words, drawn, nodes):
        if word not in told:
            yield f"nothing says {word!r}"
    wanted = _of(expect.junit, drawn, nodes)
    if wanted and not any(all(word in message for word in wanted) for message in said.junit):
        yield f"nothing in junit.xml says {' and '.join(wanted)}"


def _of(words: Sequence[str], drawn: Sequence[str], nodes: Sequence[str]) -> list[str]:
    """The words, with {node} and {rank} of the drawn node."""
    return [word.format(node=drawn[0], rank=nodes.index(drawn[0])) if drawn else word for word in words]


def _kinds(expect: Expect, said: Said) -> Iterator[str]:
    seen = {kind for kind, _, _ in said.blame}
    if expect.kinds and not seen & set(expect.kinds):
        yield f"blamed for {_either(sorted(seen)) or 'nothing'}, not for {_either(expect.kinds)}"
    for kind in sorted(seen - {*expect.kinds, *expect.also, *expect.stray}):
        yield f"somebody is blamed for {kind}"


def _names(expect: Expect, drawn: Sequence[str], said: Said) -> Iterator[str]:
    wanted: list[Pair] = [(node,) for node in drawn]
    if expect.names is not Names.EACH:
        wanted = [() if expect.names is Names.NOBODY else _shape(DIRECTED, tuple(drawn), expect.names)]
    named = {_shape(kind, nodes, expect.names) for kind, nodes, _ in said.blame if kind in expect.kinds}
    for pair in wanted if expect.kinds else ():
        if pair not in named:
            yield f"nobody names {' and '.join(pair) or 'the part'}"


def _shape(kind: str, nodes: Pair, names: Names) -> Pair:
    """The nodes of a blame, sorted unless their order was asked for and has a meaning."""
    return nodes if names is Names.WAY and kind == DIRECTED else tuple(sorted(nodes))


def _misnamed(expect: Expect, drawn: Sequence[str], said: Said) -> tuple[str, ...]:
    """The healthy nodes that are rejected, or that some blame names."""
    named = {node for kind, nodes, _ in said.blame if kind not in expect.stray for node in nodes}
    named |= {node for node, standing in said.standing.items() if standing == "rejected"}
    return tuple(sorted(named - set(() if expect.names is Names.NOBODY else drawn)))


def _either(values: Sequence[object]) -> str:
    return " or ".join(map(str, values))
