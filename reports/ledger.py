"""Planned against reported: which check reported for which node, and which reports cannot be believed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports.record import (
    CONVICTING,
    Blame,
    BlameKind,
    CheckRecord,
    Judgement,
    Outcome,
    PlannedCheck,
    PlanRecord,
    Record,
    Repeat,
)


@dataclass(frozen=True)
class NotReported:
    """A planned check and those of its nodes for which it never reported; `partly`: it did for others."""

    check: str
    nodes: tuple[str, ...]
    partly: bool


@dataclass(frozen=True)
class Fault:
    """A report that contradicts the plan or itself. No `nodes` means that it concerns them all."""

    check: str
    nodes: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Ledger:
    """`sound` are the reports to go by; a report with a fault is not among them."""

    planned: int | None  # None: the run has no plan
    sound: tuple[CheckRecord, ...]
    not_reported: tuple[NotReported, ...]
    faults: tuple[Fault, ...]


def balance(records: Sequence[Record]) -> Ledger:
    """Hold every planned check and node against what reported."""
    plans = [record for record in records if isinstance(record, PlanRecord)]
    planned = [check for plan in plans for check in plan.checks]
    checks = [record for record in records if isinstance(record, CheckRecord)]
    faults = (*_plan_faults(plans, planned), *_report_faults(checks, planned))
    broken = {fault.check for fault in faults}
    return Ledger(
        planned=len(planned) if plans else None,
        sound=tuple(check for check in checks if check.id not in broken),
        not_reported=tuple(_missing(checks, planned)),
        faults=faults,
    )


def _plan_faults(plans: Sequence[PlanRecord], planned: Sequence[PlannedCheck]) -> Iterator[Fault]:
    if len(plans) > 1:
        yield Fault("", (), f"the journal holds {len(plans)} plans, a run has one")
    for name, times in Counter(check.id for check in planned).items():
        if times > 1:
            nodes = {node: None for check in planned if check.id == name for node in check.nodes}
            yield Fault(name, tuple(nodes), f"{name} was planned {times} times")


def _report_faults(checks: Sequence[CheckRecord], planned: Sequence[PlannedCheck]) -> Iterator[Fault]:
    wanted = {check.id: check.nodes for check in planned}
    times = Counter(check.id for check in checks)
    for check in checks:
        nodes = tuple(dict.fromkeys((*check.nodes, *wanted.get(check.id, ()))))
        if times[check.id] > 1:
            yield Fault(check.id, nodes, f"{check.name} reported {times[check.id]} times")
        for sentence in _strays(check, wanted):
            yield Fault(check.id, nodes, sentence)
        for sentence in contradictions(check):
            yield Fault(check.id, nodes, f"{check.name} {sentence}")


def _strays(check: CheckRecord, wanted: dict[str, tuple[str, ...]]) -> Iterator[str]:
    if check.id not in wanted:
        yield f"{check.name} reported but was never planned"
    elif strangers := [node for node in check.nodes if node not in wanted[check.id]]:
        yield f"{check.name} reported for {', '.join(strangers)}, which its plan does not name"


def contradictions(check: CheckRecord) -> Iterator[str]:
    """Why this report cannot be taken at its word (a predicate without subject); nothing when it can.

    A check of no node, as those of the self-check are, judges none: it may pass and blame whom it met.
    """
    if check.outcome is Outcome.PASS:
        yield from _hollow_pass(check)
    if check.outcome is Outcome.NOT_APPLICABLE and not check.reason.strip():
        yield "is n/a without a reason"
    for blame in _all_blame(check) if check.nodes else ():
        if outside := [node for node in blame.nodes if node not in check.nodes]:
            yield f"blames {', '.join(outside)}, which took no part in it"
    yield from _repeated_wrongly(check)


def _all_blame(check: CheckRecord) -> Iterator[Blame]:
    yield from check.blame
    for repeat in check.repeats:
        yield from repeat.blame


def _repeated_wrongly(check: CheckRecord) -> Iterator[str]:
    """Only a check that did not pass is repeated, and each time on fewer nodes: never until it passes."""
    before, outcome = check.nodes, check.outcome
    for repeat in check.repeats:
        if outcome not in (Outcome.FAIL, Outcome.UNCHECKED):
            yield f"was repeated although it was {outcome.value}"
        if not repeat.nodes or not set(repeat.nodes) < set(before):
            yield "was repeated without leaving a node out"
        if repeat.outcome is Outcome.PASS:
            yield from _hollow_pass(repeat)
        before, outcome = repeat.nodes, repeat.outcome


def _hollow_pass(check: CheckRecord | Repeat) -> Iterator[str]:
    if not (check.judgements or check.recorded or check.measurement):
        yield "passed but recorded nothing: neither a comparison nor a measurement"
    for judgement in check.judgements:
        if judgement.outcome not in (Outcome.PASS, Outcome.NOT_APPLICABLE):
            yield f"passed although {judgement.metric} is {judgement.outcome.value}"
        elif not _compared(judgement):
            yield f"passed although {judgement.metric} has no value to hold against its limit"
    if check.nodes and any(blame.kind in CONVICTING or blame.convicts for blame in check.blame):
        yield "passed although its evidence blames a node"


def _compared(judgement: Judgement) -> bool:
    if judgement.outcome is not Outcome.PASS:
        return True
    if judgement.value is None:
        return judgement.limit_value is None
    return math.isfinite(judgement.value)


def convictions(check: CheckRecord) -> Iterator[tuple[str, Blame]]:
    """The nodes that this check's evidence convicts.

    A blame that names two nodes cannot say which of them it is and convicts neither. Wrong data and what
    came back when it was run again count whatever else became of the check, other evidence only in a check
    that was judged and failed.
    """
    for part in check.parts:
        for blame in part.blame:
            judged = part.outcome is Outcome.FAIL or blame.kind is BlameKind.WRONG_DATA or blame.proved
            if judged and blame.convicts and blame.nodes[0] in part.nodes:
                yield blame.nodes[0], blame


def last_word(check: CheckRecord, node: str) -> CheckRecord | Repeat:
    """What the check says of a node in the end: its last repeat if the node took part in that, else itself.

    A node that a repeat left out keeps the outcome that was there before it.
    """
    said: CheckRecord | Repeat = check
    for repeat in check.repeats:
        if node not in repeat.nodes:
            break
        said = repeat
    return said


def _missing(checks: Sequence[CheckRecord], planned: Sequence[PlannedCheck]) -> Iterator[NotReported]:
    reported: dict[str, set[str]] = {}
    for check in checks:
        reported.setdefault(check.id, set()).update(check.nodes)
    for entry in planned:
        silent = tuple(node for node in entry.nodes if node not in reported.get(entry.id, set()))
        if silent or entry.id not in reported:
            yield NotReported(entry.id, silent, partly=entry.id in reported)
