"""Every fault of the catalogue is planted for real, found, and blamed on the right part and nobody else.

`make faults` runs all of them for hours; `-k NAME` selects, and `--repeats N` draws other nodes each time.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from fixtures.run.provenance import ROOT
from tests.faults.results import Result, Results, table
from tests.faults.rows import catalogue
from tests.faults.rows.catalogue import CANNOT, CATALOGUE, ROWS, TOGETHER, USUAL
from tests.faults.rows.row import Row
from tests.faults.trial import Campaign, draw, together

NODES = ("n01", "n02", "n03", "n04")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All rows once before the next repeat, so that each is seen early."""
    if "repeat" in metafunc.fixturenames:
        repeats = metafunc.config.getoption("repeats", None) or 1
        pairs = [(row, repeat) for repeat in range(repeats) for row in ROWS]
        names = [row.name if repeats == 1 else f"{row.name}-{repeat}" for row, repeat in pairs]
        marks = [USUAL.get(row.name, (pytest.mark.long,)) for row, _ in pairs]
        trials = zip(pairs, marks, names, strict=True)
        given = [pytest.param(*pair, marks=mark, id=name) for pair, mark, name in trials]
        metafunc.parametrize(("row", "repeat"), given)


@pytest.mark.lab
@pytest.mark.catalogue
@pytest.mark.usefixtures("require_lab")
def test_the_fault_is_found_and_blamed(row: Row, repeat: int, campaign: Campaign, tmp_path: Path) -> None:
    result = campaign.result(row, repeat, tmp_path / "trial")
    assert not result.wrong, str(result)


@pytest.mark.lab
@pytest.mark.usefixtures("require_lab")
@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names[0])
def test_faults_of_several_nodes_are_found_each_on_its_own(
    names: tuple[str, ...], campaign: Campaign, tmp_path: Path
) -> None:
    rows = {row.name: row for row in ROWS}
    assert together([rows[name] for name in names], 2, campaign.seed, tmp_path) == []


# the rows


def test_rows_have_names_of_their_own_and_places_in_the_catalogue() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) == 111
    assert len({row.fault for row in ROWS}) == len(ROWS)
    assert {*(row.catalogue for row in ROWS), *(one.catalogue for one in CANNOT)} == set(CATALOGUE)
    assert {row.name for row in ROWS} >= set(USUAL).union(*TOGETHER)


def test_no_row_selects_tests() -> None:
    """A selection accepts nobody, so that it would say nothing of healthy nodes."""
    sources = [path.read_text() for path in Path(inspect.getfile(catalogue)).parent.glob("*.py")]
    assert not any('"-k"' in text or '"-m"' in text for text in sources)


def test_a_seed_draws_the_same_nodes_again_and_repeats_differ() -> None:
    first = [draw(NODES, 1, 7, "link-slow", repeat) for repeat in range(40)]
    assert first == [draw(NODES, 1, 7, "link-slow", repeat) for repeat in range(40)]
    assert {node for (node,) in first} == set(NODES)
    assert first != [draw(NODES, 1, 8, "link-slow", repeat) for repeat in range(40)]
    assert first != [draw(NODES, 1, 7, "power-off", repeat) for repeat in range(40)]
    assert all(len(set(draw(NODES, 2, 7, "two", repeat))) == 2 for repeat in range(40))


# what is kept


def result(row: str, repeat: int, *wrong: str, busy: bool = True, misnamed: tuple[str, ...] = ()) -> Result:
    report = "kept/here" if wrong else ""
    return Result(row, repeat, 7, busy, ("n02",), 12.0 + repeat, not wrong, misnamed, wrong, report)


def test_a_line_that_was_cut_off_is_a_trial_without_result(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results"
    first, second = result("off", 0), result("off", 1, "no", misnamed=("n01",))
    for one in (first, second):
        Results(file).add(one)
    file.write_text(file.read_text()[:-20])
    again = Results(file)
    assert (again.of(first.key), again.of(second.key), again.last_seed) == (first, None, 7)
    again.add(second)
    assert Results(file).of(second.key) == second


@pytest.mark.lab
@pytest.mark.usefixtures("require_lab")
def test_finished_trials_are_not_run_again_and_a_wrong_one_stays_red(tmp_path: Path) -> None:
    """Two rows of which every trial has its result, so that no lab is made."""
    kept = [result(row, repeat) for repeat in (0, 1) for row in ("host-key-changed", "held")]
    kept[3] = result("held", 1, "n02 is accepted, not unproven")
    file = tmp_path / "results"
    file.write_text(text := "".join(json.dumps(asdict(one)) + "\n" for one in kept))
    argv = [sys.executable, "-m", "pytest", __file__, "-m", "catalogue", "-p", "no:cacheprovider"]
    argv += ["-k", "host-key-changed or held", "--repeats", "2", "--busy", "--results", str(file)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, file.read_text()) == (1, text), done.stdout
    assert "1 failed, 3 passed" in done.stdout
    wrong = "held (repeat 1, seed 7, on n02): n02 is accepted, not unproven; its report: kept/here"
    assert wrong in done.stdout
    assert "| 25 | host-key-changed | host key has changed | 2 of 2 | 0 | 12 to 13 |" in done.stdout
    assert "| 26 | held | an older run holds the node | 1 of 2 | 0 | 12 to 13 |" in done.stdout
    assert "missed: 1 of 4" in done.stdout


def test_the_table_has_the_exact_bounds_and_what_is_not_planted() -> None:
    healthy = [result("healthy", repeat) for repeat in range(29)]
    named = result("healthy", 29, "n04 named without a fault", misnamed=("n04",))
    lines = list(table([*healthy, named]))
    assert "| 0 | healthy | nothing at all | 29 of 30 | 1 | 12 to 41 |" in lines
    assert lines[-1].startswith("a healthy node named: 1 of 30 (3.3%), between 0.1% and 17.2% with 95%")
    assert lines[-2] == "missed: no trial"
    assert all(any(one.reason in line for line in lines) for one in CANNOT)
