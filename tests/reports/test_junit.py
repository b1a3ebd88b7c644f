from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import junitparser.xunit2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports import junit, junit_text
from reports.begin import begin
from reports.decision import decide
from reports.record import BlameKind, Judgement, Outcome, Record
from tests.each import each
from tests.fuzz import examples
from tests.reports import making
from tests.reports.making import PAIR, alone, blame, check, green, green_checks, journal_of


def parse(path: Path) -> ET.Element:
    return ET.parse(path).getroot()  # noqa: S314 - written a line above


def report(records: list[Record], directory: Path) -> dict[tuple[str, str], ET.Element]:
    junit.write(directory / "junit.xml", records, decide(records))
    cases = parse(directory / "junit.xml").iter("testcase")
    return {(case.get("classname", ""), case.get("name", "")): case for case in cases}


def verdicts(case: ET.Element) -> list[str]:
    return [child.tag for child in case if child.tag in ("failure", "error", "skipped")]


def only(case: ET.Element, tag: str) -> ET.Element:
    assert verdicts(case) == [tag]
    child = case.find(tag)
    assert child is not None
    return child


def pair(outcome: Outcome, **changes: object) -> list[Record]:
    changed = {"outcome": outcome, **changes}
    return journal_of(*green_checks()[:2], check(PAIR, **changed))  # type: ignore[arg-type]


PAIR_CASE = ("suites.collectives.test_bandwidth", "test_busbw[all_reduce-network]")


def test_a_green_run_has_a_case_per_check_per_node_and_for_itself(tmp_path: Path) -> None:
    cases = report(green(), tmp_path)
    assert list(cases) == [
        ("shakedown.run", "complete"),
        ("shakedown.nodes", "gpu01"),
        ("shakedown.nodes", "gpu02"),
        ("suites.selfcheck.test_selfcheck", making.SELF.name),
        ("suites.nodes.test_inventory", "test_gpus[gpu01]"),
        ("suites.nodes.test_inventory", "test_gpus[gpu02]"),
        PAIR_CASE,
    ]
    assert not any(verdicts(case) for case in cases.values())


@each(
    ("outcome", "tag"),
    [(Outcome.FAIL, "failure"), (Outcome.UNCHECKED, "error"), (Outcome.NOT_APPLICABLE, "skipped")],
)
def test_each_outcome_has_its_element_with_its_reason(tmp_path: Path, outcome: Outcome, tag: str) -> None:
    found = only(report(pair(outcome, reason="it was slow", detail="stack\ntail"), tmp_path)[PAIR_CASE], tag)
    assert found.get("message") == "it was slow"
    assert "stack\ntail" in (found.text or "")


def test_the_message_is_one_line_that_stands_alone(tmp_path: Path) -> None:
    case = report(pair(Outcome.FAIL, reason="\n  slow by half\nassert 1 == 2"), tmp_path)[PAIR_CASE]
    assert only(case, "failure").get("message") == "slow by half"


def test_a_red_check_without_a_reason_still_has_a_message(tmp_path: Path) -> None:
    case = report(pair(Outcome.UNCHECKED, reason=""), tmp_path)[PAIR_CASE]
    assert "gave no reason" in only(case, "error").get("message", "")


def test_nodes_are_cases(tmp_path: Path) -> None:
    guilty = blame(BlameKind.NIC, "gpu02")
    cases = report(pair(Outcome.FAIL, blame=(guilty,)), tmp_path)
    assert "gpu02 is rejected: " in only(cases["shakedown.nodes", "gpu02"], "failure").get("message", "")
    assert "gpu01 is unproven: " in only(cases["shakedown.nodes", "gpu01"], "error").get("message", "")
    assert only(cases[PAIR_CASE], "failure").get("type") == "nic"
    assert PAIR in (only(cases["shakedown.nodes", "gpu02"], "failure").text or "")


