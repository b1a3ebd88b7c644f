"""The results of all trials: JSON lines, so that no trial is done twice, and a table of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from tests.bounds import sentence
from tests.faults.rows.catalogue import CANNOT, CATALOGUE, ROWS

Key = tuple[str, int, int, bool]  # row, repeat, seed, and whether a foreign program was busy beside it


@dataclass(frozen=True)
class Result:
    """One trial of one row. `report` is where its report was kept, "" when all was right and it is gone."""

    row: str
    repeat: int
    seed: int
    busy: bool
    drawn: tuple[str, ...]
    seconds: float
    noticed: bool
    misnamed: tuple[str, ...]  # the healthy nodes that were named
    wrong: tuple[str, ...]
    report: str = ""

    @property
    def key(self) -> Key:
        """The trial that this is the result of."""
        return self.row, self.repeat, self.seed, self.busy

    def __str__(self) -> str:
        where = f"repeat {self.repeat}, seed {self.seed}, on {', '.join(self.drawn) or 'nobody'}"
        return f"{self.row} ({where}): {'; '.join(self.wrong) or 'right'}; its report: {self.report}"


class Results:
    """The results so far. Without a file they are kept for this process alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._kept = {result.key: result for result in _read(path)} if path and path.exists() else {}

    @property
    def last_seed(self) -> int | None:
        """The seed of the last result, which is used for all further trials."""
        return next((result.seed for result in reversed(self._kept.values())), None)

    def of(self, key: Key) -> Result | None:
        """The result of one trial, if it has one."""
        return self._kept.get(key)

    def add(self, result: Result) -> None:
        """Keep a result: it is in the file before anything else happens."""
        self._kept[result.key] = result
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def _read(path: Path) -> list[Result]:
    """Read complete lines; a last line that was cut off by a kill is dropped, so its trial has no result."""
    *lines, rest = path.read_text().split("\n")
    if rest:
        path.write_text("".join(f"{line}\n" for line in lines))
    return [TypeAdapter(Result).validate_json(line) for line in lines]


def table(results: Sequence[Result]) -> Iterator[str]:
    """A Markdown table: how many trials of each row were right, which faults are not planted, all rates."""
    yield "| # | row | fault | right | healthy node named | seconds |"
    yield "|---|---|---|---|---|---|"
    for row in ROWS:
        if trials := [one for one in results if one.row == row.name]:
            right, misnamed = _counts(trials)
            seconds = [one.seconds for one in trials]
            spread = f"{min(seconds):.0f} to {max(seconds):.0f}"
            cells = (row.catalogue, row.name, row.fault, f"{right} of {len(trials)}", misnamed, spread)
            yield f"| {' | '.join(map(str, cells))} |"
    for no in CANNOT:
        yield f"| {no.catalogue} | | {CATALOGUE[no.catalogue]}: {no.fault}: not here: {no.reason} | | | |"
    yield ""
    faults = {row.name for row in ROWS if row.expect.status != (0,)}
    there = [one for one in results if one.row in faults]
    right, misnamed = _counts(results)
    yield sentence(right, len(results), "right")
    yield sentence(sum(not one.noticed for one in there), len(there), "missed")
    yield sentence(misnamed, len(results), "a healthy node named")


def _counts(trials: Sequence[Result]) -> tuple[int, int]:
    """How many were right, and how many named a healthy node."""
    return sum(not one.wrong for one in trials), sum(bool(one.misnamed) for one in trials)
