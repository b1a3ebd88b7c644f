"""`junit.xml` as Jenkins' JUnit plugin reads it: one case for the run, one per node and one per check.

Jenkins shows the first line of `message`, keeps history by classname and name, counts the cases itself, and
reads only the first failure or error of a case. https://github.com/jenkinsci/junit-plugin
The file keeps to junit-10.xsd of Jenkins' xunit plugin but for the properties of cases, which that lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite, xunit2

from reports import junit_text
from reports.audit import head, notes
from reports.begin import CASES, RUN_CLASS, RUN_NAME
from reports.decision import NodeVerdict, RunVerdict, Standing
from reports.junit_text import Usual
from reports.record import CheckRecord, EndRecord, Outcome, Record
from reports.text import first_few, first_line, shown, write_file

NODE_CLASS = "shakedown.nodes"
_ELEMENTS = {Outcome.FAIL: "failure", Outcome.UNCHECKED: "error", Outcome.NOT_APPLICABLE: "skipped"}


def write(path: Path, records: Sequence[Record], verdict: RunVerdict, cases: str = CASES[0]) -> None:
    """Write the report to `path`; `cases` is one of CASES."""
    usual = Usual()
    told = [_run_case(verdict), *(_node_case(node, verdict) for node in verdict.nodes)]
    if cases == CASES[0]:
        checks = [record for record in records if isinstance(record, CheckRecord)]
        told += [*_check_cases(checks, usual), *_unreported_cases(verdict)]
    run = head(records)
    suite = TestSuite("shakedown")
    for name, value in (*junit_text.suite_properties(run, verdict, notes(records)), *usual.properties()):
        if value:
            suite.add_property(shown(name), shown(value))
    suite.add_testcases(told)
    if run and run.started:
        suite.timestamp = shown(run.started)
    if ends := [record.seconds for record in records if isinstance(record, EndRecord)]:
        suite.time = _milliseconds(ends[0])
    report = JUnitXml("shakedown")
    report.add_testsuite(suite)
    report.tests, report.failures, report.errors = suite.tests, suite.failures, suite.errors
    report.time = suite.time
    report.write(buffer := BytesIO())
    # A line for each case; a "<" or ">" in a text is written as "&lt;" or "&gt;".
    text = buffer.getvalue().decode().replace("<testcase ", "\n<testcase ")
    write_file(path, text.replace('" />', '"/>'))


def _run_case(verdict: RunVerdict) -> TestCase:
    """Whether the run as a whole can be believed. The case is always there, so that it has a history."""
    wrong = [*verdict.refusals, *(fault.sentence for fault in verdict.faults)]
    if not verdict.nodes:
        wrong.append("the run knows of no node")
    if not wrong:
        return _case(RUN_CLASS, RUN_NAME)
    kind = "cut short" if verdict.cut_short else "partial" if verdict.selection else "not an acceptance"
    return _case(RUN_CLASS, RUN_NAME, "error", kind, wrong[0], body="\n".join(wrong))


_OF_NODES = {
    Standing.ACCEPTED: "",
    Standing.REJECTED: "failure",
    Standing.UNPROVEN: "error",
    Standing.BESIDE: "skipped",
}


def _node_case(node: NodeVerdict, verdict: RunVerdict) -> TestCase:
    element = _OF_NODES[node.standing]
    if node.standing is Standing.BESIDE and any(node.node in one.blame.nodes for one in verdict.blame):
        element = "error"  # the run ends with 2 for it
    message = f"{node.node} is {node.standing.value}: {node.reason}"
    body = "\n".join([message, "", "decided by:", *node.checks]) if node.checks else message
    properties = (
        ("verdict", node.standing.value),
        ("reason", node.reason),
        ("workload", verdict.workload),
        ("hardware", verdict.hardware),
        ("hosts", node.host_line),
    )
    return _case(
        classname=NODE_CLASS,
        name=node.node,
        element=element,
        kind=node.standing.value,
        message=message,
        body=body,
        output="" if element else message,
        properties=properties,
    )


def _check_cases(checks: Sequence[CheckRecord], usual: Usual) -> Iterator[TestCase]:
    for check in checks:
        yield _case(
            classname=check.suite,
            name=check.name,
            element=_ELEMENTS.get(check.outcome, ""),
            kind=check.blame[0].kind.value if check.blame else check.outcome.value,
            message=check.reason or f"{check.name} is {check.outcome.value} and gave no reason",
            body=junit_text.body(check),
            output=junit_text.output(check),
            properties=junit_text.check_properties(check, usual),
            seconds=check.seconds,
        )


def _unreported_cases(verdict: RunVerdict) -> Iterator[TestCase]:
    """An error for each check that never reported. Where it left out only some nodes, their cases say so."""
    for entry in verdict.not_reported:
        if not entry.partly:
            classname, name = junit_text.split_id(entry.check)
            who = first_few(entry.nodes) or "the run"
            why = f": {verdict.cut_short}" if verdict.cut_short else ""
            message = f"{name} was planned for {who} and never reported{why}"
            yield _case(classname, name, "error", "not reported", message)


def _case(
    classname: str,
    name: str,
    element: str = "",
    kind: str = "",
    message: str = "",
    *,
    body: str = "",
    output: str = "",
    properties: Iterable[tuple[str, str]] = (),
    seconds: float = 0.0,
) -> TestCase:
    """One `<testcase>`. `element` is "", `failure`, `error` or `skipped`; `message` becomes one line."""
    case = xunit2.TestCase(shown(name), shown(classname), _milliseconds(seconds))
    for key, value in properties:
        if value:
            case.add_property(shown(key), shown(value))
    if element:
        kinds = {"failure": Failure, "error": Error, "skipped": Skipped}
        result = kinds[element](shown(first_line(message, 1000)), shown(kind))
        result.text = shown(body)
        case.result = result
    if output:
        case.system_out = shown(output)
    return case


def _milliseconds(seconds: float) -> float:
    """Whole milliseconds in seconds, because Jenkins reads `1e-05` as zero or worse."""
    return round(max(seconds, 0.0), 3) if math.isfinite(seconds) else 0.0
