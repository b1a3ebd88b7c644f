"""The faults of a hardware file, each with its line (which tomllib does not keep) and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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


Path = tuple[str | int, ...]

_TOKEN = re.compile(
    r'(?P<string>"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\')'
    r"|(?P<comment>#[^\n]*)|(?P<open>[\[{])|(?P<close>[\]}])|(?P<line>\n)",
    re.DOTALL,
)
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_DOTTED})[ \t]*\]")
_KEY = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")


class Lines:
    """Line numbers of the tables and keys of a valid TOML text."""

    def __init__(self, text: str) -> None:
        self._lines: Mapping[Path, int] = dict(_index(text))

    def of(self, *path: str | int) -> int:
        """The line of a key, or of the nearest table around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


def _index(text: str) -> Iterator[tuple[Path, int]]:
    table: Path = ()
    counted: dict[Path, int] = {}
    for number, line in _statements(text):
        if header := _HEADER.match(line):
            table = _parts(header[2])
            if header[1] == "[[":
                counted[table] = counted.get(table, -1) + 1
                table = (*table, counted[table])
            yield table, number
        elif key := _KEY.match(line):
            yield (*table, *_parts(key[1])), number


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_PART, dotted))


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The lines on which a statement starts: not inside a multi-line string or array."""
    number, depth, start = 1, 0, 0
    for token in _TOKEN.finditer(text + "\n"):
        depth += (token.lastgroup == "open") - (token.lastgroup == "close")
        if token.lastgroup == "line" and depth <= 0:
            yield number, text[start : token.start()]
            number += text.count("\n", start, token.end())
            start = token.end()
