"""What is wrong with a hardware file: every fault of it, each with its line and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in one place, and what to do about it."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


class HardwareFileError(Exception):
    """A hardware file that cannot be used; `faults` holds all that is wrong with it, by line."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(sorted(set(faults), key=lambda fault: (fault.file, fault.line, fault.text)))
        super().__init__("\n".join(str(fault) for fault in self.faults))
