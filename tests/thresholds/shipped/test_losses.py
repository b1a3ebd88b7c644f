"""How much of a published figure each row lets go: said of every row, and a fault where nobody says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.each import each
from tests.thresholds.files import GOOD, loaded, whole
from thresholds import losses
from thresholds.__main__ import main
from thresholds.hardware import Hardware
from thresholds.losses import MOST, Figure, Loss, figures
from thresholds.units import METRICS

CASE = (("nodes", 2), ("collective", "all_reduce"), ("path", "network"))


def figure(value: float, size: int | None = 8 << 30) -> Figure:
    return Figure(("small",), "busbw", CASE, size, value, "example/repository@0000000 file:3")


def loss(
    *values: float, size: int | None = 8 << 30, loose: str = "", monkeypatch: pytest.MonkeyPatch
) -> Loss:
    """Of the floor of 80 GB/s of the small file, beside these figures of its case."""
    monkeypatch.setattr(losses, "figures", lambda: tuple(figure(value, size) for value in values))
    hardware = loaded(GOOD)
    rows = tuple(replace(row, loose=loose) for row in hardware.limits)
    (found,) = losses.losses(replace(hardware, limits=rows))
    return found


@each("hardware", whole().values())
def test_every_shipped_row_is_below_what_was_published_and_says_why_where_it_lets_much_go(
    hardware: Hardware,
) -> None:
    found = losses.losses(hardware)
    floors = [row for row in hardware.limits if METRICS[row.metrics[0]].better == "more"]
    assert [one.row for one in found] == floors
    assert not [one.fault for one in found if one.fault]


def test_every_figure_names_files_that_are_shipped_and_judges_in_one() -> None:
    names = {name for one in figures() for name in one.files}
    known = {name for file in whole().values() for name in (file.name, *(path.stem for path in file.extends))}
    assert names <= known
    used = {one.figure for file in whole().values() for one in losses.losses(file) if one.figure}
    assert len(used) > 45
    assert all(len(one.source) > 8 for one in figures())


@each(
    ("value", "size", "loose", "words"),
    [
        (90.0, 8 << 30, "", ""),
        (80 / (1 - MOST) + 1, 8 << 30, "", "raise it, or say in loose"),
        (80 / (1 - MOST) + 1, 8 << 30, "nobody knows which algorithm it took", ""),
        (79.0, 8 << 30, "", "would reject the machine"),
        (79.0, 8 << 30, "nobody knows which algorithm it took", "would reject the machine"),
        (79.0, 512 << 20, "", ""),  # a smaller size need not reach the floor of a larger
    ],
)
def test_what_is_a_fault(value: float, size: int, loose: str, words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        found = loss(value, size=size, loose=loose, monkeypatch=patch).fault
    assert words in found if words else not found


def test_lint_prints_the_loss_of_every_row_and_fails_where_much_goes_unsaid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "small.toml"
    path.write_text(GOOD)
    assert main(["lint", str(path)]) == 0
    assert "nobody published a healthy figure" in capsys.readouterr().out
    monkeypatch.setattr(losses, "figures", lambda: (figure(120.0),))
    assert main(["lint", str(path)]) == 1
    assert "33.3% may be lost, 80 of 120 GB/s" in capsys.readouterr().err
    path.write_text(GOOD.replace("min = 80.0", 'min = 80.0\nloose = "a ring is as healthy here"'))
    assert main(["lint", str(path)]) == 0


def test_a_figure_of_a_nearer_file_replaces_that_of_a_farther() -> None:
    copies = [
        one for one in losses.losses(whole()["h200-ndr400"]) if one.figure and "copy" in one.row.metrics
    ]
    assert [one.figure.value for one in copies if one.figure] == [4010.0]


@each(("values", "rejects", "worst"), [((90.0, 120.0), False, 120.0), ((120.0, 79.0), True, 79.0)])
def test_of_several_figures_of_one_case_each_is_held_against_the_row(
    values: tuple[float, float], rejects: bool, worst: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = loss(*values, monkeypatch=monkeypatch)
    assert found.figure
    assert (found.rejects, found.figure.value) == (rejects, worst)