def test_what_never_reported_is_an_error_under_the_name_it_would_have_had(tmp_path: Path) -> None:
    records = [record for record in green() if getattr(record, "id", "") != PAIR]
    found = only(report(records, tmp_path)[PAIR_CASE], "error")
    assert "never reported" in found.get("message", "")
    assert "gpu01, gpu02" in found.get("message", "")


def test_a_run_cut_short_is_an_error(tmp_path: Path) -> None:
    records = [*green()[:-1], making.end(cut_short="SIGTERM")]
    found = only(report(records, tmp_path)["shakedown.run", "complete"], "error")
    assert found.get("message") == "the run was cut short (SIGTERM)"


def test_a_selection_is_no_green_file(tmp_path: Path) -> None:
    cases = report(journal_of(*green_checks(), head=making.run(selection="-k x")), tmp_path)
    assert only(cases["shakedown.run", "complete"], "error").get("type") == "partial"
    assert only(cases["shakedown.nodes", "gpu01"], "error").get("type") == "unproven"


def properties(case: ET.Element) -> dict[str, str]:
    return {entry.get("name", ""): entry.get("value", "") for entry in case.iter("property")}


def of_the_run(directory: Path) -> dict[str, str]:
    block = parse(directory / "junit.xml").find("testsuite/properties")
    assert block is not None
    return properties(block)


def test_a_check_carries_value_limit_unit_hosts_and_source(tmp_path: Path) -> None:
    found = properties(report(green(), tmp_path)[PAIR_CASE])
    assert found == {"busbw": "361.2", "busbw.limit": ">= 340 GB/s"}
    usual = of_the_run(tmp_path)
    assert (usual["busbw.unit"], usual["busbw.source"], usual["source.1"]) == ("GB/s", "1", "a paper")
    red = properties(report(pair(Outcome.FAIL, properties={"job": "1"}), tmp_path)[PAIR_CASE])
    assert red == {"hosts": "gpu01, gpu02", "job": "1"}


def test_a_unit_or_a_source_that_is_not_the_usual_one_of_its_metric_is_with_the_check(tmp_path: Path) -> None:
    rates = [
        Judgement("rate", Outcome.PASS, "", 5.0, unit, source=source)
        for unit, source in (("GB/s", "a paper"), ("GB/s", "a book"), ("", ""))
    ]
    made = [check(f"suites/a/test_b.py::test_c[{at}]", judgements=(one,)) for at, one in enumerate(rates)]
    cases = report(journal_of(*made), tmp_path)
    assert [properties(cases["suites.a.test_b", f"test_c[{at}]"]) for at in range(3)] == [
        {"rate": "5"},
        {"rate": "5", "rate.source": "2"},
        {"rate": "5", "rate.unit": "none", "rate.source": "none"},
    ]
    usual = of_the_run(tmp_path)
    assert (usual["rate.unit"], usual["rate.source"], usual["source.2"]) == ("GB/s", "1", "a book")


def test_the_unit_and_the_limit_are_said_once(tmp_path: Path) -> None:
    judged = (
        Judgement("rate", Outcome.PASS, "", 5.0, "GB/s"),
        Judgement("wrong", Outcome.PASS, "", 0.0, "", "exactly", 0.0),
        Judgement("moved", Outcome.PASS, "", 96.0, "", "exactly", 96.0),
        Judgement("count", Outcome.FAIL, "", 7.0, "", "exactly", 8.0),
    )
    found = properties(report(pair(Outcome.FAIL, judgements=judged), tmp_path)[PAIR_CASE])
    assert found == {
        "hosts": "gpu01, gpu02", "rate": "5", "rate.outcome": "pass",
        "wrong": "0", "wrong.outcome": "pass", "moved": "96", "moved.outcome": "pass",
        "count": "7", "count.limit": "exactly 8",
    }  # fmt: skip
    green = properties(report(pair(Outcome.PASS, judgements=judged[:3]), tmp_path)[PAIR_CASE])
    assert green == {"rate": "5", "moved": "96"}
    assert of_the_run(tmp_path)["rate.unit"] == "GB/s"


