"""The table of senders and receivers that a search saw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from reports.page import searches
from reports.record import Outcome
from tests.each import each
from tests.reports.making import PAIR, check, journal_of, page


def reading(source: str, destination: str, bad: bool = False) -> dict[str, Any]:
    return {
        "from": source,
        "to": destination,
        "bad": bad,
        "sentence": f"{source} to {destination}",
        "round": 1,
    }


def searched(*readings: object, **changes: object) -> dict[str, Any]:
    return {"sentence": "the link of n2 is slow", "rounds": 4, "readings": list(readings), **changes}


def found(search: object) -> searches.Searched | None:
    return searches.of(replace(check(PAIR, outcome=Outcome.FAIL), recorded={"search": search}))


def test_nodes_on_bad_paths_come_first_and_the_worst_reading_counts() -> None:
    table = found(
        searched(reading("n1", "n3"), reading("n2", "n1"), reading("n2", "n1", bad=True), reading("n1", "n2"))
    )
    assert table is not None
    assert set(table.nodes[:2]) == {"n1", "n2"}
    cells = {
        (sender, receiver): cell
        for sender, row in table.rows
        for receiver, cell in zip(table.nodes, row, strict=True)
    }
    assert cells["n2", "n1"].word == "bad"
    assert cells["n2", "n1"].text == "1 of 2 readings are bad; n2 to n1"
    assert (cells["n1", "n2"].word, cells["n3", "n1"].word) == ("good", "")


def test_a_cell_has_the_lowest_speed_of_what_made_it_good_or_bad() -> None:
    speeds = (40.0, False), (3.25, True), (2.5, True), (None, True)
    table = found(
        searched(*({**reading("n1", "n2", bad), "gigabytes_per_s": speed} for speed, bad in speeds))
    )
    assert table is not None
    assert [cell.figure for _, row in table.rows for cell in row if cell.word] == ["2.5"]


def test_readings_of_more_than_two_nodes_are_shown_as_a_group() -> None:
    together = {**reading("n1", "n3", bad=True), "group": ["n1", "n2", "n3"], "sentence": "too slow"}
    pair = {**reading("n1", "n3"), "group": ["n1", "n3"]}
    table = found(searched(together, together, pair))
    assert table is not None
    assert sorted(cell.word for _, row in table.rows for cell in row) == ["", "", "", "good"]
    [(group, cell)] = table.groups
    assert group == ("n1", "n2", "n3")
    assert (cell.word, cell.text) == ("bad", "2 of 2 readings are bad; too slow")


def test_many_nodes_are_cut_and_counted() -> None:
    table = found(searched(*(reading(f"n{number}", "hub") for number in range(20))))
    assert table is not None
    assert (len(table.nodes), table.left_out) == (searches.MOST_NODES, 21 - searches.MOST_NODES)


@each(
    "search",
    [
        None,
        "text",
        {},
        searched(rounds=0),
        searched(rounds="often"),
        {"rounds": 4, "readings": []},
        *(searched(readings=odd) for odd in (None, "text", [1], [{"from": 1, "to": "n2"}], [{"from": "n1"}])),
    ],
)
def test_what_is_no_search_has_no_table(search: object) -> None:
    assert found(search) is None


def test_the_page_shows_the_table(tmp_path: Path) -> None:
    three = {**reading("gpu01", "gpu03", bad=True), "group": ["gpu01", "gpu02", "gpu03"]}
    search = searched(reading("gpu01", "gpu02", bad=True), reading("gpu02", "<b>"), three)
    records = journal_of(replace(check(PAIR, outcome=Outcome.FAIL), recorded={"search": search}))
    text = page(records, tmp_path)
    assert 'title="1 of 1 readings are bad; gpu01 to gpu02">bad</td>' in text
    assert 'together: bad <span class="quiet">(1 of 1 readings are bad; gpu01 to gpu03)' in text
    assert "<b>" not in text.split('class="paths"')[1].split("</table>")[0]
