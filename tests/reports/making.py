"""Small journals made by hand: a green run on two nodes, and what can be changed about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from reports.decision import NodeVerdict, Standing, decide, exit_status
from reports.journal import Journal
from reports.page import html
from reports.record import (
    Blame,
    BlameKind,
    CheckRecord,
    EndRecord,
    JobRecord,
    Judgement,
    NodeRecord,
    Outcome,
    PlannedCheck,
    PlanRecord,
    Record,
    RunRecord,
)
from reports.render import rendered

NODES = ("gpu01", "gpu02")
PAIR = "suites/collectives/test_bandwidth.py::test_busbw[all_reduce-network]"
GREEN = Judgement(
    "busbw", Outcome.PASS, "361.2 GB/s, asked at least 340", 361.2, "GB/s", ">= 340 GB/s", 340.0, "a paper"
)

ALL_ACCEPTED = {"gpu01": "accepted", "gpu02": "accepted"}


def run(nodes: Iterable[str] = NODES, **changes: object) -> RunRecord:
    record = RunRecord(
        run_id="r1",
        started="2026-11-20T14:12:03+00:00",
        controller="ctl",
        command=("pytest", "suites/"),
        workload="dense",
        hardware="h100",
        hosts={node: f"{node} slots=8" for node in nodes},
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def alone(node: str) -> str:
    return f"suites/nodes/test_inventory.py::test_gpus[{node}]"


def check(
    check_id: str, nodes: Iterable[str] = NODES, outcome: Outcome = Outcome.PASS, **changes: object
) -> CheckRecord:
    record = CheckRecord(
        id=check_id,
        suite=check_id.split(".py::", maxsplit=1)[0].replace("/", "."),
        name=check_id.rsplit("::", maxsplit=1)[-1],
        nodes=tuple(nodes),
        outcome=outcome,
        reason="" if outcome is Outcome.PASS else f"because of {outcome.value}",
        judgements=(GREEN,) if outcome is Outcome.PASS else (),
        seconds=0.25,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


SELF = check("suites/selfcheck/test_selfcheck.py::test_what_is_healthy_passes[apart]", [])


def plan(*checks: CheckRecord) -> PlanRecord:
    return PlanRecord(tuple(PlannedCheck(check.id, check.nodes) for check in checks))


def ready(*nodes: str) -> list[NodeRecord]:
    return [NodeRecord(node, "ready", hardware="h100", facts={"driver": "570"}) for node in nodes or NODES]


def end(**changes: object) -> EndRecord:
    return replace(EndRecord("2026-11-20T14:20:00+00:00", 477.0, 0), **changes)  # type: ignore[arg-type]


def green_checks() -> list[CheckRecord]:
    return [*(check(alone(node), [node]) for node in NODES), check(PAIR)]


def journal_of(
    *checks: CheckRecord, head: RunRecord | None = None, status: int | None = None
) -> list[Record]:
    """A complete run of these checks after its self-check, in which pytest says what it would say."""
    checks = checks if any("/selfcheck/" in one.id for one in checks) else (SELF, *checks)
    red = any(one.outcome in (Outcome.FAIL, Outcome.UNCHECKED) for one in checks)
    job = JobRecord("job-1", NODES, {"NCCL_DEBUG": "INFO"}, start_seconds=4.5)
    last = end(pytest_status=int(red) if status is None else status)
    return [head or run(), plan(*checks), *ready(), job, *checks, last]


def green() -> list[Record]:
    return journal_of(*green_checks())


def blame(kind: BlameKind, *nodes: str) -> Blame:
    return Blame(kind, nodes, f"the {kind.value} of {' and '.join(nodes)} is to blame")


def save(records: Iterable[Record], directory: Path) -> Path:
    path = directory / "results.jsonl"
    with Journal(path) as journal:
        for record in records:
            journal.write(record)
    return path


def render(directory: Path) -> int:
    """Write every report; gives the exit status of that run."""
    return exit_status(*rendered(directory))


def page(records: Sequence[Record], directory: Path) -> str:
    """The first page of a run."""
    html.write(directory, records, decide(records))
    return (directory / "report.html").read_text()


def every_page(directory: Path) -> str:
    """The first page and those of the families, as one text."""
    return "".join(path.read_text() for path in sorted(directory.glob("*.html"), reverse=True))


def hosts(text: str) -> list[str]:
    """The lines of a list that are no comments."""
    return [line for line in text.splitlines() if not line.startswith("#")]


def node(records: Iterable[Record], name: str) -> NodeVerdict:
    return next(verdict for verdict in decide(list(records)).nodes if verdict.node == name)


def standings(records: Iterable[Record]) -> dict[str, str]:
    return {verdict.node: verdict.standing.value for verdict in decide(list(records)).nodes}


def letters(records: Iterable[Record]) -> str:
    """The standings by their initials: "aru"."""
    return "".join(verdict.standing.value[0] for verdict in decide(list(records)).nodes)


def told(records: Iterable[Record]) -> str:
    """All that a verdict says: of every node, of the run, and of reports that cannot be believed."""
    verdict = decide(list(records))
    nodes = [f"{one.node}: {one.reason}\n" for one in verdict.nodes]
    return "\n".join([*nodes, *verdict.refusals, *(fault.sentence for fault in verdict.faults)])


def nobody_accepted(records: Iterable[Record]) -> bool:
    return not decide(list(records)).standing(Standing.ACCEPTED)


def status(records: list[Record]) -> int:
    return exit_status(records, decide(records))


def with_pair(outcome: Outcome, *blamed: Blame) -> list[Record]:
    return journal_of(*green_checks()[:2], check(PAIR, outcome=outcome, blame=blamed))


def rejected() -> list[Record]:
    """A run in which `gpu02` is rejected for wrong data."""
    corrupt = check(PAIR, outcome=Outcome.FAIL, blame=(blame(BlameKind.WRONG_DATA, "gpu02"),))
    return journal_of(*green_checks()[:2], corrupt)
