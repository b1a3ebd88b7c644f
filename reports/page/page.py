"""What the HTML report shows, in the order in which a reader needs it: answer, gaps, trouble, evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.evidence import head
from reports.hostlist import fold
from reports.page import figures, searches
from reports.page.searches import Searched
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
from reports.verdict import NodeVerdict, RunVerdict, Standing

_TROUBLE = (Outcome.FAIL, Outcome.UNCHECKED)
_UNFOLDED = 40  # checks of a suite


@dataclass(frozen=True)
class Answer:
    """Nodes that share a standing and a reason. `proof` are the checks that decided it."""

    standing: Standing
    nodes: tuple[str, ...]
    reason: str
    proof: tuple[str, ...]

    @property
    def folded(self) -> str:
        """The names in few characters."""
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
    """One check with its judgements; `anchor` is its place in the page."""

    anchor: str
    record: CheckRecord
    rows: tuple[Row, ...]

    @property
    def searched(self) -> Searched | None:
        """What a search for the part to blame saw."""
        return searches.of(self.record)

    @property
    def told(self) -> bool:
        """Whether it is told at length: it did not pass, or it passed and met somebody who is to blame."""
        return self.record.outcome in _TROUBLE or bool(self.record.blame)

    @property
    def nodes(self) -> str:
        """Where it ran."""
        return fold(self.record.nodes)


@dataclass(frozen=True)
class Trouble:
    """Checks that ended alike on the same nodes for the same reason: one cause, told once."""

    outcome: Outcome
    reason: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Suite:
    """The checks of one module, and how many of them ended in what."""

    name: str
    checks: tuple[Check, ...]
    counts: Mapping[Outcome, int]

    @property
    def troubled(self) -> bool:
        """Whether a reader wants to see it first."""
        return any(self.counts.get(outcome) for outcome in _TROUBLE)

    @property
    def unfolded(self) -> bool:
        """Whether it is shown without being asked for: trouble that does not fill screens."""
        return self.troubled and len(self.checks) <= _UNFOLDED


@dataclass(frozen=True)
class Gap:
    """Something that was not measured, why, and the checks and nodes that it would have been."""

    why: str
    nodes: str
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """Everything that the template may look at."""

    verdict: RunVerdict
    run: RunRecord | None
    end: EndRecord | None
    answers: tuple[Answer, ...]
    gaps: tuple[Gap, ...]
    trouble: tuple[Trouble, ...]
    suites: tuple[Suite, ...]
    sources: tuple[str, ...]
    nodes: tuple[NodeRecord, ...]
    jobs: tuple[JobRecord, ...]
    anchors: Mapping[str, str]  # check id -> its place in the page

    def of(self, standing: Standing) -> tuple[NodeVerdict, ...]:
        """The nodes that stand so."""
        return self.verdict.standing(standing)


def build(records: Sequence[Record], verdict: RunVerdict) -> Page:
    """The page of a run."""
    sources: dict[str, int] = {}
    found = (record for record in records if isinstance(record, CheckRecord))
    checks = [_check(index, record, sources) for index, record in enumerate(found, start=1)]
    jobs = {record.id: record for record in records if isinstance(record, JobRecord)}
    nodes = {record.name: record for record in records if isinstance(record, NodeRecord)}
    return Page(
        verdict=verdict,
        run=head(records),
        end=next((record for record in records if isinstance(record, EndRecord)), None),
        answers=_answers(verdict),
        gaps=(*_unreported(verdict, nodes), *_not_applicable(checks)),
        trouble=_troubles(checks),
        suites=_suites(checks),
        sources=tuple(sources),
        nodes=tuple(nodes.values()),
        jobs=tuple(jobs.values()),
        anchors={check.record.id: check.anchor for check in checks},
    )


def _answers(verdict: RunVerdict) -> tuple[Answer, ...]:
    """Rejected first, then unproven; nodes with one reason together, so that a cause is read once."""
    groups: dict[tuple[Standing, str], list[NodeVerdict]] = {}
    for standing in (Standing.REJECTED, Standing.UNPROVEN):
        for node in verdict.standing(standing):
            groups.setdefault((standing, node.reason), []).append(node)
    return tuple(
        Answer(standing, tuple(node.node for node in nodes), reason, nodes[0].checks)
        for (standing, reason), nodes in groups.items()
    )


def _check(index: int, record: CheckRecord, sources: dict[str, int]) -> Check:
    rows = tuple(_row(judgement, sources) for judgement in record.judgements)
    return Check(f"check-{index}", record, rows)


def _row(judgement: Judgement, sources: dict[str, int]) -> Row:
    source = sources.setdefault(judgement.source, len(sources) + 1) if judgement.source else 0
    size = judgement.case.get("size")
    where = f" at {figures.size(size)}" if isinstance(size, int) else ""
    return Row(
        metric=judgement.metric + where,
        outcome=judgement.outcome,
        measured=figures.quantity(judgement.value, judgement.unit) if judgement.value is not None else "none",
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
    """What never reported, by why: a node that left the run has said so, the rest should have been there."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for entry in verdict.not_reported:
        for node in entry.nodes or ("",):
            groups.setdefault(_why_silent(nodes.get(node)), []).append((entry.check, node))
    order = [node.node for node in verdict.nodes]
    return [
        Gap(
            why,
            fold(sorted({node for _, node in silent if node}, key=order.index)) or "the run",
            tuple(f"{check} on {node}" if node else check for check, node in silent),
        )
        for why, silent in groups.items()
    ]


def _why_silent(node: NodeRecord | None) -> str:
    if node is None or node.state == READY:
        return "planned, never reported"
    return node.said


def _not_applicable(checks: Sequence[Check]) -> list[Gap]:
    groups: dict[str, list[Check]] = {}
    for check in checks:
        if check.record.outcome is Outcome.NOT_APPLICABLE:
            groups.setdefault(check.record.reason, []).append(check)
    return [
        Gap(
            f"n/a: {why}",
            fold(node for one in same for node in one.record.nodes),
            tuple(one.record.name for one in same),
        )
        for why, same in groups.items()
    ]


def _troubles(checks: Sequence[Check]) -> tuple[Trouble, ...]:
    groups: dict[tuple[Outcome, str, tuple[str, ...]], list[Check]] = {}
    for outcome in (*_TROUBLE, Outcome.PASS, Outcome.NOT_APPLICABLE):
        for check in checks:
            if check.told and check.record.outcome is outcome:
                groups.setdefault((outcome, _reason(check.record), check.record.nodes), []).append(check)
    return tuple(Trouble(outcome, reason, tuple(same)) for (outcome, reason, _), same in groups.items())


def _reason(record: CheckRecord) -> str:
    return record.reason or "; ".join(blame.sentence for blame in record.blame)


def _suites(checks: Sequence[Check]) -> tuple[Suite, ...]:
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.record.suite, []).append(check)
    suites = [
        Suite(
            name=name,
            checks=tuple(sorted(same, key=lambda check: check.record.outcome not in _TROUBLE)),
            counts={outcome: _count(same, outcome) for outcome in Outcome},
        )
        for name, same in sorted(groups.items())
    ]
    return tuple(sorted(suites, key=lambda suite: not suite.troubled))


def _count(checks: Sequence[Check], outcome: Outcome) -> int:
    return sum(check.record.outcome is outcome for check in checks)
