"""The files of a tree that is checked against the rules: this checkout, or one made by a test."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IGNORED = {".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", "__pycache__"}


OUTPUT = {Path("reports", name) for name in ("out", "runs", "gpu")}


def files(root: Path) -> Iterator[Path]:
    """Every file below `root` that belongs to the tree, relative to it and sorted."""
    for folder, folders, names in os.walk(root):
        place = Path(folder).relative_to(root)
        folders[:] = sorted(name for name in folders if name not in IGNORED and place / name not in OUTPUT)
        yield from (place / name for name in sorted(names) if name not in IGNORED)


def sources(root: Path, *folders: str) -> Iterator[Path]:
    """The Python files of these top-level folders (all when none is named)."""
    for path in files(root):
        if path.suffix == ".py" and (not folders or path.parts[0] in folders):
            yield path


@cache
def walked(path: Path) -> tuple[ast.AST, ...]:
    """Every node of one file; cached, because most rules look at each."""
    return tuple(ast.walk(parsed(path)))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of one file; cached, because every rule asks for it."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain; "" when it does not start at a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""
