"""How long files and functions may be, and how many modules a folder may hold."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.house.tree import files, sources, walked

FILE_LINES = 400
FUNCTION_LINES = 40
FOLDER_MODULES = 16
MEDIAN_LINES = 12
SOURCES = (".py", ".sh", ".css", ".j2", "")  # data and documents may be as long as they are


def long_files(root: Path) -> Iterator[str]:
    """Every source file above the limit."""
    for path in files(root):
        if path.suffix not in SOURCES:
            continue
        count = len((root / path).read_text(encoding="utf-8").splitlines())
        if count > FILE_LINES:
            yield f"{path}: {count} lines, at most {FILE_LINES}"


def crowded_folders(root: Path) -> Iterator[str]:
    """Every folder with more modules than a reader can look over."""
    modules = Counter(path.parent for path in sources(root) if path.name != "__init__.py")
    for folder, count in sorted(modules.items()):
        if count > FOLDER_MODULES:
            yield f"{folder}: {count} modules, at most {FOLDER_MODULES}"


def long_functions(root: Path) -> Iterator[str]:
    """Every function above the limit, and a median that is not small."""
    lengths = []
    for path in sources(root):
        for name, line, length in functions(root / path):
            lengths.append(length)
            if length > FUNCTION_LINES:
                yield f"{path}:{line}: {name} has {length} lines, at most {FUNCTION_LINES}"
    if lengths and median(lengths) >= MEDIAN_LINES:
        yield f"the median function has {median(lengths):g} lines, fewer than {MEDIAN_LINES} are asked for"


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, line and length (from `def` to its last line) of every function of a file."""
    for node in walked(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1
