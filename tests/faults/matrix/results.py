"""What became of every trial: JSON lines, one appended after each, so that nothing is done twice."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

Key = tuple[str, int, int]


@dataclass(frozen=True)
class Result:
    """One trial of one row. `report` is where its report was kept, "" when it was right and is gone."""

    row: str
    repeat: int
    seed: int
    drawn: tuple[str, ...]
    status: int | None
    seconds: float
    detected: bool
    kind: bool
    name: bool
    healthy: int
    of: int
    misnamed: tuple[str, ...]
    rejected: tuple[str, ...]
    wrong: tuple[str, ...]
    report: str = ""

    @property
    def key(self) -> Key:
        """What this result is the result of."""
        return self.row, self.repeat, self.seed

    @property
    def right(self) -> bool:
        """Whether the run said what it must."""
        return not self.wrong


class Results:
    """The results so far. Without a file they are kept for this process alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found = {result.key: result for result in _read(path)} if path and path.exists() else {}

    @property
    def last_seed(self) -> int | None:
        """The seed of the last result, with which the rest is drawn as well."""
        return next((result.seed for result in reversed(self._found.values())), None)

    def of(self, key: Key) -> Result | None:
        """The result of one trial, if it has one."""
        return self._found.get(key)

    def add(self, result: Result) -> None:
        """Keep a result, on the disk before anything else happens."""
        self._found[result.key] = result
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")

    def among(self, keys: Iterable[Key]) -> list[Result]:
        """Those of these trials that have a result."""
        return [result for key in keys if (result := self._found.get(key)) is not None]


def _read(path: Path) -> list[Result]:
    """Read whole lines; a last one that was cut off by a kill is a trial that has no result."""
    *lines, rest = path.read_text().split("\n")
    if rest:
        path.write_text("".join(f"{line}\n" for line in lines))
    return [_result(json.loads(line)) for line in lines]


def _result(data: dict[str, object]) -> Result:
    lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
    return Result(**{**data, **lists})  # type: ignore[arg-type]
