"""What the HTML report shows, in the order of a reader: answer, trouble, gaps, evidence, what is n/a."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from reports import notation
from reports.audit import head, notes
from reports.begin import FAMILIES
from reports.compare.earlier import kind_of
from reports.decision import NodeVerdict, RunVerdict, Standing
from reports.notation import fold
from reports.page import facts, margins, searches, steps
from reports.page.margins import ACROSS, Margin
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
)
from reports.verdict_file import check_counts, spent

_TROUBLE = (Outcome.FAIL, Outcome.UNCHECKED)
_MOST_TROUBLES = 60  # explained on the first page
MOST_CHECKS = 40  # of a trouble, on the first page


@dataclass(frozen=True)
class Answer:
    """Nodes that share a standing and a reason; `proof` are the checks that decided it."""

    standing: Standing
    nodes: tuple[str, ...]
    reason: str
    proof: tuple[str, ...]


class Row(NamedTuple):
    """One judgement of a check, as a table shows it; `margin` is how far above or below its limit."""

    kind: str
    metric: str  # with the size
    outcome: Outcome
    measured: str
    limit: str
    margin: str
    used: float | None  # share of the limit that it takes up, None where there is no such share
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
        """Whether the page explains it: it did not pass, or it passed and still blames a part."""
        return self.record.outcome in _TROUBLE or bool(self.record.blame)

    @cached_property
    def used(self) -> float:
        """The largest share of a limit that its judgements take up."""
        return max((row.used for row in self.rows if row.used is not None), default=0.0)

    @property
    def rank(self) -> tuple[int, float]:
        """Its sort key: trouble first, then the thinnest margin, n/a last."""
        return steps.GRAVITY.index(self.record.outcome), -self.used


@dataclass(frozen=True)
class Line:
    """Checks in one line of a table: one check, or all with equal results that differ only in the node."""

    checks: tuple[Check, ...]

    @property
    def first(self) -> Check:
        """The one that stands for all."""
        return self.checks[0]

    @property
    def name(self) -> str:
        """The name, without a node where there are several."""
        record = self.first.record
        return record.name if len(self.checks) == 1 else kind_of(record.name, record.nodes)

    @cached_property
    def nodes(self) -> str:
        """Where they ran."""
        return fold(node for check in self.checks for node in check.record.nodes)


@dataclass(frozen=True)
class Trouble:
    """Checks with one outcome on the same nodes for the same reason: one cause, explained once."""

    outcome: Outcome
    reason: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Suite:
    """The checks of one test module: those in trouble first, then by margin, thinnest first; n/a apart."""

    name: str
    lines: tuple[Line, ...]
    not_applicable: tuple[Line, ...]


@dataclass(frozen=True)
class Chapter:
    """The checks of one family, which has its own page, and how many had each outcome."""

    name: str
    suites: tuple[Suite, ...]
    table: steps.Table | None
    counts: Mapping[Outcome, int]

    @property
    def file(self) -> str:
        """The page, beside the first one."""
        return FAMILIES.replace("*", self.name)

    @property
    def troubled(self) -> bool:
        """Whether any of its checks needs attention; such families come first."""
        return any(self.counts.get(outcome) for outcome in _TROUBLE)


@dataclass(frozen=True)
class Gap:
    """Checks that were not measured on these nodes, and why."""

    why: str
    nodes: str
    checks: tuple[str, ...]


def build(records: Sequence[Record], verdict: RunVerdict) -> dict[str, Any]:
    """Everything that the templates read of a run, except pictures and other files beside the page."""
    rows = _Rows()
    reported = (record for record in records if isinstance(record, CheckRecord))
    checks = [
        Check(f"check-{index}", record, tuple(map(rows.row, record.judgements)))
        for index, record in enumerate(reported, start=1)
    ]
    lines = _lines(checks)
    trouble = _troubles(checks)
    shown = {check.anchor for one in trouble[:_MOST_TROUBLES] for check in one.checks[:MOST_CHECKS]}
    jobs = {record.id: record for record in records if isinstance(record, JobRecord)}
    nodes = {record.name: record for record in records if isinstance(record, NodeRecord)}
    return {
        "verdict": verdict,
        "run": head(records),
        "end": next((record for record in records if isinstance(record, EndRecord)), None),
        "notes": notes(records),
        "spent": spent(records),  # where the time went
        "counts": check_counts(verdict),
        "answers": _answers(verdict),
        "gaps": _unreported(verdict, nodes),
        "absent": _not_applicable(checks),
        "trouble": trouble[:_MOST_TROUBLES],
        "more_trouble": len(trouble[_MOST_TROUBLES:]),  # shown only on the pages of the families
        "margins": margins.table(_margins(checks)),
        "chapters": _chapters(lines),
        "sources": list(rows.sources),
        "nodes": list(nodes.values()),
        "facts": facts.compare(list(nodes.values())),
        "jobs": list(jobs.values()),
        # the address of each check's element, from the first page
        "anchors": {
            check.record.id: f"#{check.anchor}" if check.anchor in shown else there
            for line in lines
            for there in (f"{FAMILIES.replace('*', family(line.first.record))}#{line.first.anchor}",)
            for check in line.checks
        },
    }


def _answers(verdict: RunVerdict) -> list[Answer]:
    """Rejected nodes first, then unproven, then beside; nodes with the same reason share an answer."""
    groups: dict[tuple[Standing, str], list[NodeVerdict]] = {}
    for standing in (Standing.REJECTED, Standing.UNPROVEN, Standing.BESIDE):
        for node in verdict.standing(standing):
            groups.setdefault((standing, node.reason), []).append(node)
    return [
        Answer(standing, tuple(node.node for node in nodes), reason, nodes[0].checks)
        for (standing, reason), nodes in groups.items()
    ]


class _Rows:
    """Makes a row of a judgement; equal ones, as of many nodes, are put into words once."""

    def __init__(self) -> None:
        self.sources: dict[str, int] = {}
        self._known: dict[object, Row] = {}

    def row(self, one: Judgement) -> Row:
        """The row of this judgement."""
        size = one.case.get("size")
        told = one.metric, size, one.outcome, one.value, one.unit, one.limit, one.limit_value, one.source
        if told not in self._known:
            where = f" at {notation.size(size)}" if isinstance(size, int) else ""
            self._known[told] = Row(
                kind=one.metric,
                metric=one.metric + where,
                outcome=one.outcome,
                measured=notation.quantity(one.value, one.unit) or "none",
                limit=one.limit,
                margin=_margin(one),
                used=steps.used(one),
                source=self.sources.setdefault(one.source, len(self.sources) + 1) if one.source else 0,
            )
        return self._known[told]


def _margin(judgement: Judgement) -> str:
    value, limit = judgement.value, judgement.limit_value
    if value is None or not limit or not math.isfinite(value):
        return ""
    percent = (value / limit - 1) * 100
    return f"{percent:+.1f} %" if value != limit else "equal"


def _unreported(verdict: RunVerdict, nodes: Mapping[str, NodeRecord]) -> list[Gap]:
    """Planned checks that never reported, grouped by reason: their node left the run, or it is unknown."""
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
            why,
            fold(node for check in same for node in check.record.nodes),
            tuple(check.record.name for check in same),
        )
        for why, same in groups.items()
    ]


def _troubles(checks: Sequence[Check]) -> list[Trouble]:
    groups: dict[tuple[Outcome, str, tuple[str, ...]], list[Check]] = {}
    for outcome in (*_TROUBLE, Outcome.PASS, Outcome.NOT_APPLICABLE):
        for check in checks:
            if check.explained and check.record.outcome is outcome:
                reason = check.record.reason or "; ".join(blame.sentence for blame in check.record.blame)
                groups.setdefault((outcome, reason, check.record.nodes), []).append(check)
    return [Trouble(outcome, reason, tuple(same)) for (outcome, reason, _), same in groups.items()]


def _margins(checks: Sequence[Check]) -> Iterator[Margin]:
    """The margins of values with a numeric limit; a value that must be met exactly has no margin."""
    for check in checks:
        nodes = check.record.nodes
        for row in check.rows if nodes else ():
            if row.used is not None and row.outcome in (Outcome.PASS, Outcome.FAIL):
                name = nodes[0] if len(nodes) == 1 else ACROSS
                yield Margin(name, row.kind, row.used, row.outcome, check.record.id, row.measured, row.limit)


def family(check: CheckRecord) -> str:
    """`zero` for `suites.zero.test_zero`, in characters that are safe in a file name."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", check.suite.rpartition(".")[0].rpartition(".")[2])[:80] or "other"


