"""Writes all reports of a run from its journal: the verdict first, the HTML page last."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from reports import answer, junit, verdict_file
from reports.audit import head
from reports.begin import CASES, HTML_LOG, JOURNAL, JUNIT, VERDICT, withdraw
from reports.decision import RunVerdict, decide
from reports.journal import UNKNOWN_STATUS, Scan, add_repeats, cut_off, of_workers, parts, scan
from reports.record import AgainRecord, CheckRecord, EndRecord, Record
from reports.text import write_file


def rendered(report_dir: Path, cases: str = CASES[0]) -> tuple[list[Record], RunVerdict]:
    """Write every report from the journal in `report_dir`; returns its records, and the verdict on them.

    `cases` is one of CASES. The files that gate nodes are written first. A page that cannot be drawn does not
    affect the verdict. What is not written whole is withdrawn.
    """
    gc.disable()  # it would scan a million records again and again, and there are no cycles here
    try:
        records, last = _read(report_dir / JOURNAL)
        verdict = decide(records)
        verdict_file.write(report_dir / VERDICT, records, verdict, last)
        answer.write_lists(report_dir, verdict)
        junit.write(report_dir / JUNIT, records, verdict, cases)
        _write_html(report_dir, records, verdict)
    except BaseException:
        withdraw(report_dir)
        raise
    finally:
        gc.enable()
    return records, verdict


def load(journal: Path) -> list[Record]:
    """The records of a journal in any state. A damaged journal counts as a run that was cut short."""
    return _read(journal)[0]


def _read(journal: Path) -> tuple[list[Record], str]:
    """The records, and the sha256 of the last line."""
    try:
        content = scan(journal, measurements=False)
    except OSError as fault:
        return [cut_off(f"{journal.name} cannot be read: {fault.strerror or fault}")], ""
    return with_workers(load_scanned(content, journal.name), journal.parent), content.last


def with_workers(records: list[Record], directory: Path, measurements: bool = False) -> list[Record]:
    """Add the workers' records that the run has not taken over yet: it still goes on, or was killed."""
    run, ends = head(records), [record for record in records if isinstance(record, EndRecord)]
    if run is None or any(end.pytest_status != UNKNOWN_STATUS for end in ends):
        return records
    known = {record.id for record in records if isinstance(record, CheckRecord)}
    both = [record for record in records if record not in ends]
    workers = (of_workers(path, measurements) for path in parts(directory, run.run_id))
    for record in chain.from_iterable(workers):
        if isinstance(record, AgainRecord):
            if record.check not in known:
                add_repeats(both, record)
        elif not isinstance(record, CheckRecord) or record.id not in known:
            both.append(record)
    return [*both, *ends]


def load_scanned(content: Scan, name: str) -> list[Record]:
    """The records of a journal that was read."""
    if content.faults:
        return [*content.records, cut_off(f"{name} is damaged: {'; '.join(content.faults[:5])}")]
    return content.records


def _write_html(report_dir: Path, records: Sequence[Record], verdict: RunVerdict) -> None:
    log = report_dir / HTML_LOG
    try:
        # Imported here because a broken matplotlib must not cost the verdict.
        from reports.page import html  # noqa: PLC0415

        html.write(report_dir, records, verdict)
        log.unlink(missing_ok=True)
    except Exception as fault:  # noqa: BLE001 - any fault is logged and printed
        with contextlib.suppress(OSError):  # where there is no room for the page there may be none for this
            write_file(log, traceback.format_exc())
        print(f"report.html could not be drawn ({fault!r}); see {log}", file=sys.stderr)  # noqa: T201 - why there is no page
