"""From a journal to everything that a run says: the verdict first, the picture book last."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from reports import atomic, junit, lists, verdict_file
from reports.begin import HTML_LOG, JOURNAL, JUNIT, VERDICT
from reports.journal import UNKNOWN_STATUS, scan
from reports.record import EndRecord, Record
from reports.verdict import RunVerdict, decide, exit_status


def render(report_dir: Path) -> int:
    """Write every report from the journal in `report_dir`; returns the exit status of that run.

    What gates nodes is written first. A page that cannot be drawn costs the page, not the verdict.
    """
    records = load(report_dir / JOURNAL)
    verdict = decide(records)
    verdict_file.write(report_dir / VERDICT, records, verdict)
    lists.write(report_dir, verdict)
    junit.write(report_dir / JUNIT, records, verdict)
    _write_html(report_dir, records, verdict)
    return exit_status(records, verdict)


def load(journal: Path) -> list[Record]:
    """The records of a journal, whatever state it is in; damage ends the run as cut short."""
    try:
        found = scan(journal, measurements=False)
    except OSError as fault:
        return [_damaged(f"{journal.name} cannot be read: {fault.strerror or fault}")]
    if found.faults:
        return [*found.records, _damaged(f"{journal.name} is damaged: {'; '.join(found.faults[:5])}")]
    return found.records


def _damaged(why: str) -> EndRecord:
    return EndRecord(ended="", seconds=0.0, pytest_status=UNKNOWN_STATUS, cut_short=why)


def _write_html(report_dir: Path, records: Sequence[Record], verdict: RunVerdict) -> None:
    log = report_dir / HTML_LOG
    try:
        # Imported here because a broken matplotlib must not cost the verdict either.
        from reports.page import html  # noqa: PLC0415

        html.write(report_dir, records, verdict)
        log.unlink(missing_ok=True)
    except Exception as fault:  # noqa: BLE001 - whatever it is, it is written down and said
        atomic.write_text(log, traceback.format_exc())
        print(f"report.html could not be drawn ({fault!r}); see {log}", file=sys.stderr)
