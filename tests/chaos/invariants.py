"""What holds after any run, whatever befell it: what is not so is said in a sentence each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports import begin
from reports.audit import cut_short, last_word
from reports.journal import scan
from reports.record import CheckRecord, Outcome, PlanRecord, Record
from reports.render import load_scanned
from tests.fixtures.scenario import red

GREEN = (Outcome.PASS, Outcome.NOT_APPLICABLE)
STATUSES = (0, 1, 2, 4)  # 4: the report directory is of no use, so nothing began


@dataclass(frozen=True)
class Ended:
    """A run that has ended: its report directory, its status (-N for signal N), what it printed.

    `rendered` is the status of `python -m reports render` afterwards, and `verified` what the command that
    verifies a finished run said, "" where all is well.
    """

    report: Path
    status: int
    output: str
    rendered: int
    verified: str = ""

    def listed(self, standing: str) -> list[str]:
        """The nodes of accepted.txt and its like; none where there is no such file."""
        file = self.report / f"{standing}.txt"
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def complaints(run: Ended, everyone: Sequence[str]) -> Iterator[str]:
    """What must not be, wherever the fault was."""
    yield from (f"it printed {word}" for word in ("Traceback", "INTERNALERROR") if word in run.output)
    if run.status >= 0 and run.status not in STATUSES:
        yield f"its status is {run.status}"
    journal, records = run.report / begin.JOURNAL, list[Record]()
    if journal.is_file():
        content = scan(journal)
        yield from (f"{journal.name}: {fault}" for fault in content.faults)
        records = load_scanned(content, journal.name)
    unfinished = cut_short(records)
    junit = run.report / begin.JUNIT
    green = {
        "its exit status": run.status == 0,
        "render's exit status": run.rendered == 0,
        begin.JUNIT: junit.is_file() and not red(junit),
    }
    accepted = run.listed("accepted")
    for name, is_green in green.items():
        if is_green and (unfinished or accepted != list(everyone)):
            yield f"{name} is green, and {unfinished or f'{accepted} are accepted'}"
    if accepted and unfinished:
        yield f"{accepted} are accepted, and {unfinished}"
    for node in accepted:
        yield from (f"{node} is accepted without evidence: {why}" for why in unproved(node, records))
    if run.verified and not unfinished:
        yield f"it does not verify: {run.verified}"


def unproved(node: str, records: Sequence[Record]) -> Iterator[str]:
    """What was planned of a node and was not measured, or not well; read from the journal alone."""
    checks: Mapping[str, CheckRecord] = {one.id: one for one in records if isinstance(one, CheckRecord)}
    planned = [one for record in records if isinstance(record, PlanRecord) for one in record.checks]
    for plan in planned:
        if plan.nodes and node not in plan.nodes:
            continue
        check = checks.get(plan.id)
        if check is None or (plan.nodes and node not in check.nodes):
            yield f"{plan.id} has not reported of it"
            continue
        last = last_word(check, node)
        if last.outcome not in GREEN:
            yield f"{check.name} is {last.outcome.value}"
        elif plan.nodes and last.outcome is Outcome.PASS and not (last.measurement or last.judgements):
            yield f"{check.name} passed and has no measurement"


def of_places(run: Ended, everyone: Sequence[str], faulty: set[str], bad: set[str]) -> Iterator[str]:
    """What must not be where only nodes had faults: `bad` has said itself that it is slow or wrong."""
    for standing in ("rejected", "unproven"):
        if innocent := [name for name in run.listed(standing) if name not in faulty]:
            yield f"{innocent} had no fault, and are {standing}"
    if lost := [name for name in everyone if name not in faulty and name not in run.listed("accepted")]:
        yield f"{lost} had no fault, and are not accepted"
    if wrong := sorted(bad.intersection(run.listed("accepted"))):
        yield f"{wrong} said that they are slow or wrong, and are accepted"


def left(before: set[str]) -> Iterator[str]:
    """What a run has left on the machine, which has nobody else: see `__main__.isolated`."""
    yield from (f"it left the process {words}" for words in processes())
    for folder in (Path("/dev/shm"), Path("/tmp")):
        yield from (f"it left {path}" for path in sorted(folder.iterdir()) if str(path) not in before)
    sockets = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    yield from (f"it left the socket {line.split()[-1]}" for line in sockets if "shakedown" in line)


def processes() -> Iterator[str]:
    """All but this one; what has ended is collected."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = (
                    Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            yield f"{name} {words[:120]}"
