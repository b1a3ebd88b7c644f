from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from reports.page import schedules
from reports.page.drawing import Picture
from reports.record import CheckRecord
from suites.pipeline.schedules import PLANS, Shape
from suites.pipeline.simulator import simulate
from tests.each import each
from tests.reports.making import NODES, check, journal_of, page

EVIL = "<script>alert(1)</script>\x1b[31m\u202e"
SVG = "{http://www.w3.org/2000/svg}"
FIGURES = {"bubble": 0.4, "bubble_formula": 0.375, "bubble_excess": 0.025, "bubble_simulated": 0.38}


def recorded(schedule: str = "one_f_one_b", ranks: int = 4, **figures: float) -> dict[str, Any]:
    """What a healthy check keeps of a schedule, in milliseconds of a simulation."""
    plan = PLANS[schedule]
    spans = simulate(schedule, Shape(ranks, 2 * ranks, plan.chunks))
    said = [
        {
            "pipeline": 0,
            "place": rank,
            "formula": plan.formula,
            "operations": [[*span.op, span.begin_s / 100, span.end_s / 100] for span in mine],
        }
        for rank, mine in enumerate(spans)
    ]
    every = [{"rank": rank, "node": NODES[rank % 2], "said": one} for rank, one in enumerate(said)]
    return {
        "schedule": {"step": f"pipeline.{schedule}", "ranks": every[::-1]},
        "figures": {**FIGURES, **figures},
    }


def bubble_check(
    kept: Mapping[str, Any], name: str = "gpipe-network", nodes: tuple[str, ...] = NODES
) -> CheckRecord:
    return check(f"suites/pipeline/test_pipeline.py::test_bubble[{name}]", nodes, recorded=kept)


def drawn(kept: Mapping[str, Any], directory: Path) -> tuple[Picture, ET.Element]:
    [picture] = schedules.draw([bubble_check(kept)], directory)
    return picture, ET.parse(directory / picture.file).getroot()  # noqa: S314 - ours


def rows(root: ET.Element) -> list[ET.Element]:
    """The row of each rank: that it waits, and over it what it does."""
    return [one for one in root.iter(f"{SVG}g") if one.get("id", "").startswith("row-")]


def span(element: ET.Element) -> tuple[float, float]:
    """Left and right of the first path of an element."""
    numbers = re.findall(r"[-\d.]+", next(element.iter(f"{SVG}path")).attrib["d"])
    return min(map(float, numbers[::2])), max(map(float, numbers[::2]))


def bars(row: ET.Element) -> list[tuple[float, float, str]]:
    """Left and right of each bar of a row, in points, and its tooltip."""
    found = []
    for one in row.iter(f"{SVG}rect"):
        left, width = (float(one.attrib[name]) * 0.75 for name in ("x", "width"))
        found.append((left, left + width, str(one.findtext(f"{SVG}title"))))
    return sorted(found)


def boxes(root: ET.Element) -> list[list[str]]:
    """What is drawn in each row, from left to right."""
    return [[title.partition(":")[0] for _, _, title in bars(row)] for row in rows(root)]


def words(root: ET.Element) -> list[str]:
    return [str(element.text) for element in root.iter(f"{SVG}text")]


def test_every_rank_has_a_row_with_its_operations_in_their_order(tmp_path: Path) -> None:
    picture, root = drawn(recorded(), tmp_path)
    ranks = boxes(root)
    assert len(ranks) == 4
    assert ranks[3][:3] == [
        "forward of stage 3, micro-batch 0",
        "backward of stage 3, micro-batch 0",
        "forward of stage 3, micro-batch 1",
    ]
    assert [len(rank) for rank in ranks] == [16] * 4
    labels = [word for word in words(root) if word.startswith("rank ")]
    assert labels == ["rank 0 on gpu01", "rank 1 on gpu02", "rank 2 on gpu01", "rank 3 on gpu02"]
    assert (picture.file, picture.title) == ("plots/schedule-1-one-f-one-b.svg", "one_f_one_b across nodes")


