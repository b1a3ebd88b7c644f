"""Code that runs on nodes: which files it is, and steps that are documented, registered and used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from fixtures.transport.bundle import SENT
from tests.house.tree import dotted, parsed, sources


def is_remote(path: Path) -> bool:
    """Whether this file is sent to the nodes."""
    if path.parts[0] == "suites":
        return not path.name.startswith("test_")
    return path.parts[:2] in {("fixtures", name) for name in SENT}


def sent(root: Path) -> list[str]:
    """Every file that is sent to the nodes."""
    return [str(path) for path in sources(root, "fixtures", "suites") if is_remote(path)]


def steps(root: Path) -> Iterator[str]:
    """Every step that is undocumented, unregistered or unused, and every use of a step that is not there."""
    known: set[str] = set()
    for path in sources(root, "suites"):
        if path.name == "steps.py":
            for function in _public(root / path):
                known.add(f"{path.parent.name}.{function.name}")
                yield from _faults(path, function)
    used = dict(_used(root))
    yield from (f"{name} is a step that no test asks for" for name in sorted(known - used.keys()))
    yield from (f"{used[name]}: there is no step {name}" for name in sorted(used.keys() - known))


def _public(path: Path) -> Iterator[ast.FunctionDef]:
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def _faults(path: Path, function: ast.FunctionDef) -> Iterator[str]:
    decorators = {dotted(node).rsplit(".", 1)[-1] for node in function.decorator_list}
    if "step" not in decorators:
        yield f"{path}:{function.lineno}: {function.name} is public and not registered with @step"
    if not ast.get_docstring(function):
        yield f"{path}:{function.lineno}: {function.name} has no docstring"


def _used(root: Path) -> Iterator[tuple[str, str]]:
    folders = {path.parent.name for path in sources(root, "suites") if path.name == "steps.py"}
    pattern = re.compile(rf"(?:{'|'.join(sorted(folders))})\.[a-z_0-9]+") if folders else re.compile(r"(?!)")
    for path in sources(root, "suites", "fixtures"):
        if is_remote(path) or (path.parts[0] == "fixtures" and path.parts[1] != "blame"):
            continue  # apart from the tests, only a search asks for steps
        for node in ast.walk(parsed(root / path)):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and pattern.fullmatch(node.value)
            ):
                yield node.value, f"{path}:{node.lineno}"
