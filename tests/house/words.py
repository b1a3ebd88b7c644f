"""Text that only makes sense where it was written, and what may be at the top of the tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.tree import IGNORED, files

TOP = {
    *(".ci", ".gitignore", "Makefile", "pyproject.toml", "conftest.py"),
    *("requirements.txt", "requirements-test.txt", "requirements-torch.txt"),
    *("LICENSE", "SECURITY.md", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("docs", "suites", "fixtures", "thresholds", "reports", "tests"),
}
# Written so that this file does not say what it looks for.
PRIVATE = {
    "a path of somebody's machine": re.compile(r"(?<![\w.])[/](?:work|opt[/]pypi|opt[/]wheels|home[/]\w+)\b"),
    "a document that is not in this tree": re.compile(
        r"DESIG[N](?:\.md|\s+section)|\breferenc[e]/\w+\.(?:md|json)"
    ),
    "a ticket that a reader cannot open": re.compile(r"(?i)\bthis issu[e]\b|\bissu[e] #?\d\b"),
    "a note to oneself": re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b"),
}


def private_words(root: Path) -> Iterator[str]:
    """Every line of the tree that only makes sense in the place where it was written."""
    for path in files(root):
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            yield f"{path}: not UTF-8 text"
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            yield from (
                f"{path}:{number}: {what}: {line.strip()}" for what, p in PRIVATE.items() if p.search(line)
            )


def strangers(root: Path) -> Iterator[str]:
    """Names at the top of the tree that are not in the list."""
    for path in sorted(root.iterdir()):
        if path.name not in TOP | IGNORED:
            yield f"{path.name}: not one of the top-level names of the house"
