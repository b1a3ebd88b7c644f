"""What the HTML report shows, in the order in which a reader needs it: answer, gaps, trouble, evidence."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports import notation
from reports.audit import head
from reports.decision import NodeVerdict, RunVerdict, Standing
from reports.notation import fold
from reports.page import searches, steps
from reports.page.searches import Searched
from reports.page.steps import Family
from reports.record import (
    READY,
    CheckRecord,
    EndRecord,
    JobRecord,
    Judgement,
    NodeRecord,
    Outcome,
    Record,
    RunRecord,
)

_TROUBLE = (Outcome.FAIL, Outcome.UNCHECKED)
_UNFOLDED = 40  # checks of a suite
_LONGEST = 300  # characters of a fact


@dataclass(frozen=True)
class Answer:
    """Nodes that share a standing and a reason; `proof` are the checks that decided it."""

    standing: Standing
    nodes: tuple[str, ...]
    reason: str
    proof: tuple[str, ...]

    @property
    def folded(self) -> str:
        """The names as ranges."""
        return fold(self.nodes)


@dataclass(frozen=True)
class Row:
    """One judgement of a check, as a table shows it; `margin` is how far above or below its limit."""

    metric: str
    outcome: Outcome
    measured: str
    limit: str
    margin: str
    source: int  # number of the source in the list at the end, 0 for none


@dataclass(frozen=True)
class Check:
    """One check with its judgements; `anchor` is the id of its element in the page."""

    anchor: str
    record: CheckRecord
    rows: tuple[Row, ...]

    @property
    def searched(self) -> Searched | None:
        """What the search for the bad part measured, if there was one."""
        return searches.of(self.record)

    @property
    def explained(self) -> bool:
        """Whether the page explains it: it did not pass, or it passed and met somebody who is to blame."""
        return self.record.outcome in _TROUBLE or bool(self.record.blame)

    @property
    def nodes(self) -> str:
        """Where it ran."""
        return fold(self.record.nodes)


@dataclass(frozen=True)
class Trouble:
    """Checks with one outcome on the same nodes for the same reason: one cause, explained once."""

    outcome: Outcome
    reason: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Suite:
    """The checks of one test module, and how many of them had each outcome."""

    name: str
    checks: tuple[Check, ...]
    counts: Mapping[Outcome, int]

    @property
    def troubled(self) -> bool:
        """Whether any of its checks needs attention; such suites come first."""
        return any(self.counts.get(outcome) for outcome in _TROUBLE)

    @property
    def unfolded(self) -> bool:
        """Whether it is shown open: it has trouble and is not too long."""
        return self.troubled and len(self.checks) <= _UNFOLDED


@dataclass(frozen=True)
class Gap:
    """Checks that were not measured on these nodes, and why."""

    why: str
    nodes: str
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """Everything that the templates may read."""

    verdict: RunVerdict
    run: RunRecord | None
    end: EndRecord | None
    answers: tuple[Answer, ...]
    gaps: tuple[Gap, ...]
    trouble: tuple[Trouble, ...]
    families: tuple[Family, ...]
    suites: tuple[Suite, ...]
    sources: tuple[str, ...]
    nodes: tuple[NodeRecord, ...]
    jobs: tuple[JobRecord, ...]
    anchors: Mapping[str, str]  # check id -> id of its element in the page


def build(records: Sequence[Record], verdict: RunVerdict) -> Page:
    """The page of a run."""
    sources: dict[str, int] = {}
    reported = (record for record in records if isinstance(record, CheckRecord))
    checks = [
        Check(f"check-{index}", record, tuple(_row(judgement, sources) for judgement in record.judgements))
        for index, record in enumerate(reported, start=1)
    ]
    jobs = {record.id: record for record in records if isinstance(record, JobRecord)}
    nodes = {record.name: record for record in records if isinstance(record, NodeRecord)}
    return Page(
        verdict=verdict,
        run=head(records),
        end=next((record for record in records if isinstance(record, EndRecord)), None),
        answers=_answers(verdict),
        gaps=(*_unreported(verdict, nodes), *_not_applicable(checks)),
        trouble=_troubles(checks),
        families=steps.families(check.record for check in checks),
        suites=_suites(checks),
        sources=tuple(sources),
        nodes=tuple(nodes.values()),
        jobs=tuple(jobs.values()),
        anchors={check.record.id: check.anchor for check in checks},
    )


def _answers(verdict: RunVerdict) -> tuple[Answer, ...]:
    """Rejected nodes first, then unproven ones; nodes with the same reason share an answer."""
    groups: dict[tuple[Standing, str], list[NodeVerdict]] = {}
    for standing in (Standing.REJECTED, Standing.UNPROVEN):
        for node in verdict.standing(standing):
            groups.setdefault((standing, node.reason), []).append(node)
    return tuple(
        Answer(standing, tuple(node.node for node in nodes), reason, nodes[0].checks)
        for (standing, reason), nodes in groups.items()
    )


def _row(judgement: Judgement, sources: dict[str, int]) -> Row:
    source = sources.setdefault(judgement.source, len(sources) + 1) if judgement.source else 0
    size = judgement.case.get("size")
    where = f" at {notation.size(size)}" if isinstance(size, int) else ""
    return Row(
        metric=judgement.metric + where,
        outcome=judgement.outcome,
        measured=notation.quantity(judgement.value, judgement.unit) or "none",
        limit=judgement.limit,
        margin=_margin(judgement),
        source=source,
    )


def _margin(judgement: Judgement) -> str:
    value, limit = judgement.value, judgement.limit_value
    if value is None or not limit or not math.isfinite(value):
        return ""
    percent = (value / limit - 1) * 100
    return f"{percent:+.1f} %" if value != limit else "equal"


def _unreported(verdict: RunVerdict, nodes: Mapping[str, NodeRecord]) -> list[Gap]:
    """Planned checks that never reported, grouped by the reason: their node left the run, or nobody knows."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for entry in verdict.not_reported:
        for node in entry.nodes or ("",):
            left = nodes[node].sentence if node in nodes and nodes[node].state != READY else ""
            groups.setdefault(left or "planned, never reported", []).append((entry.check, node))
    order = [node.node for node in verdict.nodes]
    return [
        Gap(
            why,
            fold(sorted({node for _, node in silent if node}, key=order.index)) or "the run",
            tuple(f"{check} on {node}" if node else check for check, node in silent),
        )
        for why, silent in groups.items()
    ]


