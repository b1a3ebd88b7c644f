"""What Prometheus scrapes: the newest verdict of each node, whichever run gave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reports.__main__ import main
from reports.record import Record
from tests.reports.making import end, green, rejected, run, save

LATER = "2026-11-21T08:00:00+00:00"


def dated(records: Sequence[Record], ended: str) -> list[Record]:
    return [*records[:-1], end(ended=ended, pytest_status=0)]


def scraped(capsys: pytest.CaptureFixture[str], *places: Path) -> dict[str, float]:
    """Every sample by its name and labels."""
    assert main(["metrics", *map(str, places)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in told)}


def test_the_newest_run_says_what_a_node_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of three verdicts one is 1; the order of the directories means nothing."""
    old, new = tmp_path / "old", tmp_path / "new"
    save(rejected(), old)
    save(dated(green(), LATER), new)
    about = 'workload="dense",hardware="h100"'
    for places in ((old, new), (new, old)):
        found = scraped(capsys, *places)
        assert {
            name: found[f'shakedown_node_verdict{{node="gpu02",verdict="{name}",{about}}}']
            for name in ("accepted", "rejected", "unproven")
        } == {"accepted": 1, "rejected": 0, "unproven": 0}
        assert found['shakedown_node_judged_timestamp_seconds{node="gpu02"}'] == 1795248000
    found = scraped(capsys, old)
    assert found[f'shakedown_node_verdict{{node="gpu02",verdict="rejected",{about}}}'] == 1
    assert found[f'shakedown_node_verdict{{node="gpu02",verdict="accepted",{about}}}'] == 0


def test_a_run_that_was_cut_off_or_selected_checks_accepts_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first is the newest word on its nodes, and red; the second is no word on them."""
    cut, chosen = tmp_path / "cut", tmp_path / "chosen"
    save(green()[:-1], cut)
    selected = replace(run(), selection="-k pair")
    save([selected, *dated(green(), LATER)[1:]], chosen)
    found = scraped(capsys, cut, chosen)
    assert {name for name, value in found.items() if value == 1} == {
        f'shakedown_node_verdict{{node="{node}",verdict="unproven",workload="dense",hardware="h100"}}'
        for node in ("gpu01", "gpu02")
    }


def test_a_run_whose_end_is_torn_was_judged_when_it_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = save(green(), tmp_path)
    journal.write_bytes(journal.read_bytes()[:-9])
    assert scraped(capsys, tmp_path)['shakedown_node_judged_timestamp_seconds{node="gpu02"}'] == 1795183923


def test_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = replace(run(), workload='a "b" \\c')
    save([odd, *green()[1:]], tmp_path)
    assert any(r'workload="a \"b\" \\c"' in name for name in scraped(capsys, tmp_path))
