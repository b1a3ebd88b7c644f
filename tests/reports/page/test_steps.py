"""The parallel steps beside what they are held to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports.page import steps
from reports.record import CheckRecord, Judgement, Outcome
from tests.each import each
from tests.reports.making import NODES, check, every_page, green_checks, journal_of, page

PASS, FAIL = Outcome.PASS, Outcome.FAIL


def held(metric: str, value: float, limit: str, asked: float | None, outcome: Outcome = PASS) -> Judgement:
    return Judgement(metric, outcome, f"{metric} {value}", value, "", limit, asked)


def parity(error: float, tolerance: float = 0.01) -> Judgement:
    return held("parity", error, f"<= {tolerance}", tolerance, PASS if error <= tolerance else FAIL)


def step(test: str, name: str, *judgements: Judgement, **recorded: Any) -> CheckRecord:
    outcome = FAIL if any(one.outcome is FAIL for one in judgements) else PASS
    where = f"suites/zero/test_zero.py::test_{test}[{name}]"
    return check(where, NODES, outcome, judgements=judgements, recorded=recorded)


def table(checks: list[CheckRecord]) -> steps.Table:
    found = steps.table(checks)
    assert found is not None
    return found


def test_what_is_in_trouble_comes_first_and_then_the_thinnest_margin() -> None:
    checks = [
        step("parity", "zero1", parity(0.004)),
        step("parity", "zero2", parity(0.009)),
        step("parity", "zero3", parity(0.001)),
        step("traffic", "zero3", held("traffic", 5, "exactly", None, FAIL)),
    ]
    family = table(checks)
    assert [one.name for one in family.steps] == ["zero3", "zero2", "zero1"]
    assert [one.outcome for one in family.steps] == [FAIL, PASS, PASS]


@each(
    ("judgement", "text"),
    [
        (parity(0.004), "40 %"),
        (parity(0.02), "200 %"),
        (held("pattern", 4.0, ">= 1 GB/s", 1.0), "25 %"),
        (held("pattern", 0.5, ">= 1 GB/s", 1.0, FAIL), "200 %"),
        (held("traffic", 96, "exactly", None), "exact"),
        (held("traffic", 97, "exactly", None, FAIL), "97"),
        (held("parity", float("nan"), "<= 0.1", 0.1, FAIL), "NaN"),
    ],
)
def test_a_cell_says_how_much_of_the_limit_is_used(judgement: Judgement, text: str) -> None:
    family = table([step("parity", "zero1", parity(0.0)), step("x", "zero2", judgement)])
    row = next(one for one in family.steps if one.name == "zero2")
    cell = row.cells[family.metrics.index(judgement.metric)]
    assert (cell.text, cell.outcome) == (text, judgement.outcome)


def test_the_worst_of_several_judgements_of_a_metric_is_shown() -> None:
    family = table([step("parity", "zero1", parity(0.009), parity(0.03), parity(0.001))])
    assert family.steps[0].cells[0].text == "300 %"


def test_a_figure_stands_beside_its_formula() -> None:
    figures = {
        "bubble": 0.31,
        "bubble_formula": 0.25,
        "bubble_simulated": 0.27,
        "span": 2,
        "expected_span": 1,
    }
    family = table([step("parity", "gpipe", parity(0.0), figures=figures)])
    assert family.steps[0].figures == "bubble 0.31 (formula 0.25, simulated 0.27), span 2 (expected 1)"


def test_the_page_has_them_where_a_suite_compares_with_the_unsharded_model(tmp_path: Path) -> None:
    page(journal_of(step("parity", "zero1", parity(0.004))), tmp_path)
    assert 'id="steps"' in every_page(tmp_path)
    assert "40 %" in every_page(tmp_path)
    page(journal_of(*green_checks()), tmp_path)
    assert 'id="steps"' not in every_page(tmp_path)  # and the pages of before are gone