def _lines(checks: Sequence[Check]) -> list[Line]:
    """The lines of all tables; checks that are equal on many nodes share a line."""
    groups: dict[object, list[Check]] = {}
    for check in checks:
        record = check.record
        alike = (record.suite, kind_of(record.name, record.nodes), record.outcome, record.reason, check.rows)
        groups.setdefault(check.anchor if check.explained else alike, []).append(check)
    return [Line(tuple(same)) for same in groups.values()]


def _chapters(lines: Sequence[Line]) -> tuple[Chapter, ...]:
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(family(line.first.record), []).append(line)
    chapters = [
        Chapter(
            name=name,
            suites=_suites(same),
            table=steps.table(check.record for line in same for check in line.checks),
            counts=Counter(check.record.outcome for line in same for check in line.checks),
        )
        for name, same in sorted(groups.items())
    ]
    return tuple(sorted(chapters, key=lambda chapter: not chapter.troubled))


def _suites(lines: Sequence[Line]) -> tuple[Suite, ...]:
    groups: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line.first.rank):
        groups.setdefault(line.first.record.suite, []).append(line)
    absent = Outcome.NOT_APPLICABLE
    return tuple(
        Suite(
            name,
            tuple(line for line in same if line.first.record.outcome is not absent),
            tuple(line for line in same if line.first.record.outcome is absent),
        )
        for name, same in groups.items()
    )
