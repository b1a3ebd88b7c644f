"""`verdict.json`: the answer for machines, in a versioned schema."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from reports.audit import head, notes
from reports.decision import RunVerdict, exit_status
from reports.record import ORIGIN, CheckRecord, EndRecord, JobRecord, NodeRecord, Outcome, Record
from reports.text import scrub, write_file

SCHEMA_VERSION = 1


def write(path: Path, records: Sequence[Record], verdict: RunVerdict, last: str = "") -> None:
    """Write the verdict to `path`, whole or not at all."""
    write_file(path, text(records, verdict, last))


def text(records: Sequence[Record], verdict: RunVerdict, last: str = "") -> str:
    """What the file holds; `last` is the sha256 of the journal's last line."""
    data = {
        "schema": SCHEMA_VERSION,
        "exit_status": exit_status(records, verdict),
        "run": _run(records, verdict),
        "workload": verdict.workload,
        "hardware": verdict.hardware,
        "nodes": [
            {
                "node": node.node,
                "verdict": node.standing,
                "reason": node.reason,
                "checks": node.checks,
                "hosts_line": node.host_line,
            }
            for node in verdict.nodes
        ],
        "counts": {
            "nodes": verdict.counts,
            "checks": check_counts(verdict),
        },
        "blame": [{"check": one.check, **dataclasses.asdict(one.blame)} for one in verdict.blame],
        "not_reported": [dataclasses.asdict(entry) for entry in verdict.not_reported],
        "faults": [dataclasses.asdict(fault) for fault in verdict.faults],
        "waits": waits(records),
        "time": time_of(records),
        "made_of": _made_of(records, verdict, last),
    }
    return json.dumps(scrub(data), indent=2, allow_nan=False) + "\n"


def _made_of(records: Sequence[Record], verdict: RunVerdict, last: str) -> dict[str, object]:
    """What this verdict rests on: sha256 of the files, and the seed of all random choices."""
    run = head(records)
    nodes = [record for record in records if isinstance(record, NodeRecord) and record.hardware]
    return {
        "journal": last,
        **(run.inputs if run else {}),
        "hardware_files": {node.hardware: node.facts.get("hardware_file", {}) for node in nodes},
        "seed": verdict.run_id,
    }


def check_counts(verdict: RunVerdict) -> dict[str, int]:
    """How many checks were planned, how many ended in each outcome, and how many never reported.

    The outcomes and "not reported" add up to "planned". A check that reported for only some of its nodes is
    counted again under "without a node".
    """
    counts = {outcome.value: verdict.outcomes.get(outcome, 0) for outcome in Outcome}
    partly = sum(entry.partly for entry in verdict.not_reported)
    silent = len(verdict.not_reported) - partly
    return {"planned": verdict.planned or 0, **counts, "not reported": silent, "without a node": partly}


def waits(records: Sequence[Record]) -> list[dict[str, object]]:
    """What the run spent time on besides measuring: starting each job."""
    jobs = {record.id: record for record in records if isinstance(record, JobRecord)}
    return [
        {"for": f"the start of job {job.id}", "nodes": job.nodes, "seconds": job.start_seconds}
        for job in jobs.values()
        if job.start_seconds is not None
    ]


def _searched_s(check: CheckRecord) -> float:
    search = check.recorded.get("search")
    seconds = search.get("seconds") if isinstance(search, Mapping) else None
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def time_of(records: Sequence[Record]) -> dict[str, float]:
    """Where the seconds of the run went; with groups in parallel the parts add up to more than the whole."""
    checks = [record for record in records if isinstance(record, CheckRecord)]
    checks = [check for check in checks if ORIGIN not in check.properties]  # that was time of another run
    searching = sum(_searched_s(check) for check in checks)
    again = float(sum(repeat.seconds for check in checks for repeat in check.repeats))
    jobs = {record.id: record for record in records if isinstance(record, JobRecord)}
    starting = float(sum(job.start_seconds or 0.0 for job in jobs.values()))
    measuring = max(0.0, sum(check.seconds for check in checks) - searching - again)
    whole = next((record.seconds for record in records if isinstance(record, EndRecord)), 0.0)
    rest = max(0.0, whole - measuring - starting - searching - again)
    parts = {
        "measuring": measuring,
        "starting jobs": starting,
        "searching": searching,
        "measuring again": again,
        "connecting and the rest": rest,
    }
    return {name: round(seconds, 3) for name, seconds in parts.items()}


def spent(records: Sequence[Record]) -> list[str]:
    """Name where the time of the run went, without parts of less than a second."""
    return [f"{name} {seconds:.0f} s" for name, seconds in time_of(records).items() if seconds >= 1]


def _run(records: Sequence[Record], verdict: RunVerdict) -> dict[str, object]:
    run = head(records)
    end = next((record for record in records if isinstance(record, EndRecord)), None)
    checks = [record for record in records if isinstance(record, CheckRecord)]
    return {
        "id": verdict.run_id,
        "started": run.started if run else "",
        "ended": end.ended if end else "",
        "seconds": end.seconds if end else None,
        "controller": run.controller if run else "",
        "command": run.command if run else (),
        "partial": bool(verdict.selection),
        "selection": verdict.selection,
        "cut_short": verdict.cut_short,
        "refusals": verdict.refusals,
        "notes": notes(records),
        # how many checks were not measured in this run, by the run that did
        "taken_over": Counter(one.properties[ORIGIN] for one in checks if ORIGIN in one.properties),
        "versions": run.versions if run else {},
    }