def test_a_case_per_node_only(tmp_path: Path) -> None:
    records = making.rejected()
    junit.write(tmp_path / "junit.xml", records, decide(records), "nodes")
    cases = [case.get("classname") for case in parse(tmp_path / "junit.xml").iter("testcase")]
    assert cases == ["shakedown.run", "shakedown.nodes", "shakedown.nodes"]
    assert parse(tmp_path / "junit.xml").get("failures") == "1"


# junit-10.xsd of Jenkins' xunit plugin: what an element may have, and must have. We add a case's properties.
COUNTS = {"tests", "failures", "errors"}
SCHEMA: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"name", "time", *COUNTS}, set(), {"testsuite"}),
    "testsuite": (
        {"name", "group", "time", "skipped", "timestamp", "hostname", "id", "package", *COUNTS},
        {"name", *COUNTS},
        {"properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name", "time", "classname", "group"},
        {"name"},
        {"properties", "skipped", "error", "failure", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, {"name", "value"}, set()),
    **dict.fromkeys(("failure", "error", "skipped"), ({"type", "message"}, set(), set())),
    "system-out": (set(), set(), set()),
}


@each("records", [green(), making.rejected(), [making.run()], []])
def test_the_file_keeps_to_the_schema_of_jenkins(tmp_path: Path, records: list[Record]) -> None:
    report(records, tmp_path)
    begin(tmp_path / "begun", "at noon")
    for root in (parse(tmp_path / "junit.xml"), parse(tmp_path / "begun/junit.xml")):
        for element in root.iter():
            allowed, asked, children = SCHEMA[element.tag]
            assert asked <= set(element.attrib) <= allowed, element.tag
            assert {child.tag for child in element} <= children, element.tag


def test_a_green_check_takes_few_bytes(tmp_path: Path) -> None:
    """Tens of thousands of them are a large run."""
    sizes = []
    for count in (100, 300):
        checks = [check(f"suites/zero/test_zero.py::test_x[{n}]", ["gpu01"]) for n in range(count)]
        report(journal_of(*checks), tmp_path)
        sizes.append((tmp_path / "junit.xml").stat().st_size)
    assert (sizes[1] - sizes[0]) / 200 < 210


def test_judgements_of_one_metric_are_told_apart(tmp_path: Path) -> None:
    sizes = [Judgement("busbw", Outcome.PASS, "", float(size), case={"size": size}) for size in (8, 16)]
    twins = [Judgement("wrong", Outcome.PASS, "", 0.0), Judgement("wrong", Outcome.PASS, "", 0.0)]
    found = properties(report(pair(Outcome.PASS, judgements=(*sizes, *twins)), tmp_path)[PAIR_CASE])
    assert {"busbw@8", "busbw@16", "wrong", "wrong#2"} <= set(found)


def test_the_run_carries_workload_hardware_and_versions(tmp_path: Path) -> None:
    head = making.run(versions={"hardware sha256": "9f0c"}, notes=("read me",))
    report(journal_of(*green_checks(), head=head), tmp_path)
    found = of_the_run(tmp_path)
    assert (found["workload"], found["hardware"], found["run"]) == ("dense", "h100", "r1")
    assert found["version.hardware sha256"] == "9f0c"
    assert found["note.1"] == "read me"


