"""What speaks against accepting a node: one objection per reason, the most serious first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from reports.audit import Audit, blamed, convictions, cut_short, head, last_word, spoken_for
from reports.record import (
    READY,
    BlameKind,
    CheckRecord,
    EndRecord,
    NodeRecord,
    Outcome,
    PlannedCheck,
    PlanRecord,
    Record,
)

SELF_CHECK = "suites/selfcheck/"  # how the ids of its checks begin


class Weight(IntEnum):
    """How serious an objection is. The first two reject a node, the others leave it unproven."""

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
class Objection:
    """One reason why a node is not accepted. `check` is the id of the check behind it, "" for the run."""

    node: str
    weight: Weight
    sentence: str
    check: str = ""


def collect(records: Sequence[Record], audit: Audit, everyone: Sequence[str]) -> list[Objection]:
    """Everything in the records that speaks against any of the nodes.

    A run that failed its self-check convicts nobody: its blame may be as wrong as its passes. Where each
    group of nodes has its own self-check, this holds for that group.
    """
    checks = [record for record in records if isinstance(record, CheckRecord)]
    untrusted = _untrusted(records, audit, everyone)
    whose = spoken_for(_planned(records))
    return [
        *(one for check in checks for one in _convicted(check) if one.node not in untrusted),
        *_not_ready(records, everyone),
        *(Objection(node, Weight.UNTRUSTED, why) for node, why in untrusted.items()),
        *(one for check in audit.sound for one in _not_passed(check, whose.get(check.id) or everyone)),
        *_blamed_without_nodes(audit.sound),
        *_on_bad_paths(audit.sound),
        *(
            Objection(node, Weight.FAULT, fault.sentence, fault.check)
            for fault in audit.faults
            for node in fault.nodes or everyone
        ),
        *(
            Objection(node, Weight.NOT_REPORTED, f"not reported: {entry.check}", entry.check)
            for entry in audit.not_reported
            for node in entry.nodes or everyone
        ),
        *(Objection(node, Weight.RUN, why) for why in refusals(records, audit) for node in everyone),
    ]


def _convicted(check: CheckRecord) -> Iterator[Objection]:
    for node, blame in convictions(check):
        weight = Weight.CORRUPTION if blame.kind is BlameKind.WRONG_DATA else Weight.CONVICTED
        yield Objection(node, weight, f"{check.name}: {blame.sentence or check.reason}", check.id)
    if check.failed_alone:
        yield Objection(check.nodes[0], Weight.CONVICTED, f"{check.name}: {check.reason}", check.id)


def _not_passed(check: CheckRecord, everyone: Sequence[str]) -> Iterator[Objection]:
    """A failed or unchecked check proves nothing about those of its nodes that it does not convict."""
    for node in check.nodes or everyone:
        last = last_word(check, node)
        if last.outcome in (Outcome.FAIL, Outcome.UNCHECKED):
            weight = Weight.FAILED if last.outcome is Outcome.FAIL else Weight.UNCHECKED
            yield Objection(node, weight, f"{check.name}: {last.reason}", check.id)


def _blamed_without_nodes(checks: Sequence[CheckRecord]) -> Iterator[Objection]:
    """A check without nodes (such as a self-check) may blame a node on which something went wrong.

    The check goes on elsewhere, and the fault may not come back, so the node is unproven and not rejected.
    """
    for check, blame in blamed(checks):
        for node in () if check.nodes else blame.nodes:
            yield Objection(node, Weight.UNCHECKED, f"{check.name}: {blame.sentence}", check.id)


def _on_bad_paths(checks: Sequence[CheckRecord]) -> Iterator[Objection]:
    """A bad path leaves both of its ends unproven, whatever else they pass, unless one end is convicted.

    So are all nodes behind a bad part of the fabric, which none of them explains.
    """
    convicted = {node for check in checks for node, _ in convictions(check)}
    for check in checks:
        for blame in (blame for part in check.parts for blame in part.blame if blame.of_a_path):
            explained = blame.kind is not BlameKind.FABRIC and convicted & set(blame.nodes)
            for node in () if explained else blame.nodes:
                yield Objection(node, Weight.FAILED, f"{check.name}: {blame.sentence}", check.id)


def _not_ready(records: Sequence[Record], everyone: Sequence[str]) -> Iterator[Objection]:
    nodes = [record for record in records if isinstance(record, NodeRecord)]
    for node in nodes:
        if node.state != READY:
            yield Objection(node.name, Weight.NOT_READY, f"{node.state}: {node.reason}".rstrip(": "))
    known = {node.name for node in nodes}
    for name in everyone:
        if name not in known:
            yield Objection(name, Weight.NOT_READY, "nothing was ever heard of this node")


def refusals(records: Sequence[Record], audit: Audit) -> Iterator[str]:
    """Why this run can accept nobody, one sentence each; nothing when it can."""
    if why := cut_short(records):
        yield f"the run was cut short ({why})"
    if untrusted := _self_checks(records, audit).get(()):
        yield untrusted
    run = head(records)
    if run and run.selection:
        yield f"a selection accepts nobody ({run.selection})"
    if run and run.hardware in ("", "none"):
        yield "no hardware file was used, so measurements were recorded and not judged"
    if audit.planned == 0:
        yield "nothing was planned"
    if _unexplained_failure(records, audit):
        yield "pytest says that something failed, and no check says what"


def pytest_failed(records: Sequence[Record]) -> bool:
    """Whether pytest itself says that something failed."""
    return any(isinstance(record, EndRecord) and record.pytest_status == 1 for record in records)


def _unexplained_failure(records: Sequence[Record], audit: Audit) -> bool:
    outcomes = {record.outcome for record in records if isinstance(record, CheckRecord)}
    explained = outcomes & {Outcome.FAIL, Outcome.UNCHECKED} or audit.faults or audit.not_reported
    return pytest_failed(records) and not explained


def _untrusted(records: Sequence[Record], audit: Audit, everyone: Sequence[str]) -> dict[str, str]:
    """The nodes whose verdicts cannot be trusted: their self-check failed, or none was planned for them."""
    said = _self_checks(records, audit)
    own = {node: why for nodes, why in said.items() for node in nodes}
    whys = {node: own.get(node, said.get((), _distrust("it was not planned"))) for node in everyone if said}
    return {node: why for node, why in whys.items() if why}


def _self_checks(records: Sequence[Record], audit: Audit) -> dict[tuple[str, ...], str]:
    """Why each self-check says that no verdict can be trusted, by the nodes for which it speaks.

    A run that planned nothing judges nobody, so there is nothing to distrust.
    """
    planned = _planned(records)
    own: dict[tuple[str, ...], list[str]] = {}
    for check in planned:
        if check.id.startswith(SELF_CHECK):
            own.setdefault(check.for_nodes, []).append(check.id)
    if planned and not own:
        return {(): _distrust("it was not planned")}
    return {nodes: _distrust(next(_self_check_faults(names, audit), "")) for nodes, names in own.items()}


def _distrust(why: str) -> str:
    return f"the self-check did not pass: {why}; no verdict of this run can be trusted" if why else ""


def _planned(records: Sequence[Record]) -> list[PlannedCheck]:
    return [check for record in records if isinstance(record, PlanRecord) for check in record.checks]


def _self_check_faults(planned: Sequence[str], audit: Audit) -> Iterator[str]:
    reported = {check.id: check for check in audit.sound}
    for name in planned:
        check = reported.get(name)
        if check is None:
            yield f"{name.rpartition('::')[2]} has not reported"
        elif check.outcome is not Outcome.PASS:
            yield f"{check.name}: {check.reason}"
