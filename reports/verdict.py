"""The answer: every node accepted, rejected or unproven, and the exit status that says so.

Pure: from the records of a run alone. A node is accepted only when every check planned for it reported,
none of them speaks against it, at least one passed, and nothing about the run as a whole forbids it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from reports.clean import first_line
from reports.evidence import Finding, Weight, collect, cut_short, head, run_level
from reports.ledger import Fault, Ledger, NotReported, balance, last_word
from reports.record import (
    READY,
    SET_ASIDE,
    Blame,
    BlameKind,
    CheckRecord,
    NodeRecord,
    Outcome,
    PlanRecord,
    Record,
    RunRecord,
)


class Standing(str, Enum):
    """What a node is, at the end of a run."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNPROVEN = "unproven"


@dataclass(frozen=True)
class NodeVerdict:
    """One node's answer: why, in one sentence, and the ids of the checks that decided it."""

    node: str
    standing: Standing
    reason: str
    checks: tuple[str, ...]
    host_line: str


@dataclass(frozen=True)
class Blamed:
    """What the evidence of one check names; `check` is "" where the run itself found a node gone."""

    check: str
    blame: Blame


@dataclass(frozen=True)
class RunVerdict:
    """The answer of a whole run. `refusals` say why the run as a whole can accept nobody."""

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


def decide(records: Sequence[Record]) -> RunVerdict:
    """Judge every node that the records know."""
    ledger = balance(records)
    run = head(records)
    everyone = _everyone(records)
    findings = [*collect(records, ledger, everyone), *_unrecognised(run, records), *_strangers(run, everyone)]
    checks = [record for record in records if isinstance(record, CheckRecord)]
    return RunVerdict(
        run_id=run.run_id if run else "",
        workload=run.workload if run else "",
        hardware=_hardware(run, records),
        selection=run.selection if run else "",
        cut_short=cut_short(records),
        planned=ledger.planned,
        nodes=tuple(_nodes(everyone, run, ledger, findings)),
        outcomes=Counter(check.outcome for check in checks),
        blame=tuple(_blame(records, checks)),
        not_reported=ledger.not_reported,
        faults=ledger.faults,
        refusals=tuple(run_level(records, ledger)),
    )


def _blame(records: Sequence[Record], checks: Sequence[CheckRecord]) -> Iterator[Blamed]:
    """Yield what the checks name, who failed alone, and who is gone without a check that says so."""
    named = [Blamed(check.id, blame) for check in checks for part in check.parts for blame in part.blame]
    alone = [check for check in checks if check.failed_alone]
    named += [Blamed(check.id, Blame(BlameKind.NODE, check.nodes, check.reason)) for check in alone]
    yield from named
    known = {node for one in named for node in one.blame.nodes}
    last = {record.name: record for record in records if isinstance(record, NodeRecord)}
    for node in last.values():
        if node.state not in (READY, SET_ASIDE) and node.name not in known:
            yield Blamed("", Blame(BlameKind.LOST, (node.name,), node.said))


def exit_status(records: Sequence[Record], verdict: RunVerdict) -> int:
    """0 all accepted, 1 a node is rejected, 2 cut short or something unproven, 5 nothing was collected.

    A selection ends as pytest users expect: 1 when a check failed, was not judged or blames somebody, else 0.
    """
    if any(isinstance(record, PlanRecord) for record in records) and verdict.planned == 0:
        return 5
    if verdict.cut_short:
        return 2
    if verdict.selection:
        return int(_anything_red(verdict))
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


def _unrecognised(run: RunRecord | None, records: Sequence[Record]) -> list[Finding]:
    """With `--hardware auto` each node says which hardware file it answers to, or is judged by none."""
    if run is None or run.hardware != "auto":
        return []
    nodes = [record for record in records if isinstance(record, NodeRecord)]
    known = {node.name for node in nodes if node.hardware not in ("", "none")}
    return [
        Finding(node.name, Weight.RUN, "its hardware is in no hardware file, so nothing was asked of it")
        for node in nodes
        if node.name not in known
    ]


def _strangers(run: RunRecord | None, everyone: Sequence[str]) -> list[Finding]:
    """A node that the hosts file does not name cannot be handed back to anybody."""
    hosts = run.hosts if run else {}
    return [
        Finding(name, Weight.FAULT, "the run's hosts do not name this node")
        for name in everyone
        if name not in hosts
    ]


def _hardware(run: RunRecord | None, records: Sequence[Record]) -> str:
    if run is None or run.hardware != "auto":
        return run.hardware if run else ""
    found = {record.hardware for record in records if isinstance(record, NodeRecord) and record.hardware}
    return ", ".join(sorted(found)) or "not recognised"


def _nodes(
    everyone: Sequence[str], run: RunRecord | None, ledger: Ledger, findings: Sequence[Finding]
) -> Iterator[NodeVerdict]:
    against: dict[str, list[Finding]] = {}
    for one in sorted(findings, key=lambda one: one.weight):
        against.setdefault(one.node, []).append(one)
    passed: dict[str, list[str]] = {}
    for check in ledger.sound:
        for name in check.nodes:
            if last_word(check, name).outcome is Outcome.PASS:
                passed.setdefault(name, []).append(check.id)
    for name in everyone:
        line = run.hosts.get(name, "") if run else ""
        yield _judge(name, line, against.get(name, []), passed.get(name, []))


def _judge(name: str, line: str, mine: Sequence[Finding], passed: Sequence[str]) -> NodeVerdict:
    rejecting = [one for one in mine if one.weight <= Weight.CONVICTED]
    if rejecting:
        return NodeVerdict(name, Standing.REJECTED, _sentence(rejecting), _ids(rejecting), line)
    if mine:
        return NodeVerdict(name, Standing.UNPROVEN, _sentence(mine), _ids(mine), line)
    if not passed:
        return NodeVerdict(name, Standing.UNPROVEN, "no check judged this node", (), line)
    reason = f"{len(passed)} check{'s' if len(passed) > 1 else ''} passed, none speaks against it"
    return NodeVerdict(name, Standing.ACCEPTED, reason, tuple(passed), line)


def _sentence(findings: Sequence[Finding]) -> str:
    """The gravest finding, and how many other checks say something like it."""
    others = len(_ids(findings)) - 1 if findings[0].check else 0
    more = f" (and {others} more check{'s' if others > 1 else ''})" if others > 0 else ""
    return first_line(findings[0].sentence) + more


def _ids(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.check for one in findings if one.check))
