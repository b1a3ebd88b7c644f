"""Habits that the code base avoids; each has its exceptions with their reasons."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.house.tree import dotted, sources, walked

LIBRARY = ("fixtures", "suites", "thresholds", "reports")
EVERYWHERE = (*LIBRARY, "tests", "conftest.py")


@dataclass(frozen=True)
class Habit:
    """Something that is not done, where it is looked for, and the files that do it for a reason."""

    name: str
    found: Callable[[ast.AST], bool]
    folders: tuple[str, ...]
    instead: str
    excepted: Mapping[str, str] = field(default_factory=dict)  # file -> reason


def violations(root: Path, habit: Habit) -> Iterator[str]:
    """Every place that has the habit and is not excepted, and every exception that is not needed."""
    needed = set()
    for path in sources(root, *habit.folders):
        for node in walked(root / path):
            if not habit.found(node):
                continue
            needed.add(path.as_posix())
            if path.as_posix() not in habit.excepted:
                yield f"{path}:{getattr(node, 'lineno', 1)}: {habit.name}; {habit.instead}"
    for name in habit.excepted:
        if name not in needed:
            yield f"{name} is excepted from '{habit.name}' and has no need of it"


def calls(*names: str) -> Callable[[ast.AST], bool]:
    """Match a call of one of these dotted names."""
    return lambda node: isinstance(node, ast.Call) and dotted(node.func) in names


def sleeps(node: ast.AST) -> bool:
    """Match `time.sleep(...)`, and `sleep` imported from its module."""
    if isinstance(node, ast.ImportFrom):
        return node.module in ("time", "asyncio") and any(alias.name == "sleep" for alias in node.names)
    return calls("time.sleep", "asyncio.sleep")(node)


def shells(node: ast.AST) -> bool:
    """Match `shell=True` (or anything but the constant False) and the functions that always use a shell."""
    if not isinstance(node, ast.Call):
        return False
    keywords = {word.arg: word.value for word in node.keywords}
    given = keywords.get("shell")
    asked = given is not None and not (isinstance(given, ast.Constant) and given.value is False)
    return asked or dotted(node.func) in ("os.system", "os.popen", "subprocess.getoutput")


def broad_except(node: ast.AST) -> bool:
    """Match `except:`, `except Exception:` and `except BaseException:`, unless it raises again at its end."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    last = node.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(kind is None or dotted(kind) in ("Exception", "BaseException") for kind in caught)


def skips(node: ast.AST) -> bool:
    """Match pytest.skip, xfail, importorskip and their marks, called or not."""
    names = ("skip", "skipif", "xfail", "importorskip")
    if isinstance(node, ast.ImportFrom):
        return node.module == "pytest" and any(alias.name in names for alias in node.names)
    if not isinstance(node, ast.Attribute):
        return False
    return dotted(node) in {f"pytest.{name}" for name in names} | {f"pytest.mark.{name}" for name in names}


def evaluates(node: ast.AST) -> bool:
    """Match eval, exec and unpickling: files and nodes send data, never code."""
    unpickles = ("pickle.load", "pickle.loads", "marshal.loads", "torch.load")
    return calls("eval", "exec", *unpickles)(node)
