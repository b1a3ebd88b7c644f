"""Code that runs on nodes: Python 3.10, and steps that are documented, registered, used and spelled right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from fixtures.transport.bundle import SENT
from tests.house.tree import dotted, parsed, sources

# Names of the standard library that are new in Python 3.11 or later and likely to be used, by module.
TOO_NEW = {
    "": {"tomllib", "BaseExceptionGroup", "ExceptionGroup", "PythonFinalizationError"},
    "asyncio": {"Barrier", "Runner", "TaskGroup", "timeout", "timeout_at"},
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"EnumCheck", "ReprEnum", "StrEnum", "member", "nonmember", "verify"},
    "hashlib": {"file_digest"},
    "inspect": {"getmembers_static"},
    "itertools": {"batched"},
    "logging": {"getLevelNamesMapping"},
    "math": {"cbrt", "exp2", "fma", "sumprod"},
    "operator": {"call"},
    "os": {"process_cpu_count", "setns", "unshare"},
    "pathlib": {"UnsupportedOperation"},
    "queue": {"ShutDown"},
    "re": {"NOFLAG"},
    "sys": {"exception", "monitoring"},
    "threading": {"setprofile_all_threads", "settrace_all_threads"},
    "types": {"get_original_bases"},
    "typing": {
        *("LiteralString", "Never", "NotRequired", "ReadOnly", "Required", "Self", "TypeAliasType", "TypeIs"),
        *("TypeVarTuple", "Unpack", "assert_never", "assert_type", "dataclass_transform", "get_overloads"),
        *("override", "reveal_type"),
    },
    "warnings": {"deprecated"},
}
TOO_NEW_METHODS = {"add_note", "is_junction", "with_segments"}  # methods of objects, so without a module


def is_remote(path: Path) -> bool:
    """Whether this file is sent to the nodes."""
    if path.parts[0] == "suites":
        return not path.name.startswith("test_")
    return path.parts[:2] in {("fixtures", name) for name in SENT}


def too_new(root: Path) -> Iterator[str]:
    """Syntax and names in remote code that Python 3.10 does not have."""
    for path in sources(root, "fixtures", "suites"):
        if not is_remote(path):
            continue
        try:
            tree = ast.parse((root / path).read_text(encoding="utf-8"), feature_version=(3, 10))
        except SyntaxError as error:
            yield f"{path}:{error.lineno}: not Python 3.10: {error.msg}"
            continue
        for line, name in _new_names(tree):
            yield f"{path}:{line}: {name} is not in Python 3.10"


def _new_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        for name in _names(node):
            module, _, last = name.rpartition(".")
            if last in TOO_NEW.get(module, set()) or last in TOO_NEW_METHODS:
                yield getattr(node, "lineno", 1), name


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
    elif isinstance(node, ast.Attribute):
        yield dotted(node) or f"?.{node.attr}"
    elif isinstance(node, ast.Name):
        yield node.id


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
