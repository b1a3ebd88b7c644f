"""A test over a table is one test, and says of every faulty row what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.each import each


def test_all_faulty_rows_are_told_and_no_other() -> None:
    @each(("number", "square"), [(1, 1), (2, 5), (3, 9), (4, 17)])
    def squares(number: int, square: int) -> None:
        found = number**2
        assert found == square

    with pytest.raises(AssertionError) as failed:
        squares()
    assert [line for line in str(failed.value).splitlines() if line.startswith("(")] == [
        f"({number}, {square}): assert {number**2} == {square}" for number, square in ((2, 5), (4, 17))
    ]


def test_a_row_in_which_nothing_was_raised_is_faulty_and_a_table_without_rows_too() -> None:
    def refused(text: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(text)

    with pytest.raises(AssertionError, match=r"\('1',\): DID NOT RAISE"):
        each("text", ["x", "1"])(refused)()
    with pytest.raises(AssertionError, match="without rows"):
        each("text", [])(refused)()


@each("name", ["a", "b"])
def test_fixtures_are_handed_on(tmp_path: Path, name: str) -> None:
    assert not (tmp_path / name).exists()
