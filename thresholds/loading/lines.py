"""Where each key of a TOML file stands: tomllib keeps values only, and a fault needs its line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

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