def test_a_box_lies_where_its_time_says(tmp_path: Path) -> None:
    """On rank 3 of 1F1B the first forward begins after three others, and is half as long as a backward."""
    _, root = drawn(recorded(), tmp_path)
    idle, idle_end = span(rows(root)[3])
    (begin, middle, title), (_, end, _), *_ = bars(rows(root)[3])
    unit = middle - begin
    assert end - middle == pytest.approx(2 * unit, abs=0.02)
    assert begin - idle == pytest.approx(3 * unit, abs=0.05)
    assert idle_end - idle == pytest.approx(33 * unit, abs=0.2)
    assert title == "forward of stage 3, micro-batch 0: 30 to 40 ms"


def test_the_ends_of_the_work_and_of_the_formula_are_marked(tmp_path: Path) -> None:
    _, root = drawn(recorded(), tmp_path)
    dashed = [span(one)[0] for one in root.iter(f"{SVG}path") if "stroke-dasharray" in one.attrib]
    left = span(rows(root)[0])[0]
    assert (dashed[1] - left) / (dashed[0] - left) == pytest.approx(1.375, abs=0.001)
    assert {"work alone", "end by the formula", "waiting: the bubble", "forward", "backward"} <= set(
        words(root)
    )
    assert "backward (weight)" not in words(root)


def test_a_split_backward_has_names_of_its_own(tmp_path: Path) -> None:
    _, root = drawn(recorded("zbv"), tmp_path)
    assert {"backward (input)", "backward (weight)"} <= set(words(root))


def test_the_caption_has_the_bubble_three_times(tmp_path: Path) -> None:
    picture, _ = drawn(recorded("interleaved"), tmp_path)
    assert picture.text == (
        "bubble 0.4 measured, 0.375 by the formula ((p - 1)/(v m) with p = 4, m = 8, v = 2), 0.38 simulated; "
        "on gpu[01-02]"
    )


def test_of_many_nodes_the_worst_is_drawn(tmp_path: Path) -> None:
    checks = [
        bubble_check(recorded(ranks=2, bubble_excess=excess), f"gpipe-inside-{node}", (node,))
        for node, excess in zip(("gpu01", "gpu02", "gpu03"), (0.01, 0.3, 0.02), strict=True)
    ]
    pictures = schedules.draw([*checks, bubble_check(recorded())], tmp_path)
    assert [picture.title for picture in pictures] == [
        "one_f_one_b inside a node",
        "one_f_one_b across nodes",
    ]
    assert pictures[0].text.endswith("; on gpu02, the worst of 3 places")


def test_only_the_worst_is_read_and_where_it_is_malformed_the_next(tmp_path: Path) -> None:
    """Of 64 nodes that is one schedule of 64, each with a thousand operations."""
    checks = [
        bubble_check(recorded(ranks=2, bubble_excess=number / 10), f"gpipe-inside-n{number}", (f"n{number}",))
        for number in range(4)
    ]
    with mock.patch.object(schedules, "_schedule", wraps=schedules._schedule) as read:
        assert "on n3, " in schedules.draw(checks, tmp_path)[0].text
        assert read.call_count == 1
        checks[3].recorded["schedule"]["ranks"][0]["said"]["operations"] = None
        assert "on n2, " in schedules.draw(checks, tmp_path)[0].text


def test_a_long_schedule_takes_little_longer_to_draw_than_a_short_one(tmp_path: Path) -> None:
    """Sixteen ranks of an interleaved one have 2,048 bars: 15 times as long if matplotlib draws each."""
    took = []
    for ranks in (2, 2, 16, 16):  # the first loads what all need
        kept, begun = recorded("interleaved", ranks=ranks), time.process_time()
        schedules.draw([bubble_check(kept)], tmp_path)
        took.append(time.process_time() - begun)
    assert min(took[2:]) < 6 * took[1]


def test_how_much_is_drawn_is_bounded(tmp_path: Path) -> None:
    many = [recorded(ranks=2) for _ in range(schedules.MOST_PICTURES + 4)]
    for number, kept in enumerate(many):
        kept["schedule"]["step"] = f"pipeline.number_{number}"
    assert len(schedules.draw([bubble_check(kept) for kept in many], tmp_path)) == schedules.MOST_PICTURES
    picture, root = drawn(recorded(ranks=schedules.MOST_ROWS + 2), tmp_path)
    assert len(boxes(root)) == schedules.MOST_ROWS
    assert picture.text.endswith("; 2 more ranks are not drawn")
    assert "p = 18, m = 36" in picture.text


