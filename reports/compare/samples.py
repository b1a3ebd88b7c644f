"""The checks of a journal with their samples, each read where it lies: together they may be gigabytes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

from reports.journal import Scan, check_in
from reports.record import CheckRecord


class Samples:
    """Reads single checks of a journal that was scanned, and in which no line was at fault."""

    def __init__(self, path: Path, content: Scan) -> None:
        self._path = path
        with path.open("rb") as file:
            starts = [0, *accumulate(len(line) for line in file)]
        pairs = zip(content.records, content.numbers, strict=True)
        self._at = {
            record.id: starts[number - 1] for record, number in pairs if isinstance(record, CheckRecord)
        }

    def check(self, name: str) -> CheckRecord:
        """Give a check with what its ranks answered, also where another check holds that."""
        with self._path.open("rb") as file:
            file.seek(self._at[name])
            return check_in(file.readline(), self._measurement)

    def _measurement(self, name: str) -> Mapping[str, object]:
        return self.check(name).measurement
