"""`junit.xml` in the dialect that Jenkins' JUnit plugin reads: a case per check, per node, and for the run.

Jenkins shows the first line of `message`, keeps history by classname and name, counts the cases itself and
reads only the first failure or error of a case. https://github.com/jenkinsci/junit-plugin
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports import atomic, junit_text
from reports.begin import RUN_CLASS, RUN_NAME
from reports.clean import clean, first_line, redact
from reports.evidence import head
from reports.record import CheckRecord, EndRecord, Outcome, Record
from reports.verdict import NodeVerdict, RunVerdict, Standing

NODE_CLASS = "shakedown.nodes"
_ELEMENTS = {Outcome.FAIL: "failure", Outcome.UNCHECKED: "error", Outcome.NOT_APPLICABLE: "skipped"}


@dataclass(frozen=True)
class Case:
    """One `<testcase>`. `element` is "", `failure`, `error` or `skipped`; `message` is one line."""

    classname: str
    name: str
    element: str = ""
    kind: str = ""
    message: str = ""
    body: str = ""
    output: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0


def write(path: Path, records: Sequence[Record], verdict: RunVerdict, report_dir: Path | None = None) -> None:
    """Write the report to `path`; attachments are looked for in `report_dir` (default: beside `path`)."""
    cases = _cases(records, verdict, (report_dir or path.parent).absolute())
    run = head(records)
    ends = [record.seconds for record in records if isinstance(record, EndRecord)]
    properties = tuple(junit_text.suite_properties(run, verdict))
    seconds = ends[0] if ends else sum(case.seconds for case in cases)
    _save(path, cases, properties, run.started if run else "", seconds)


def _cases(records: Sequence[Record], verdict: RunVerdict, report_dir: Path) -> list[Case]:
    checks = [record for record in records if isinstance(record, CheckRecord)]
    return [
        _run_case(verdict),
        *(_node_case(node, verdict) for node in verdict.nodes),
        *_check_cases(checks, report_dir),
        *_unreported_cases(verdict),
    ]


def _run_case(verdict: RunVerdict) -> Case:
    """Whether the run as a whole can be believed; always there, so that it has a history."""
    wrong = [*verdict.refusals, *(fault.sentence for fault in verdict.faults)]
    if not verdict.nodes:
        wrong.append("the run knows of no node")
    if not wrong:
        return Case(RUN_CLASS, RUN_NAME)
    kind = "cut short" if verdict.cut_short else "partial" if verdict.selection else "not an acceptance"
    return Case(RUN_CLASS, RUN_NAME, "error", kind, wrong[0], "\n".join(wrong))


def _node_case(node: NodeVerdict, verdict: RunVerdict) -> Case:
    element = {Standing.ACCEPTED: "", Standing.REJECTED: "failure", Standing.UNPROVEN: "error"}[node.standing]
    message = f"{node.node} is {node.standing.value}: {node.reason}"
    body = "\n".join([message, "", "decided by:", *node.checks]) if node.checks else message
    properties = (
        ("verdict", node.standing.value),
        ("reason", node.reason),
        ("workload", verdict.workload),
        ("hardware", verdict.hardware),
        ("hosts", node.host_line),
    )
    output = "" if element else message
    return Case(NODE_CLASS, node.node, element, node.standing.value, message, body, output, properties)


def _check_cases(checks: Sequence[CheckRecord], report_dir: Path) -> Iterator[Case]:
    for check in checks:
        yield Case(
            classname=check.suite,
            name=check.name,
            element=_ELEMENTS.get(check.outcome, ""),
            kind=junit_text.kind(check),
            message=check.reason or f"{check.name} is {check.outcome.value} and gave no reason",
            body=junit_text.body(check),
            output=junit_text.output(check, report_dir),
            properties=tuple(junit_text.check_properties(check)),
            seconds=check.seconds,
        )


def _unreported_cases(verdict: RunVerdict) -> Iterator[Case]:
    """An error for each check that said nothing at all; one that left out a node is in that node's case."""
    for entry in verdict.not_reported:
        if not entry.partly:
            classname, name = junit_text.split_id(entry.check)
            who = ", ".join(entry.nodes) or "the run"
            why = f": {verdict.cut_short}" if verdict.cut_short else ""
            message = f"{name} was planned for {who} and never reported{why}"
            yield Case(classname, name, "error", "not reported", message, message)


def _save(
    path: Path, cases: Sequence[Case], properties: Sequence[tuple[str, str]], started: str, seconds: float
) -> None:
    counters = {
        "tests": str(len(cases)),
        "failures": str(sum(case.element == "failure" for case in cases)),
        "errors": str(sum(case.element == "error" for case in cases)),
        "skipped": str(sum(case.element == "skipped" for case in cases)),
        "time": _decimal(seconds),
    }
    root = ET.Element("testsuites", {"name": "shakedown", **counters})
    suite = ET.SubElement(root, "testsuite", {"name": "shakedown", **counters})
    if started:
        suite.set("timestamp", _text(started))
    _append_properties(suite, properties)
    for case in cases:
        _append_case(suite, case)
    ET.indent(root)
    xml = ET.tostring(root, encoding="unicode")
    atomic.write_text(path, f'<?xml version="1.0" encoding="utf-8"?>\n{xml}\n')


def _append_case(suite: ET.Element, case: Case) -> None:
    names = {"classname": _text(case.classname), "name": _text(case.name)}
    element = ET.SubElement(suite, "testcase", {**names, "time": _decimal(case.seconds)})
    _append_properties(element, case.properties)
    if case.element:
        message = {"message": _text(first_line(case.message, 1000)), "type": _text(case.kind)}
        ET.SubElement(element, case.element, message).text = _text(case.body)
    if case.output:
        ET.SubElement(element, "system-out").text = _text(case.output)


def _append_properties(parent: ET.Element, properties: Sequence[tuple[str, str]]) -> None:
    if properties:
        block = ET.SubElement(parent, "properties")
        for name, value in properties:
            ET.SubElement(block, "property", {"name": _text(name), "value": _text(value)})


def _text(text: str) -> str:
    return redact(clean(text))


def _decimal(seconds: float) -> str:
    """Plain decimal, because Jenkins reads `1e-05` as zero or worse."""
    return f"{max(seconds, 0.0):.3f}" if math.isfinite(seconds) else "0.000"