def test_only_the_first_of_many_pipelines_is_drawn(tmp_path: Path) -> None:
    kept = recorded()
    other = recorded()["schedule"]["ranks"]
    for rank in other:
        rank["said"]["pipeline"] = 1
    kept["schedule"]["ranks"] = [*other, *kept["schedule"]["ranks"]]
    assert len(boxes(drawn(kept, tmp_path)[1])) == 4


def test_hostile_text_stays_text_and_the_policy_holds(tmp_path: Path) -> None:
    kept = recorded()
    kept["schedule"]["step"] = f"pipeline.{EVIL}"
    for rank in kept["schedule"]["ranks"]:
        rank["node"] = EVIL * 100
        rank["said"]["formula"] = EVIL * 100
    picture, root = drawn(kept, tmp_path)
    drawing = ("svg", "g", "defs", "path", "use", "text", "title", "clipPath", "rect")
    assert {element.tag for element in root.iter()} == {f"{SVG}{tag}" for tag in drawing}
    attributes = [pair for element in root.iter() for pair in element.attrib.items()]
    assert not [name for name, _ in attributes if name.startswith("on") or name == "style"]
    assert all(value.startswith("#") for name, value in attributes if name.endswith("href"))
    assert max(len(word) for word in words(root)) < 60
    text = (tmp_path / picture.file).read_text() + picture.text + picture.file
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script" not in (tmp_path / picture.file).read_text()
    assert picture.file == "plots/schedule-1-script-alert-1-script.svg"


def test_any_letter_may_stand_in_a_name_and_none_makes_a_formula_of_it(tmp_path: Path) -> None:
    kept = recorded()
    for rank in kept["schedule"]["ranks"]:
        rank["node"] = "$\\frac$日本"
    assert "rank 0 on $\\frac$日本" in words(drawn(kept, tmp_path)[1])


BAD_OPERATIONS: list[object] = [
    None,
    "text",
    [],
    [None],
    [["F", 0, 0, 0.0]],
    [["X", 0, 0, 0.0, 1.0]],
    [[["F"], 0, 0, 0.0, 1.0]],
    [["F", "0", 0, 0.0, 1.0]],
    [["F", 0, 10**400, 0.0, 1.0]],
    [["F", 0, 0, 1.0, 0.5]],
    [["F", 0, 0, -1.0, 0.5]],
    [["F", 0, 0, 0.0, 5e-324]],
    [["F", 0, 0, 0.0, "NaN"]],
    [["F", 0, 0, 0.0, float("inf")]],
    [["F", 0, 0, float("nan"), 1.0]],
    [["F", 0, 0, 0.0, 1.0]] * 100_000,
]


@each("operations", BAD_OPERATIONS)
def test_a_rank_that_says_nonsense_costs_the_picture_and_not_the_page(
    tmp_path: Path, operations: object
) -> None:
    kept = recorded()
    kept["schedule"]["ranks"][1]["said"]["operations"] = operations
    assert 'id="schedules"' not in page(journal_of(bubble_check(kept)), tmp_path)
    assert not list(tmp_path.glob("plots/*"))


@each(
    "schedule",
    [None, "text", [], {}, {"step": "x"}, {"step": 1, "ranks": []}, {"step": "x", "ranks": [1, {"said": 2}]}],
)
def test_what_is_no_schedule_has_no_picture(tmp_path: Path, schedule: object) -> None:
    assert schedules.draw([bubble_check({"schedule": schedule}), bubble_check({})], tmp_path) == []


@each("figures", [None, [], {}, {"bubble": "NaN"}, {"bubble": 10**400, "bubble_formula": float("nan")}])
def test_a_schedule_without_figures_says_so(tmp_path: Path, figures: object) -> None:
    picture, root = drawn({**recorded(), "figures": figures}, tmp_path)
    assert picture.text.startswith("bubble unknown measured, unknown by the formula")
    assert "end by the formula" not in words(root)


def test_the_page_shows_the_picture_and_its_caption(tmp_path: Path) -> None:
    text = page(journal_of(bubble_check(recorded())), tmp_path)
    assert text.index('id="trouble"') < text.index('id="checks"') < text.index('id="schedules"')
    assert 'src="plots/schedule-1-one-f-one-b.svg" width="1120"' in text
    assert "bubble 0.4 measured" in text