def test_the_counters_are_right_and_times_are_plain_decimals(tmp_path: Path) -> None:
    checks = [
        check(alone("gpu01"), ["gpu01"], Outcome.FAIL, seconds=0.00001),
        check(alone("gpu02"), ["gpu02"], Outcome.UNCHECKED, seconds=math.nan),
        check(PAIR, outcome=Outcome.NOT_APPLICABLE, seconds=1e9),
    ]
    cases = report(journal_of(*checks), tmp_path)
    for element in (parse(tmp_path / "junit.xml"), parse(tmp_path / "junit.xml")[0]):
        assert element.get("tests") == str(len(cases)) == "7"
        assert element.get("failures") == "2"  # the check and its node
        assert element.get("errors") == "2"
    assert parse(tmp_path / "junit.xml")[0].get("skipped") == "1"
    times = [
        element.get("time", "")
        for element in parse(tmp_path / "junit.xml").iter()
        if "time" in element.attrib
    ]
    assert all(re.fullmatch(r"\d+\.\d{1,3}", time) for time in times)


def test_junitparser_reads_the_same(tmp_path: Path) -> None:
    report(pair(Outcome.FAIL, reason="slow"), tmp_path)
    suites = junitparser.xunit2.JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    [suite] = list(suites)
    cases = list(suite)
    assert suite.tests == len(cases) == 7
    assert suite.failures == sum(case.is_failure for case in cases) == 1
    assert suite.errors == sum(case.is_error for case in cases) == 2
    assert suite.timestamp == "2026-11-20T14:12:03+00:00"


def test_a_tombstone_is_red_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "new" / "junit.xml"
    begin(path.parent, "started at noon")
    [case] = list(parse(path).iter("testcase"))
    message = only(case, "error").get("message", "")
    assert message == "the run ended without writing its report: started at noon"
    assert parse(path).get("errors") == "1"


def test_a_tombstone_has_the_name_of_the_run_itself(tmp_path: Path) -> None:
    """So that Jenkins has one history for it, red or green."""
    begin(tmp_path)
    [case] = list(parse(tmp_path / "junit.xml").iter("testcase"))
    assert (case.get("classname"), case.get("name")) in report(green(), tmp_path)


ILLEGAL = st.text(st.characters(exclude_categories=()), max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(ILLEGAL, ILLEGAL, ILLEGAL, st.sampled_from(Outcome))
def test_no_text_can_break_the_xml(tmp_path: Path, name: str, text: str, kind: str, outcome: Outcome) -> None:
    made = check(
        PAIR,
        outcome=outcome,
        name=name,
        suite=kind,
        reason=text,
        detail=text,
        properties={name: text},
        judgements=(Judgement(kind, Outcome.PASS, text, 1.0, kind, text),),
    )
    records: list[Record] = [making.run(run_id=text, notes=(text,)), making.plan(made), made, making.end()]
    junit.write(tmp_path / "junit.xml", records, decide(records))
    begin(tmp_path / "begun", text)
    assert len(list(parse(tmp_path / "junit.xml").iter("testcase"))) >= 4
    assert parse(tmp_path / "begun/junit.xml").get("errors") == "1"
    junitparser.xunit2.JUnitXml.fromfile(str(tmp_path / "junit.xml"))


def test_no_secret_reaches_the_xml(tmp_path: Path) -> None:
    report(pair(Outcome.FAIL, detail="HF_TOKEN=hunter2", properties={"x": "MY_SECRET=hunter2"}), tmp_path)
    assert "hunter2" not in (tmp_path / "junit.xml").read_text()


@each(
    ("check_id", "names"),
    [
        ("suites/nodes/test_a.py::test_b[x]", ("suites.nodes.test_a", "test_b[x]")),
        ("suites/test_a.py::TestC::test_b[a::b/c.py]", ("suites.test_a.TestC", "test_b[a::b/c.py]")),
        ("no node id", ("shakedown.checks", "no node id")),
    ],
)
def test_ids_are_split_as_pytest_does(check_id: str, names: tuple[str, str]) -> None:
    assert junit_text.split_id(check_id) == names


def test_the_time_of_a_killed_run_is_the_time_of_its_checks(tmp_path: Path) -> None:
    report(green()[:-1], tmp_path)
    assert parse(tmp_path / "junit.xml").get("time") == "1.0"
