from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from reports.decision import Standing
from reports.page import facts, plots
from reports.record import Blame, BlameKind, CheckRecord, Judgement, NodeRecord, Outcome, Record
from tests.each import each
from tests.reports import making
from tests.reports.making import PAIR, blame, check, every_page, green_checks, journal_of

VOID = {"meta", "link", "img", "br", "hr", "wbr"}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e"


class Reader(HTMLParser):
    """Collects tags and attributes, and insists that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def values(self, name: str) -> Iterator[str]:
        yield from (attributes[name] for _, attributes in self.tags if name in attributes)


def sweep(peak: float) -> dict[str, object]:
    entries = [
        {"size_bytes": 2**power, "busbw_gigabytes_per_s": peak * power / 30, "latency_us": 9.0, "samples": 20}
        for power in range(10, 31, 2)
    ]
    return {"sweep": entries, "collective": "all_reduce", "path": "network"}


def slow() -> CheckRecord:
    failed = Judgement(
        "busbw", Outcome.FAIL, "150 GB/s at 1 GiB, asked 340", 150.0, "GB/s", ">= 340 GB/s", 340.0, "a paper",
        {"size": 2**30},
    )  # fmt: skip
    return check(
        PAIR,
        outcome=Outcome.FAIL,
        reason="150 GB/s at 1 GiB is 56 % below the limit",
        detail="the long story",
        judgements=(failed,),
        blame=(blame(BlameKind.NIC, "gpu02"),),
        recorded=sweep(150.0),
    )


def rich() -> list[Record]:
    absent = check("suites/x.py::test_fp8", outcome=Outcome.NOT_APPLICABLE, reason="gloo has no fp8")
    records = journal_of(*green_checks()[:2], slow(), absent)
    records.insert(-1, NodeRecord("gpu02", "lost", "its channel closed"))
    return records


def page(records: list[Record], directory: Path) -> str:
    for name in ("junit.xml", "verdict.json"):
        (directory / name).touch()
    return making.page(records, directory)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    page(rich(), directory)
    return directory


def test_nothing_in_the_page_needs_more_than_the_policy_allows(drawn: Path) -> None:
    """`default-src 'none'; img-src 'self'; style-src 'self'`."""
    reader = Reader(every_page(drawn))
    assert not {tag for tag, _ in reader.tags} & {
        "script",
        "style",
        "iframe",
        "object",
        "embed",
        "svg",
        "form",
    }
    names = {name for _, attributes in reader.tags for name in attributes}
    assert "style" not in names
    assert not [name for name in names if name.startswith("on")]
    for address in (*reader.values("src"), *reader.values("href")):
        assert not re.match(r"[a-z]+:|//", address, re.IGNORECASE), address


def test_the_page_says_where_the_time_went(drawn: Path) -> None:
    assert re.search(
        r"took [^<]* \(measuring \d+ s, starting jobs \d+ s", (drawn / "report.html").read_text()
    )


def test_every_file_that_the_page_names_exists(drawn: Path) -> None:
    reader = Reader(every_page(drawn))
    addresses = {*reader.values("src"), *reader.values("href")}
    assert {"report.css", "junit.xml", "plots/all-reduce-network.svg"} <= addresses
    for address in addresses:
        if not address.startswith("#"):
            assert (drawn / unquote(address.partition("#")[0])).is_file(), address


def test_every_place_that_the_page_points_at_exists_once(drawn: Path) -> None:
    places: set[str] = set()
    addresses: set[str] = set()
    for path in drawn.glob("*.html"):
        reader = Reader(path.read_text())
        here = [f"{path.name}#{place}" for place in reader.values("id")]
        assert len(here) == len(set(here))
        places.update(here)
        addresses.update(f"{path.name}{one}" if one[0] == "#" else one for one in reader.values("href"))
    assert {address for address in addresses if "#" in address} <= places


def test_the_style_sheet_fetches_nothing(drawn: Path) -> None:
    assert not re.search(r"url\(|@import|data:", (drawn / "report.css").read_text())


@pytest.mark.parametrize("standing", Standing)
def test_no_rule_is_for_whatever_has_the_name_of_a_verdict(drawn: Path, standing: Standing) -> None:
    """A row of the answer has it for a class, and is to lie like the others."""
    css = (drawn / "report.css").read_text()
    assert not re.search(rf"(?:^|,)\s*\w*\.{standing.value}\s*[,{{]", css, re.MULTILINE)


def test_the_answer_comes_first_then_trouble_then_figures_and_last_what_does_not_apply(drawn: Path) -> None:
    text = (drawn / "report.html").read_text()
    order = ["answer", "trouble", "checks", "margins", "curves", "provenance", "absent"]
    places = [text.index(f'<section id="{name}">') for name in order]
    assert places == sorted(places)


def test_the_bad_node_is_the_first_one_named(drawn: Path) -> None:
    text = (drawn / "report.html").read_text()
    assert text.index("gpu02") < text.index(">gpu01")
    assert text.index(">rejected<") < text.index("gpu02")


@each(
    "words",
    [
        "150 GB/s at 1 GiB is 56 % below the limit",
        "the nic of gpu02 is to blame",
        "the long story",
        "-55.9 %",
        "a paper",
        "gloo has no fp8",
        "its channel closed",
        "<wbr>DEBUG=INFO",
    ],
)
def test_the_evidence_is_there(drawn: Path, words: str) -> None:
    assert words in every_page(drawn)


def test_states_are_words_and_not_only_colours(drawn: Path) -> None:
    badges = re.findall(r'class="badge (\w+)">([^<]+)<', (drawn / "report.html").read_text())
    assert badges
    assert all(word.replace("/", "") == name for name, word in badges)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    hosts = {"gpu01": "gpu01", EVIL: EVIL}
    failed = check(EVIL, [EVIL], Outcome.FAIL, reason=EVIL, detail=EVIL)
    fact = NodeRecord(EVIL, EVIL, EVIL, EVIL, {EVIL: EVIL})
    records = journal_of(failed, head=making.run(hosts=hosts, notes=(EVIL,), versions={EVIL: EVIL}))
    text = page([*records[:-1], fact, records[-1]], tmp_path)
    tags = {tag for tag, _ in Reader(text).tags}
    assert not tags & {"script", "img"}
    assert "\x1b" not in text
    assert "\u202e" not in text


@each("records", [[], [making.run()], rich()[:-1]])
def test_half_a_run_has_a_page_that_says_so(tmp_path: Path, records: list[Record]) -> None:
    text = page(records, tmp_path)
    Reader(text)
    assert "This run accepts nobody." in text
    assert "cut short" in text


def test_many_nodes_with_one_reason_are_one_row(tmp_path: Path) -> None:
    names = [f"gpu{number:02d}" for number in range(1, 65)]
    records: list[Record] = [making.run(nodes=names), making.plan(check(PAIR, names))]
    text = page(records, tmp_path)
    assert text.count('<tr class="unproven">') == 1
    assert "gpu[01-64]" in text


def test_checks_that_ended_alike_are_told_once_and_of_many_a_few_stand_open(tmp_path: Path) -> None:
    checks = [check(f"t.py::test_{n}", ["gpu01"], Outcome.UNCHECKED, reason="no route") for n in range(9)]
    text = page(journal_of(*checks), tmp_path)
    assert text.count("<article") == 1
    shown, _, folded = text[text.index('<section id="trouble">') :].partition(
        "<summary>4 more checks</summary>"
    )
    assert [f"test_{n}" in shown for n in range(9)] == [True] * 5 + [False] * 4
    assert all(f"test_{n}" in folded for n in range(5, 9))


def test_a_blame_without_a_node_names_what_it_is(tmp_path: Path) -> None:
    fabric = Blame(BlameKind.FABRIC, (), "all ways are slow")
    text = page(journal_of(check(PAIR, outcome=Outcome.FAIL, reason="slow", blame=(fabric,))), tmp_path)
    assert '<span class="label">blame</span> fabric: all ways are slow</p>' in text


def test_a_picture_needs_no_style_and_shows_the_failed_curve(drawn: Path) -> None:
    root = ET.parse(drawn / "plots/all-reduce-network.svg").getroot()  # noqa: S314 - ours
    assert not any("style" in element.attrib or element.tag.endswith("style") for element in root.iter())
    assert any(element.get("stroke") == "#c0342b" for element in root.iter())
    assert root.get("stroke-linejoin") == "round"


def test_the_same_journal_gives_the_same_picture(tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        [plot] = plots.draw([slow()], tmp_path)
        texts.append((tmp_path / plot.file).read_bytes())
    assert texts[0] == texts[1]
    assert plot.text == "1 sweep; at the largest size 150 GB/s (gpu[01-02])"


def test_any_letter_may_stand_in_the_name_of_a_curve_and_none_makes_a_formula_of_it(tmp_path: Path) -> None:
    named = check(PAIR, ["$\\frac$日本"], recorded=sweep(1.0))
    assert len(plots.draw([named], tmp_path)) == 1


def test_a_sweep_of_small_sizes_is_not_compared_with_one_of_large_sizes(tmp_path: Path) -> None:
    small = check(PAIR, recorded={"sweep": [{"size_bytes": 8, "busbw_gigabytes_per_s": 0.1}]})
    large = check(PAIR, recorded={"sweep": [{"size_bytes": 1024, "busbw_gigabytes_per_s": 7.0}]})
    assert plots.draw([small, large], tmp_path)[0].text == "1 sweep; at the largest size 7 GB/s (gpu[01-02])"


BAD_SWEEPS: list[object] = [
    None,
    "text",
    [],
    [1, None],
    [{"size_bytes": 0, "busbw_gigabytes_per_s": 1.0}],
    [{"size_bytes": 8, "busbw_gigabytes_per_s": "NaN"}],
    [{"size_bytes": 8, "busbw_gigabytes_per_s": float("inf")}],
    [{"busbw_gigabytes_per_s": 1.0}],
]


@each("entries", BAD_SWEEPS)
def test_a_sweep_without_points_has_no_picture(tmp_path: Path, entries: object) -> None:
    assert plots.draw([check(PAIR, recorded={"sweep": entries})], tmp_path) == []


def test_a_picture_cannot_be_written_elsewhere(tmp_path: Path) -> None:
    recorded = {**sweep(1.0), "collective": "../../etc", "path": "/abs"}
    [plot] = plots.draw([check(PAIR, recorded=recorded)], tmp_path)
    assert plot.file == "plots/etc-abs.svg"


def test_facts_are_compared_leaf_by_leaf() -> None:
    nodes = [
        NodeRecord(
            f"n{at}", "ready", facts={"cpu": {"model": "x", "id": at}, "bios": "ab"[at > 2], "nics": [1]}
        )
        for at in (1, 2, 3)
    ]
    found = facts.compare([*nodes, NodeRecord("n4", "unreachable")])
    assert found.common == {"cpu.model": "x", "nics": "[1]"}
    assert found.differ == {"bios": (("b", "n3"), ("a", "n[1-2]"))}
    assert found.own == ("cpu.id",)
    assert facts.compare(nodes[:1]).differ == {}
    (one, lacking) = facts.compare([nodes[0], NodeRecord("n2", "ready", facts={"bios": "a"})]).differ[
        "cpu.model"
    ]
    assert {one, lacking} == {("x", "n1"), ("not there", "n2")}


def test_a_family_has_a_page_of_its_own_and_an_old_one_goes(tmp_path: Path) -> None:
    (tmp_path / "checks-gone.html").touch()
    first = page(journal_of(*green_checks()), tmp_path)
    assert 'href="checks-collectives.html"' in first
    assert {path.name for path in tmp_path.glob("checks-*")} == {
        "checks-collectives.html", "checks-nodes.html", "checks-selfcheck.html"
    }  # fmt: skip
    assert (
        "<b>test_<wbr>busbw[<wbr>all_<wbr>reduce-network]</b>"
        in (tmp_path / "checks-collectives.html").read_text()
    )


def test_the_first_page_stays_small_however_many_checks_there_are(tmp_path: Path) -> None:
    sizes = []
    for count in (200, 800):
        checks = [check(f"suites/zero/test_zero.py::test_x[{n}]", ["gpu01"]) for n in range(count)]
        sizes.append(len(page(journal_of(*checks), tmp_path)))
    assert sizes[1] - sizes[0] < 500


def test_the_thinnest_margin_of_the_nodes_and_metrics_comes_first(tmp_path: Path) -> None:
    def judged(node: str, metric: str, value: float) -> CheckRecord:
        held = Judgement(metric, Outcome.PASS, "", value, "GB/s", ">= 100 GB/s", 100.0)
        return check(f"suites/nodes/test_m.py::test_{metric}[{node}]", [node], judgements=(held,))

    checks = [judged("gpu01", "copy", 125.0), judged("gpu02", "copy", 160.0), judged("gpu02", "triad", 101.0)]
    text = page(journal_of(*checks), tmp_path)
    table = text[text.index('<section id="margins">') :]
    assert [table.index(word) for word in (">triad<", ">copy<")] == sorted(
        table.index(w) for w in (">triad<", ">copy<")
    )
    cells = re.findall(r'<td class="host">(\w+)<|>([\d.]+) %<', table)
    assert [a or b for a, b in cells] == ["gpu02", "99", "62.5", "gpu01", "80"]


def test_line_rate_and_bound_stand_beside_the_curve_and_no_legend_does(tmp_path: Path) -> None:
    rates = {"line_rate_gigabytes_per_s": 50.0, "bound_gigabytes_per_s": 96.0}
    shown = []
    for recorded in (sweep(45.0), {**sweep(45.0), **rates}, {**sweep(45.0), "bound_gigabytes_per_s": "NaN"}):
        [plot] = plots.draw([check(PAIR, recorded=recorded)], tmp_path)
        text = (tmp_path / plot.file).read_text()
        assert "legend" not in text
        shown.append(text.count("stroke-dasharray"))
    assert shown[1] == shown[0] + 2 == shown[2] + 2


def test_a_bound_far_above_the_curves_does_not_press_them_to_the_ground(tmp_path: Path) -> None:
    heights = {}
    for bound in (150.0, 15000.0):
        plots.draw([check(PAIR, recorded={**sweep(150.0), "bound_gigabytes_per_s": bound})], tmp_path)
        root = ET.parse(tmp_path / "plots/all-reduce-network.svg").getroot()  # noqa: S314 - ours
        [curve] = [
            one.get("d", "") for one in root.iter() if one.get("stroke") == "#2f6f9f" and one.get("clip-path")
        ]
        rows = [float(number) for number in re.findall(r"[-\d.]+", curve)[1::2]]
        heights[bound] = max(rows) - min(rows)
    assert heights[15000.0] > heights[150.0] / 4


def test_a_single_check_links_to_where_it_is_told(drawn: Path) -> None:
    text = (drawn / "report.html").read_text()
    place = re.search(r'href="#(check-\d+)">suites/', text)
    assert place
    assert f'id="{place[1]}"' in text[text.index('<section id="trouble">') :]
    assert "test_gpus[" not in text.split('<section id="checks">')[0]


def test_what_a_node_that_left_never_reported_stands_with_why_it_left(tmp_path: Path) -> None:
    gone = NodeRecord("gpu02", "set aside", "its link is slow")
    partly = making.check(making.PAIR, ["gpu01"])
    plan = making.plan(making.check(making.PAIR))
    records: list[Record] = [making.run(), plan, *making.ready(), gone, partly, making.end()]
    text = making.page(records, tmp_path)
    assert "gpu02 is set aside: its link is slow" in text
    assert "planned, never reported" not in text
    assert "1 of those that reported left out a node that they were planned for" in text
