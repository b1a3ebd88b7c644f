"""Which module may import which: a table with a reason per row, and the check of a tree against it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.house.tree import sources, walked

HOUSE = ("fixtures", "suites", "thresholds", "reports", "tests", "conftest")
RECORDS = ("reports.record", "reports.journal")


@dataclass(frozen=True)
class Room:
    """Files (a glob, the first row that matches counts), what they may import, and why.

    `may` names modules of this project with all that is below them, `packages` those from elsewhere.
    """

    files: str
    may: tuple[str, ...]
    packages: tuple[str, ...]
    because: str

    def holds(self, path: Path) -> bool:
        """Whether a file is in this room: `*` stands for part of one name, `**/` for any folders."""
        pieces = {"**/": "(?:.*/)?", "*": "[^/]*"}
        pattern = re.sub(r"\*\*/|\*|\.", lambda found: pieces.get(found[0], r"\."), self.files)
        return re.fullmatch(pattern, path.as_posix()) is not None


def violations(root: Path, table: tuple[Room, ...]) -> Iterator[str]:
    """Every import that its room does not allow, every file without a room, every room without a file."""
    used = set()
    for path in sources(root):
        room = next((row for row in table if row.holds(path)), None)
        if room is None:
            yield f"{path}: no row of the import table is about this file"
            continue
        used.add(room)
        for line, module in imported(root, path):
            if not _allowed(module, room):
                yield f"{path}:{line}: imports {module}; {room.files} may not: {room.because}"
    for row in table:
        if row not in used:
            yield f"the import table has a row for {row.files}, but there is no such file"


def imported(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that a file imports, wherever in the file it does so."""
    for node in walked(root / path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, name) for name in _from(root, path, node))


def _from(root: Path, path: Path, node: ast.ImportFrom) -> Iterator[str]:
    package = path.parent.parts[: len(path.parent.parts) - node.level + 1] if node.level else ()
    module = ".".join([*package, *([node.module] if node.module else [])])
    for alias in node.names:
        inner = f"{module}.{alias.name}"
        yield inner if _is_module(root, inner) else module


def _is_module(root: Path, name: str) -> bool:
    place = root.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or place.is_dir()


def _allowed(module: str, room: Room) -> bool:
    top = module.split(".", maxsplit=1)[0]
    if top in HOUSE:
        return any(f"{module}.".startswith(f"{allowed}.") for allowed in room.may)
    return top in sys.stdlib_module_names or top in (*room.packages, "_typeshed")
