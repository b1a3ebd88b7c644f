"""The decision: every node accepted, rejected or unproven, and the exit status that says so.

It is made from the records of a run alone. A node is accepted only if every check planned for it reported,
none of them speaks against it, at least one passed, and nothing about the run as a whole forbids it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from reports.audit import Audit, Fault, NotReported, blamed, cut_short, examine, head, last_word
from reports.begin import UNUSABLE
from reports.objections import Objection, Weight, collect, pytest_failed, refusals
from reports.record import (
    BESIDE,
    READY,
    SET_ASIDE,
    Blame,
    BlameKind,
    CheckRecord,
    EndRecord,
    NodeRecord,
    Outcome,
    PlanRecord,
    Record,
    RunRecord,
)
from reports.text import first_line


class Standing(str, Enum):
    """What becomes of a node at the end of a run. A node beside the others only helped, and is not judged."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNPROVEN = "unproven"
    BESIDE = "beside"


@dataclass(frozen=True)
class NodeVerdict:
    """The answer for one node: the reason in one sentence, and the ids of the checks that decided it."""

    node: str
    standing: Standing
    reason: str
    checks: tuple[str, ...]
    host_line: str


@dataclass(frozen=True)
class Blamed:
    """A part that the evidence of a check names; `check` is "" for a node that the run itself lost."""

    check: str
    blame: Blame


@dataclass(frozen=True)
class RunVerdict:
    """The answer for a whole run. `refusals` say why the run as a whole can accept nobody."""

    run_id: str
    workload: str
    hardware: str
    selection: str
    cut_short: str
    planned: int | None
    nodes: tuple[NodeVerdict, ...]
    outcomes: Mapping[Outcome, int]
    blame: tuple[Blamed, ...]
    not_reported: tuple[NotReported, ...]
    faults: tuple[Fault, ...]
    refusals: tuple[str, ...]

    def standing(self, standing: Standing) -> tuple[NodeVerdict, ...]:
        """The nodes that have this standing, in the order of the hosts file."""
        return tuple(node for node in self.nodes if node.standing is standing)

    @property
    def counts(self) -> dict[str, int]:
        """How many nodes have each standing; `beside` only where there are any."""
        found = {standing: len(self.standing(standing)) for standing in Standing}
        return {one.value: count for one, count in found.items() if count or one is not Standing.BESIDE}


def decide(records: Sequence[Record]) -> RunVerdict:
    """Judge every node that the records name."""
    audit = examine(records)
    run = head(records)
    everyone = _everyone(records)
    objections = [
        *collect(records, audit, everyone),
        *_unrecognised(run, records),
        *_strangers(run, everyone),
    ]
    checks = [record for record in records if isinstance(record, CheckRecord)]
    return RunVerdict(
        run_id=run.run_id if run else "",
        workload=run.workload if run else "",
        hardware=_hardware(run, records),
        selection=run.selection if run else "",
        cut_short=cut_short(records),
        planned=audit.planned,
        nodes=tuple(_nodes(everyone, run, audit, objections)),
        outcomes=Counter(check.outcome for check in checks),
        blame=tuple(_blame(records, checks)),
        not_reported=audit.not_reported,
        faults=audit.faults,
        refusals=tuple(refusals(records, audit)),
    )


def _blame(records: Sequence[Record], checks: Sequence[CheckRecord]) -> Iterator[Blamed]:
    """Yield the parts that checks name, the nodes that failed alone, and lost nodes that no check names."""
    named = [Blamed(check.id, blame) for check, blame in blamed(checks)]
    alone = [check for check in checks if check.failed_alone]
    named += [Blamed(check.id, Blame(BlameKind.NODE, check.nodes, check.reason)) for check in alone]
    yield from named
    known = {node for one in named for node in one.blame.nodes}
    last = {record.name: record for record in records if isinstance(record, NodeRecord)}
    for node in last.values():
        if node.state not in (READY, SET_ASIDE) and node.name not in known:
            yield Blamed("", Blame(BlameKind.LOST, (node.name,), node.sentence))


def exit_status(records: Sequence[Record], verdict: RunVerdict) -> int:
    """0 all accepted, 1 a node is rejected, 2 cut short or something unproven, 4 refused, 5 nothing there.

    A selection ends as pytest users expect: 1 if a check failed, was not judged or blames a part, or pytest
    says that something else failed (a file that cannot be imported, a test of the user's), else 0.
    """
    refused = any(isinstance(one, EndRecord) and one.pytest_status == UNUSABLE for one in records)
    if refused or (any(isinstance(one, PlanRecord) for one in records) and verdict.planned == 0):
        return UNUSABLE if refused else 5
    if verdict.cut_short:
        return 2
    if verdict.selection:
        return int(_anything_red(verdict) or pytest_failed(records))
    if verdict.standing(Standing.REJECTED):
        return 1
    if not verdict.nodes or verdict.standing(Standing.UNPROVEN) or _anything_red(verdict):
        return 2
    return 0


