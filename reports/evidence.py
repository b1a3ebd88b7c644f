"""What speaks against accepting a node: one finding per reason, the gravest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from reports.ledger import Ledger, convictions, last_word
from reports.page.selfcheck import distrust
from reports.record import (
    READY,
    BlameKind,
    CheckRecord,
    EndRecord,
    NodeRecord,
    Outcome,
    PlanRecord,
    Record,
    RunRecord,
)

# pytest's exit statuses after which its session was complete: all passed, some failed, nothing collected.
_COMPLETE = frozenset({0, 1, 5})


class Weight(IntEnum):
    """How grave a finding is. The first two reject a node, the others leave it unproven."""

    CORRUPTION = 0
    CONVICTED = 1
    NOT_READY = 2
    UNTRUSTED = 3
    FAILED = 4
    UNCHECKED = 5
    FAULT = 6
    RUN = 7
    NOT_REPORTED = 8


@dataclass(frozen=True)
class Finding:
    """One reason why a node is not accepted. `check` is the id of the check that says so, "" for the run."""

    node: str
    weight: Weight
    sentence: str
    check: str = ""


def collect(records: Sequence[Record], ledger: Ledger, everyone: Sequence[str]) -> list[Finding]:
    """Everything in the records that speaks against any of the nodes.

    A suite that failed its self-check convicts nobody: what it blames may be as wrong as what it passes.
    """
    checks = [record for record in records if isinstance(record, CheckRecord)]
    untrusted = distrust(records, ledger)
    return [
        *(finding for check in checks if not untrusted for finding in _convicted(check)),
        *_not_ready(records, everyone),
        *(Finding(node, Weight.UNTRUSTED, untrusted) for node in everyone if untrusted),
        *(finding for check in ledger.sound for finding in _not_passed(check, everyone)),
        *(finding for check in ledger.sound for finding in _met(check)),
        *_faulty(ledger, everyone),
        *_silent(ledger, everyone),
        *_forbidden(records, ledger, everyone),
    ]


def _convicted(check: CheckRecord) -> Iterator[Finding]:
    for node, blame in convictions(check):
        weight = Weight.CORRUPTION if blame.kind is BlameKind.WRONG_DATA else Weight.CONVICTED
        yield Finding(node, weight, f"{check.name}: {blame.sentence or check.reason}", check.id)
    if check.failed_alone:
        yield Finding(check.nodes[0], Weight.CONVICTED, f"{check.name}: {check.reason}", check.id)


def _not_passed(check: CheckRecord, everyone: Sequence[str]) -> Iterator[Finding]:
    """A failed or unchecked check proves nothing about those of its nodes that it does not convict."""
    for node in check.nodes or everyone:
        said = last_word(check, node)
        if said.outcome in (Outcome.FAIL, Outcome.UNCHECKED):
            weight = Weight.FAILED if said.outcome is Outcome.FAIL else Weight.UNCHECKED
            yield Finding(node, weight, f"{check.name}: {said.reason}", check.id)


def _met(check: CheckRecord) -> Iterator[Finding]:
    """What a check of no node met on one: the self-check goes on elsewhere, and may never meet it again."""
    for blame in () if check.nodes else check.blame:
        for node in blame.nodes:
            yield Finding(node, Weight.UNCHECKED, f"{check.name}: {blame.sentence}", check.id)


def _not_ready(records: Sequence[Record], everyone: Sequence[str]) -> Iterator[Finding]:
    seen = [record for record in records if isinstance(record, NodeRecord)]
    for node in seen:
        if node.state != READY:
            yield Finding(node.name, Weight.NOT_READY, f"{node.state}: {node.reason}".rstrip(": "))
    heard_of = {node.name for node in seen}
    for name in everyone:
        if name not in heard_of:
            yield Finding(name, Weight.NOT_READY, "nothing was ever heard of this node")


def _faulty(ledger: Ledger, everyone: Sequence[str]) -> Iterator[Finding]:
    for fault in ledger.faults:
        for node in fault.nodes or everyone:
            yield Finding(node, Weight.FAULT, fault.sentence, fault.check)


def _silent(ledger: Ledger, everyone: Sequence[str]) -> Iterator[Finding]:
    for entry in ledger.not_reported:
        for node in entry.nodes or everyone:
            yield Finding(node, Weight.NOT_REPORTED, f"not reported: {entry.check}", entry.check)


def _forbidden(records: Sequence[Record], ledger: Ledger, everyone: Sequence[str]) -> Iterator[Finding]:
    for sentence in run_level(records, ledger):
        for node in everyone:
            yield Finding(node, Weight.RUN, sentence)


def run_level(records: Sequence[Record], ledger: Ledger) -> Iterator[str]:
    """Why this run can accept nobody, one sentence each; nothing when it can."""
    if cut := cut_short(records):
        yield f"the run was cut short ({cut})"
    if untrusted := distrust(records, ledger):
        yield untrusted
    run = head(records)
    if run and run.selection:
        yield f"a selection accepts nobody ({run.selection})"
    if run and run.hardware in ("", "none"):
        yield "no hardware file was used, so measurements were recorded and not judged"
    if ledger.planned == 0:
        yield "nothing was planned"
    if _unexplained_failure(records, ledger):
        yield "pytest says that something failed, and no check says what"


def cut_short(records: Sequence[Record]) -> str:
    """Why the run ended before its plan; "" when it did not."""
    if head(records) is None:
        return "the journal has no head, so nothing says what was run"
    if not _any(records, PlanRecord):
        return "it ended before it had a plan"
    return _bad_end(records)


def _bad_end(records: Sequence[Record]) -> str:
    ends = [record for record in records if isinstance(record, EndRecord)]
    if said := [end.cut_short for end in ends if end.cut_short]:
        return said[0]
    if not ends:
        return "it ended without a word, so it was killed or its machine went down"
    if len(ends) > 1 or records[-1] is not ends[0]:
        return "the journal goes on after its end"
    if ends[0].pytest_status not in _COMPLETE:
        return f"pytest ended with status {ends[0].pytest_status}"
    return ""


def _unexplained_failure(records: Sequence[Record], ledger: Ledger) -> bool:
    failed = any(isinstance(record, EndRecord) and record.pytest_status == 1 for record in records)
    outcomes = {record.outcome for record in records if isinstance(record, CheckRecord)}
    explained = outcomes & {Outcome.FAIL, Outcome.UNCHECKED} or ledger.faults or ledger.not_reported
    return failed and not explained


def head(records: Iterable[Record]) -> RunRecord | None:
    """The run record, if the journal has one."""
    return next((record for record in records if isinstance(record, RunRecord)), None)


def _any(records: Iterable[Record], kind: type[Record]) -> bool:
    return any(isinstance(record, kind) for record in records)
