"""A check that was measured again without a bad node: what it says of whom, and what is not believed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from reports import junit
from reports.decision import decide
from reports.record import Blame, BlameKind, CheckRecord, Outcome, Record, Repeat
from tests.each import each
from tests.reports import making
from tests.reports.making import GREEN, PAIR, alone, check, journal_of, letters

THREE = ("gpu01", "gpu02", "gpu03")
REST = ("gpu01", "gpu03")
NIC = Blame(
    BlameKind.NIC,
    ("gpu02",),
    "the link of gpu02 is slow",
    evidence=("gpu02 to gpu01: slow",),
    confidence=0.99,
)


def repeat(nodes: Iterable[str] = REST, outcome: Outcome = Outcome.PASS, **changes: object) -> Repeat:
    judged = (GREEN,) if outcome is Outcome.PASS else ()
    record = Repeat(tuple(nodes), outcome, "" if judged else f"again {outcome.value}", judgements=judged)
    return replace(record, **changes)  # type: ignore[arg-type]


def failed(*repeats: Repeat, **changes: object) -> CheckRecord:
    record = check(PAIR, THREE, Outcome.FAIL, blame=(NIC,), repeats=repeats)
    return replace(record, **changes)  # type: ignore[arg-type]


def records_of(pair: CheckRecord, nodes: tuple[str, ...] = THREE) -> list[Record]:
    """A whole run in which each of these nodes passed a check of its own."""
    own = [check(alone(node), [node]) for node in nodes]
    records = journal_of(*own, pair, head=making.run(nodes))
    return [*records[:2], *making.ready(*nodes[2:]), *records[2:]]


ONCE = Blame(BlameKind.HANG, ("gpu02",), "rank 1 on gpu02 did not arrive")
FOUR = (*THREE, "gpu04")
PATH = Blame(BlameKind.PATH, ("gpu02", "gpu03"), "the path between gpu02 and gpu03 is slow", confidence=0.99)
NEXT = repeat(("gpu01", "gpu03", "gpu04"), Outcome.FAIL, blame=(replace(NIC, nodes=("gpu03",)),))


@each(
    ("pair", "expected"),
    [
        (failed(repeat()), "ara"),
        (failed(), "uru"),
        (failed(repeat(outcome=Outcome.FAIL)), "uru"),
        (failed(repeat(outcome=Outcome.UNCHECKED)), "uru"),
        # who is left out without being convicted, and a hang that came back
        (failed(repeat(), outcome=Outcome.UNCHECKED, blame=(ONCE,)), "aua"),
        (failed(repeat(), outcome=Outcome.UNCHECKED, blame=(replace(ONCE, proved=True),)), "ara"),
        (failed(NEXT, repeat(("gpu01", "gpu04")), nodes=FOUR), "arra"),
        # of a bad path both ends, also one that is good with the rest; unless it was the fault of one of them
        (failed(repeat(("gpu01", "gpu04")), nodes=FOUR, blame=(PATH,)), "auua"),
        (failed(repeat(("gpu01", "gpu02", "gpu04")), nodes=FOUR, blame=(PATH,)), "auua"),
        (failed(repeat(("gpu01", "gpu03", "gpu04")), nodes=FOUR, blame=(PATH, NIC)), "araa"),
        (
            failed(repeat(("gpu01", "gpu03", "gpu04")), nodes=FOUR, blame=(replace(PATH, confidence=None),)),
            "auaa",
        ),
    ],
)
def test_survivors_rest_on_the_repeat_and_culprits_on_the_failure(pair: CheckRecord, expected: str) -> None:
    assert letters(records_of(pair, pair.nodes)) == expected


@each(
    ("pair", "fault"),
    [
        (failed(repeat(THREE)), "was repeated without leaving a node out"),
        (failed(repeat(("gpu01", "gpu09"))), "was repeated without leaving a node out"),
        (failed(repeat(())), "was repeated without leaving a node out"),
        (failed(repeat(judgements=())), "passed but recorded nothing"),
        (failed(repeat(), repeat(("gpu01",))), "was repeated although it was pass"),
        (check(PAIR, THREE, repeats=(repeat(),)), "was repeated although it was pass"),
        (failed(repeat(outcome=Outcome.FAIL, blame=(replace(NIC, nodes=("gpu09",)),))), "blames gpu09"),
    ],
)
def test_a_repeat_that_cannot_be_believed_accepts_nobody(pair: CheckRecord, fault: str) -> None:
    records = records_of(pair)
    assert any(fault in one.sentence for one in decide(records).faults)
    assert "a" not in letters(records)


def test_junit_says_whom_the_search_found_and_what_the_rest_came_to(tmp_path: Path) -> None:
    records = records_of(failed(repeat()))
    junit.write(tmp_path / "junit.xml", records, decide(records))
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()  # noqa: S314 - our own file
    [case] = [one for one in root.iter("testcase") if one.get("name") == "test_busbw[all_reduce-network]"]
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("type") == "nic"
    text = failure.text or ""
    assert "blame: the link of gpu02 is slow\n  gpu02 to gpu01: slow" in text
    assert "measured again: pass on gpu01, gpu03" in text
    told = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert told["repeat.1"] == "pass on gpu01, gpu03"