def _anything_red(verdict: RunVerdict) -> bool:
    not_green = verdict.outcomes.get(Outcome.FAIL, 0) + verdict.outcomes.get(Outcome.UNCHECKED, 0)
    return bool(not_green or verdict.not_reported or verdict.faults or verdict.blame)


def _everyone(records: Sequence[Record]) -> tuple[str, ...]:
    """Every node that the records name, those of the hosts file first and in its order."""
    names: dict[str, None] = {}
    for record in records:
        if isinstance(record, RunRecord):
            names.update(dict.fromkeys(record.hosts))
        elif isinstance(record, PlanRecord):
            names.update(dict.fromkeys(node for check in record.checks for node in check.nodes))
        elif isinstance(record, NodeRecord):
            names[record.name] = None
        elif isinstance(record, CheckRecord):
            names.update(dict.fromkeys(record.nodes))
    return tuple(names)


def _unrecognised(run: RunRecord | None, records: Sequence[Record]) -> list[Objection]:
    """With `--hardware auto` each node must match a hardware file: otherwise it met no limit."""
    if run is None or run.hardware != "auto":
        return []
    nodes = [record for record in records if isinstance(record, NodeRecord)]
    known = {node.name for node in nodes if node.hardware not in ("", "none")}
    return [
        Objection(node.name, Weight.RUN, "its hardware is in no hardware file, so nothing was asked of it")
        for node in nodes
        if node.name not in known
    ]


def _strangers(run: RunRecord | None, everyone: Sequence[str]) -> list[Objection]:
    """A node that the hosts file does not name cannot be handed back to anybody."""
    hosts = run.hosts if run else {}
    return [
        Objection(name, Weight.FAULT, "the run's hosts do not name this node")
        for name in everyone
        if name not in hosts
    ]


def _hardware(run: RunRecord | None, records: Sequence[Record]) -> str:
    if run is None or run.hardware != "auto":
        return run.hardware if run else ""
    names = {record.hardware for record in records if isinstance(record, NodeRecord) and record.hardware}
    return ", ".join(sorted(names)) or "not recognised"


def _nodes(
    everyone: Sequence[str], run: RunRecord | None, audit: Audit, objections: Sequence[Objection]
) -> Iterator[NodeVerdict]:
    against: dict[str, list[Objection]] = {}
    for objection in sorted(objections, key=lambda objection: objection.weight):
        against.setdefault(objection.node, []).append(objection)
    passed: dict[str, list[str]] = {}
    for check in audit.sound:
        for name in check.nodes:
            if last_word(check, name).outcome is Outcome.PASS:
                passed.setdefault(name, []).append(check.id)
    beside = run.inputs.get(BESIDE, "").split() if run else []
    for name in everyone:
        line = run.hosts.get(name, "") if run else ""
        verdict = _judge(name, line, against.get(name, []), passed.get(name, []))
        away = any(objection.weight is Weight.NOT_READY for objection in against.get(name, []))
        yield _beside(verdict, away) if name in beside else verdict


def _beside(verdict: NodeVerdict, away: bool) -> NodeVerdict:
    """The verdict on a node that was proven before: only that it is bad or away, if it is."""
    if verdict.standing is Standing.REJECTED:
        return replace(verdict, reason=f"it was beside the others, and is bad: {verdict.reason}")
    more = f": {verdict.reason}" if verdict.standing is Standing.UNPROVEN and verdict.checks else ""
    reason = f"it took part, and is not judged by this run{more}"
    if away:
        reason = f"it was to take part in all of this run, and did not: {verdict.reason}"
    return replace(verdict, standing=Standing.BESIDE, reason=reason)


def _judge(name: str, line: str, against: Sequence[Objection], passed: Sequence[str]) -> NodeVerdict:
    rejecting = [objection for objection in against if objection.weight <= Weight.CONVICTED]
    if rejecting:
        return NodeVerdict(name, Standing.REJECTED, _sentence(rejecting), _ids(rejecting), line)
    if against:
        return NodeVerdict(name, Standing.UNPROVEN, _sentence(against), _ids(against), line)
    if not passed:
        return NodeVerdict(name, Standing.UNPROVEN, "no check judged this node", (), line)
    reason = f"{len(passed)} check{'s' if len(passed) > 1 else ''} passed, none speaks against it"
    return NodeVerdict(name, Standing.ACCEPTED, reason, tuple(passed), line)


def _sentence(objections: Sequence[Objection]) -> str:
    """The gravest objection, and how many other checks object as well."""
    others = len(_ids(objections)) - 1 if objections[0].check else 0
    more = f" (and {others} more check{'s' if others > 1 else ''})" if others > 0 else ""
    return first_line(objections[0].sentence) + more


def _ids(objections: Sequence[Objection]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(objection.check for objection in objections if objection.check))