def _not_applicable(checks: Sequence[Check]) -> list[Gap]:
    groups: dict[str, list[Check]] = {}
    for check in checks:
        if check.record.outcome is Outcome.NOT_APPLICABLE:
            groups.setdefault(check.record.reason, []).append(check)
    return [
        Gap(
            f"n/a: {why}",
            fold(node for check in same for node in check.record.nodes),
            tuple(check.record.name for check in same),
        )
        for why, same in groups.items()
    ]


def _troubles(checks: Sequence[Check]) -> tuple[Trouble, ...]:
    groups: dict[tuple[Outcome, str, tuple[str, ...]], list[Check]] = {}
    for outcome in (*_TROUBLE, Outcome.PASS, Outcome.NOT_APPLICABLE):
        for check in checks:
            if check.explained and check.record.outcome is outcome:
                reason = check.record.reason or "; ".join(blame.sentence for blame in check.record.blame)
                groups.setdefault((outcome, reason, check.record.nodes), []).append(check)
    return tuple(Trouble(outcome, reason, tuple(same)) for (outcome, reason, _), same in groups.items())


def _suites(checks: Sequence[Check]) -> tuple[Suite, ...]:
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.record.suite, []).append(check)
    suites = [
        Suite(
            name=name,
            checks=tuple(sorted(same, key=lambda check: check.record.outcome not in _TROUBLE)),
            counts=Counter(check.record.outcome for check in same),
        )
        for name, same in sorted(groups.items())
    ]
    return tuple(sorted(suites, key=lambda suite: not suite.troubled))


@dataclass(frozen=True)
class Facts:
    """Facts that are the same on every node, and each node's other facts, as short texts."""

    common: Mapping[str, str]
    own: Mapping[str, Mapping[str, str]]


def compare_facts(nodes: Sequence[NodeRecord]) -> Facts:
    """Separate the common facts from those in which nodes differ: a fact that differs is often the cause."""
    every = {node.name: {name: _fact(value) for name, value in node.facts.items()} for node in nodes}
    known = [facts for facts in every.values() if facts]
    first = known[0] if len(known) > 1 else {}
    common = {name: value for name, value in first.items() if all(f.get(name) == value for f in known)}
    own = {
        node: {name: value for name, value in facts.items() if name not in common}
        for node, facts in every.items()
    }
    return Facts(common, own)


def _fact(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
