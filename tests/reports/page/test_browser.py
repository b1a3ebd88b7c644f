"""The report in a real browser, under the policy with which Jenkins serves it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reports.decision import decide
from reports.page import html
from reports.record import Blame, BlameKind, CheckRecord, NodeRecord, Outcome, Record
from tests.each import each
from tests.reports import making
from tests.reports.making import check
from tests.reports.page.browser import Browser, chromium, served
from tests.reports.page.test_html import slow
from tests.reports.page.test_schedules import bubble_check, recorded
from tests.reports.page.test_searches import reading, searched
from tests.reports.page.test_steps import held, parity, step
from tests.reports.test_repeats import repeat

NODES = [f"rack12-gpu{number:02d}.cluster.example.com" for number in range(1, 9)]
PAGES = ["report.html", "checks-collectives.html", "checks-zero.html", "checks-pipeline.html"]
MEASURES = (Path(__file__).parent / "measures.js").read_text(encoding="utf-8")
GROUND = "getComputedStyle(document.body).backgroundColor"
COMPLAINTS = ("torn", "wide", "faint", "unloaded")
PAPER_PIXELS = 717  # of A4 within the margins that Chromium prints with


def named() -> CheckRecord:
    """All that the page can say of a failure: a search, whom it names, evidence, a traceback, a repeat."""
    bad, *good = NODES
    paths = [(a, b, bad in (a, b)) for a in NODES for b in NODES if a != b]
    readings = [{**reading(*path), "gigabytes_per_s": 21.53 if path[2] else 48.25} for path in paths]
    said = (
        f"the link of {bad} is slow in both directions: with {', '.join(good[:3])}, which are fast with "
        "others (21.53 GB/s where the others have 48.25 GB/s (0.45)); check NIC, cable and switch port"
    )
    nic = Blame(BlameKind.NIC, (bad,), said, 16, "mlx5_0", (f"round 1: {said}",) * 3, 0.999998)
    search = searched(*readings, sentence=said)
    return replace(
        slow(),
        id=(name := "suites/collectives/test_bandwidth.py::test_busbw[reduce_scatter-bfloat16-network]"),
        name=name.rpartition(":")[2],
        nodes=tuple(NODES),
        reason=f"150 GB/s at 1 GiB is 56 % below the limit; {said}",
        detail=f"  File '{'/opt/conda/lib/python3.12' * 4}', line 3\nValueError: 0x{'0f' * 70}",
        blame=(nic,),
        recorded={**slow().recorded, "collective": "reduce_scatter", "search": search},
        repeats=(repeat(good),),
    )


def much() -> CheckRecord:
    """A step that is held to as much as one of experts is, with as many figures on record."""
    metrics = (
        "repeat",
        "wrong_elements",
        "traffic",
        "memory",
        "pattern",
        "gain",
        "span_ms",
        "combine",
        "dispatch",
    )
    judgements = [held(name, 0.01655, ">= 0.0172 GB/s", 0.0172, Outcome.FAIL) for name in metrics]
    figures = {f"{way}_{what}": 7159.5 for way in ("combine", "dispatch") for what in ("ep2", "p99_us", "us")}
    return step("time", "zero1-parameters-bfloat16-network", *judgements, figures=figures)


def records() -> list[Record]:
    """A run with everything that the page has a place for, and the long names of a real cluster."""
    unknown = "its hardware file has no row for all_to_all_v over network at 8 nodes in bfloat16"
    fallen = replace(
        check(making.alone(NODES[-1]), NODES[-1:], Outcome.FAIL), reason="12 ECC errors of GPU 3"
    )
    absent = check("suites/x/test_x.py::test_fp8", NODES, Outcome.NOT_APPLICABLE, reason="no fp8")
    checks = [
        *(check(making.alone(node), [node]) for node in NODES[:-1]),
        fallen,
        named(),
        check(making.PAIR, NODES, recorded={**slow().recorded, "bound_gigabytes_per_s": 9000.0}),
        *(check(making.PAIR + str(n), NODES[:3], Outcome.UNCHECKED, reason=unknown) for n in range(7)),
        *(step("parity", f"zero{n}-parameters-bfloat16-network", parity(n / 200)) for n in range(1, 4)),
        much(),
        bubble_check(recorded()),
        absent,
    ]
    head = making.run(nodes=NODES, notes=("host keys of 8 nodes were trusted",), versions={"torch": "2.10.0"})
    told = [one for one in making.journal_of(*checks, head=head) if not isinstance(one, NodeRecord)]
    return [*told[:2], *making.ready(*NODES), *told[2:]]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("report")
    run = records()
    html.write(directory, run, decide(run))
    with served(directory) as at:
        yield at


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


def complaints(browser: Browser, *more: str) -> dict[str, object]:
    """What a reader would complain of, as the page is shown now."""
    return {name: found for name in (*COMPLAINTS, *more) if (found := browser.ask(f"{name}()"))}


@each("page", PAGES)
def test_a_reader_has_nothing_to_complain_of(browser: Browser, address: str, page: str) -> None:
    browser.open(f"{address}/{page}")
    assert browser.refused() == []
    browser.ask(MEASURES)
    grounds = {}
    for width, scheme in itertools.product((1280, 420), ("light", "dark")):
        browser.show(width, scheme)
        assert complaints(browser) == {}, (width, scheme)
        grounds[scheme] = browser.ask(GROUND)
    browser.show(PAPER_PIXELS, "dark", "print")
    assert complaints(browser, "folded") == {}
    assert (grounds["light"] != grounds["dark"], browser.ask(GROUND)) == (True, "rgb(255, 255, 255)")
