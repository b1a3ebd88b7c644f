"""Compare the journal with its plan: what never reported, what contradicts itself, how the run ended."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from reports.record import (
    CONVICTING,
    Blame,
    BlameKind,
    CheckRecord,
    EndRecord,
    Judgement,
    NodeRecord,
    Outcome,
    PlannedCheck,
    PlanRecord,
    Record,
    Repeat,
    RunRecord,
)

# pytest's exit statuses after which its session was complete: all passed, some failed, nothing collected.
_COMPLETE = frozenset({0, 1, 5})


@dataclass(frozen=True)
class NotReported:
    """A planned check, and the nodes for which it never reported. `partly`: it did report for others."""

    check: str
    nodes: tuple[str, ...]
    partly: bool


@dataclass(frozen=True)
class Fault:
    """A report that contradicts the plan or itself. Without `nodes` it concerns all of them."""

    check: str
    nodes: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Audit:
    """`sound` are the reports that can be believed: those without a fault."""

    planned: int | None  # None: the run has no plan
    sound: tuple[CheckRecord, ...]
    not_reported: tuple[NotReported, ...]
    faults: tuple[Fault, ...]


def examine(records: Sequence[Record]) -> Audit:
    """Compare every planned check and node with what reported."""
    plans = [record for record in records if isinstance(record, PlanRecord)]
    planned = [check for plan in plans for check in plan.checks]
    checks = [record for record in records if isinstance(record, CheckRecord)]
    faults = (*_plan_faults(plans, planned), *_report_faults(checks, planned))
    faulty = {fault.check for fault in faults}
    return Audit(
        planned=len(planned) if plans else None,
        sound=tuple(check for check in checks if check.id not in faulty),
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
    planned_nodes = {check.id: check.nodes for check in planned}
    concerned = spoken_for(planned)
    times = Counter(check.id for check in checks)
    for check in checks:
        nodes = tuple(dict.fromkeys((*check.nodes, *concerned.get(check.id, ()))))
        if times[check.id] > 1:
            yield Fault(check.id, nodes, f"{check.name} reported {times[check.id]} times")
        for sentence in _unplanned(check, planned_nodes):
            yield Fault(check.id, nodes, sentence)
        for predicate in contradictions(check):
            yield Fault(check.id, nodes, f"{check.name} {predicate}")


def spoken_for(planned: Iterable[PlannedCheck]) -> dict[str, tuple[str, ...]]:
    """The nodes that each planned check concerns; none: all of them."""
    return {check.id: check.nodes or check.for_nodes for check in planned}


def _unplanned(check: CheckRecord, planned_nodes: dict[str, tuple[str, ...]]) -> Iterator[str]:
    if check.id not in planned_nodes:
        yield f"{check.name} reported but was never planned"
    elif strangers := [node for node in check.nodes if node not in planned_nodes[check.id]]:
        yield f"{check.name} reported for {', '.join(strangers)}, which its plan does not name"


def contradictions(check: CheckRecord) -> Iterator[str]:
    """Why this report cannot be believed, as predicates whose subject is the check; nothing when it can.

    A check without nodes, such as those of the self-check, judges none, so it may pass and still blame one.
    """
    if check.outcome is Outcome.PASS:
        yield from _hollow_pass(check)
    if check.outcome is Outcome.NOT_APPLICABLE and not check.reason.strip():
        yield "is n/a without a reason"
    for blame in (blame for part in check.parts for blame in part.blame) if check.nodes else ():
        if outside := [node for node in blame.nodes if node not in check.nodes]:
            yield f"blames {', '.join(outside)}, which took no part in it"
    yield from _wrong_repeats(check)


def _wrong_repeats(check: CheckRecord) -> Iterator[str]:
    """No check is repeated until it passes: only one that did not pass is repeated, and on fewer nodes."""
    nodes, outcome = check.nodes, check.outcome
    for repeat in check.repeats:
        if outcome not in (Outcome.FAIL, Outcome.UNCHECKED):
            yield f"was repeated although it was {outcome.value}"
        if not repeat.nodes or not set(repeat.nodes) < set(nodes):
            yield "was repeated without leaving a node out"
        if repeat.outcome is Outcome.PASS:
            yield from _hollow_pass(repeat)
        nodes, outcome = repeat.nodes, repeat.outcome


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

    Blame that names two nodes does not tell which of them is bad, and convicts neither. Wrong data, and a
    fault that came back when the case was run again, count whatever the outcome of the check; other evidence
    counts only in a check that was judged and failed.
    """
    for part in check.parts:
        for blame in part.blame:
            judged = part.outcome is Outcome.FAIL or blame.kind is BlameKind.WRONG_DATA or blame.proved
            if judged and blame.convicts and blame.nodes[0] in part.nodes:
                yield blame.nodes[0], blame


def blamed(checks: Sequence[CheckRecord]) -> Iterator[tuple[CheckRecord, Blame]]:
    """All that checks blame, but for what a check without nodes saw on two nodes and one of them explains.

    Of wrong data in a self-check, that is the one that another check convicts of wrong data.
    """
    convicted = {(blame.kind, node) for check in checks for node, blame in convictions(check)}
    for check in checks:
        for blame in (blame for part in check.parts for blame in part.blame):
            pair = not check.nodes and len(blame.nodes) > 1
            if not (pair and any((blame.kind, node) in convicted for node in blame.nodes)):
                yield check, blame


def last_word(check: CheckRecord, node: str) -> CheckRecord | Repeat:
    """What counts for a node: the last repeat that it took part in, or the check itself.

    A node that a repeat left out keeps the outcome from before that repeat.
    """
    last: CheckRecord | Repeat = check
    for repeat in check.repeats:
        if node not in repeat.nodes:
            break
        last = repeat
    return last


def _missing(checks: Sequence[CheckRecord], planned: Sequence[PlannedCheck]) -> Iterator[NotReported]:
    reported: dict[str, set[str]] = {}
    for check in checks:
        reported.setdefault(check.id, set()).update(check.nodes)
    for entry in planned:
        silent = tuple(node for node in entry.nodes if node not in reported.get(entry.id, set()))
        if silent or entry.id not in reported:
            yield NotReported(entry.id, silent or entry.for_nodes, partly=entry.id in reported)


def head(records: Iterable[Record]) -> RunRecord | None:
    """The run record, if the journal has one."""
    return next((record for record in records if isinstance(record, RunRecord)), None)


def notes(records: Sequence[Record]) -> tuple[str, ...]:
    """What a reader must know first: the notes of the run, and what its nodes' hardware files judge."""
    run, nodes = head(records), [record for record in records if isinstance(record, NodeRecord)]
    files = [f"{node.hardware} judges {said}" for node in nodes if (said := node.facts.get("judges"))]
    return tuple(dict.fromkeys((*(run.notes if run else ()), *files)))


def cut_short(records: Sequence[Record]) -> str:
    """Why the run ended before its plan was done; "" when it did not."""
    if head(records) is None:
        return "the journal has no head, so nothing says what was run"
    if not any(isinstance(record, PlanRecord) for record in records):
        return "it ended before it had a plan"
    return _bad_end(records)


def _bad_end(records: Sequence[Record]) -> str:
    ends = [record for record in records if isinstance(record, EndRecord)]
    if why := next((end.cut_short for end in ends if end.cut_short), ""):
        return why
    if not ends:
        return "it ended without a word, so it was killed or its machine went down"
    if len(ends) > 1 or records[-1] is not ends[0]:
        return "the journal goes on after its end"
    if ends[0].pytest_status not in _COMPLETE:
        return f"pytest ended with status {ends[0].pytest_status}"
    return ""
