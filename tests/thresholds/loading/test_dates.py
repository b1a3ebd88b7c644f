"""Lint warns of limits that nobody has looked at for years; a run never depends on today's date."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tests.each import each
from tests.thresholds.files import FIRST, GOOD, changed, loaded
from thresholds.__main__ import main
from thresholds.loading.rules import dates

DAY = datetime.date(2026, 5, 1)  # of both rows


@each(
    ("today", "words"),
    [
        (DAY, ""),
        (datetime.date(2029, 4, 30), ""),
        (datetime.date(2029, 6, 1), "its date 2026-05-01 is 3 years ago; see whether the source still holds"),
        (datetime.date(2036, 5, 1), "its date 2026-05-01 is 10 years ago"),
        (datetime.date(2026, 4, 30), "its date 2026-05-01 is in the future; today is 2026-04-30"),
    ],
)
def test_old_and_impossible_dates_are_told(today: datetime.date, words: str) -> None:
    said = list(dates(loaded(), today))
    assert len(said) == (2 if words else 0)
    assert all(words in warning for warning in said)
    assert not words or said[0].startswith(f"small.toml:{FIRST}: ")


def test_lint_prints_a_warning_and_is_still_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.toml"
    path.write_text(changed("date = 2026-05-01", "date = 1999-05-01"))
    assert main(["lint", str(path)]) == 0
    assert f"warning: old.toml:{FIRST}: its date 1999-05-01 is" in capsys.readouterr().err
    path.write_text(GOOD.replace("2026-05-01", "2999-05-01"))
    assert main(["lint", str(path)]) == 0
    assert capsys.readouterr().err.count("is in the future") == 2
