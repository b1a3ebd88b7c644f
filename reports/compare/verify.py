"""Whether a finished run is unchanged: journal, verdict and lists, line by line, and every page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from reports import answer, verdict_file
from reports.begin import FAMILIES, JOURNAL, PAGE, VERDICT
from reports.decision import decide
from reports.journal import Scan
from reports.page.page import family
from reports.record import CheckRecord
from reports.render import load_scanned, with_workers
from reports.text import clean


def faults(directory: Path, content: Scan) -> Iterator[str]:
    """What is no longer as the run left it; `content` is its journal, with or without samples.

    The journal proves all its lines but the last, which the verdict names. The verdict and the lists are made
    again from the journal. This is no signature: whoever can write all of them can forge all of them.
    """
    yield from (f"{JOURNAL}, {fault}" for fault in content.faults)
    yield from _other_end(directory / VERDICT, content)
    records = with_workers(load_scanned(content, JOURNAL), directory)
    verdict = decide(records)
    yield from _other_lines(directory / VERDICT, verdict_file.text(records, verdict, content.last))
    for name, text in answer.lists(verdict):
        yield from _other_lines(directory / name, text)
    if (directory / PAGE).is_file():  # a page that cannot be drawn does not change a verdict
        families = {family(record) for record in records if isinstance(record, CheckRecord)}
        pages = (FAMILIES.replace("*", name) for name in sorted(families))
        yield from (
            f"{name} is gone, and {PAGE} leads to it" for name in pages if not (directory / name).is_file()
        )


def _other_end(path: Path, content: Scan) -> Iterator[str]:
    """Where the journal ends, if the verdict names another last line."""
    try:
        named = json.loads(path.read_bytes())["made_of"]["journal"]
    except (OSError, ValueError, LookupError, TypeError):
        return  # reported for the file itself
    if named != content.last and content.numbers:
        yield f"{JOURNAL}, line {content.numbers[-1]}: another line was the last when {path.name} was made"


def _other_lines(path: Path, expected: str) -> Iterator[str]:
    """The first line of a file that differs from what is made of the journal."""
    try:
        found = path.read_bytes().decode("utf-8", "replace")
    except OSError as fault:
        yield f"{path.name} cannot be read: {fault.strerror or fault}"
        return
    pairs = zip_longest(expected.split("\n"), found.split("\n"))
    for number, (want, has) in enumerate(pairs, 1):
        if want != has:
            yield f"{path.name}, line {number}: it says {_shown(has)}, and the journal {_shown(want)}"
            return


def _shown(line: str | None) -> str:
    return "nothing" if line is None else repr(clean(line).strip()[:120])
