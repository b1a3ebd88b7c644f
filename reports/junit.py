"""`junit.xml` as Jenkins' JUnit plugin reads it: one case for the run, one per node and one per check.

Jenkins shows the first line of `message`, keeps history by classname and name, counts the cases itself, and
reads only the first failure or error of a case. https://github.com/jenkinsci/junit-plugin
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from reports import junit_text
from reports.audit import head
from reports.begin import RUN_CLASS, RUN_NAME
from reports.decision import NodeVerdict, RunVerdict, Standing
from reports.record import CheckRecord, EndRecord, Outcome, Record
from reports.text import clean, first_line, redact, write_file

if TYPE_CHECKING:
    from junitparser import JUnitXml
    from junitparser.xunit2 import TestCase

_HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'
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
    """Write the report to `path`. Attachments lie in `report_dir` (default: beside `path`)."""
    cases = _cases(records, verdict, (report_dir or path.parent).absolute())
    run = head(records)
    ends = [record.seconds for record in records if isinstance(record, EndRecord)]
    report = _report(cases, junit_text.suite_properties(run, verdict))
    [suite] = report
    if run and run.started:
        suite.timestamp = _text(run.started)
    if ends:
        report.time = suite.time = _milliseconds(ends[0])
    report.write(buffer := BytesIO())
    root = ET.fromstring(buffer.getvalue())  # noqa: S314 - written a line above
    ET.indent(root)
    write_file(path, f"{_HEAD}{ET.tostring(root, encoding='unicode')}\n")


def _cases(records: Sequence[Record], verdict: RunVerdict, report_dir: Path) -> list[Case]:
    checks = [record for record in records if isinstance(record, CheckRecord)]
    return [
        _run_case(verdict),
        *(_node_case(node, verdict) for node in verdict.nodes),
        *_check_cases(checks, report_dir),
        *_unreported_cases(verdict),
    ]


def _run_case(verdict: RunVerdict) -> Case:
    """Whether the run as a whole can be believed. The case is always there, so that it has a history."""
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
    """An error for each check that never reported. Where it left out only some nodes, their cases say so."""
    for entry in verdict.not_reported:
        if not entry.partly:
            classname, name = junit_text.split_id(entry.check)
            who = ", ".join(entry.nodes) or "the run"
            why = f": {verdict.cut_short}" if verdict.cut_short else ""
            message = f"{name} was planned for {who} and never reported{why}"
            yield Case(classname, name, "error", "not reported", message, message)


def _report(cases: Sequence[Case], properties: Iterable[tuple[str, str]]) -> JUnitXml:
    # Imported here because a red file must be possible where there is nothing but the standard library.
    from junitparser import JUnitXml, TestSuite  # noqa: PLC0415

    suite = TestSuite("shakedown")
    for name, value in properties:
        suite.add_property(_text(name), _text(value))
    suite.add_testcases([_element(case) for case in cases])
    report = JUnitXml("shakedown")
    report.add_testsuite(suite)
    report.update_statistics()  # type: ignore[no-untyped-call]
    return report


def _element(case: Case) -> TestCase:
    from junitparser import Error, Failure, Skipped  # noqa: PLC0415
    from junitparser.xunit2 import TestCase  # noqa: PLC0415

    element = TestCase(_text(case.name), _text(case.classname), _milliseconds(case.seconds))
    for name, value in case.properties:
        element.add_property(_text(name), _text(value))
    if case.element:
        kinds = {"failure": Failure, "error": Error, "skipped": Skipped}
        result = kinds[case.element](_text(first_line(case.message, 1000)), _text(case.kind))
        result.text = _text(case.body)
        element.result = result
    if case.output:
        element.system_out = _text(case.output)
    return element


def _save(path: Path, cases: Sequence[Case], *_: object) -> None:
    """Write one red case with the standard library alone."""
    [case] = cases
    counters = 'tests="1" failures="0" errors="1" skipped="0" time="0.000"'
    message, body = quoteattr(_text(case.message)), escape(_text(case.body))
    write_file(
        path,
        f'{_HEAD}<testsuites name="shakedown" {counters}>\n'
        f'  <testsuite name="shakedown" {counters}>\n'
        f'    <testcase classname="{case.classname}" name="{case.name}" time="0.000">\n'
        f'      <error message={message} type="{case.kind}">{body}</error>\n'
        "    </testcase>\n  </testsuite>\n</testsuites>\n",
    )


def _text(text: str) -> str:
    return redact(clean(text))


def _milliseconds(seconds: float) -> float:
    """Whole milliseconds in seconds, because Jenkins reads `1e-05` as zero or worse."""
    return round(max(seconds, 0.0), 3) if math.isfinite(seconds) else 0.0
