"""`python -m reports render | diff | history | metrics | verify`: what is done with finished runs."""

from __future__ import annotations

import argparse
import io
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from reports.answer import console_lines
from reports.begin import CASES, JOURNAL, UNUSABLE
from reports.compare import diff, metrics
from reports.compare.runs import Run, UnreadableError, read, table
from reports.decision import exit_status
from reports.journal import foreign
from reports.render import rendered
from reports.text import clean

UNWRITTEN = 2  # the exit status of a run of which nobody is accepted
_FAULTS = (OSError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns its exit status, 4 when there is no journal that can be read."""
    chosen = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = chosen.run
    try:
        return command(chosen)
    except UnreadableError as fault:
        print(fault, file=sys.stderr)
        return UNUSABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    again = commands.add_parser(
        "render", help="write junit.xml, verdict.json, the lists and report.html of a run again"
    )
    again.add_argument("directory", type=Path, help=f"a report directory that holds {JOURNAL}")
    again.add_argument("--junit", choices=CASES, default=CASES[0], help="what has a case in junit.xml")
    again.set_defaults(run=_render)
    two = commands.add_parser(
        "diff",
        help="what changed between two runs: 0 nothing, 1 something",
        description=diff.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    two.add_argument("old", type=Path, help="a report directory, or its journal")
    two.add_argument("new", type=Path, help="another")
    two.set_defaults(run=_diff)
    many = commands.add_parser("history", help="the judged figures of many runs, oldest first")
    many.add_argument("runs", type=Path, nargs="+", help="report directories, such as reports/runs/*")
    many.set_defaults(run=lambda chosen: _print(table(_begun(chosen.runs))))
    last = commands.add_parser("metrics", help="the newest verdict of every node, as a Prometheus textfile")
    last.add_argument("runs", type=Path, nargs="+", help="report directories, such as reports/runs/*")
    last.set_defaults(run=lambda chosen: _print(metrics.lines(_begun(chosen.runs))))
    unchanged = commands.add_parser(
        "verify", help="whether a run is as it was left, and judged as it is today"
    )
    unchanged.add_argument("directory", help=f"a report directory that holds {JOURNAL}")
    unchanged.set_defaults(run=_verify)
    return parser


def _render(chosen: argparse.Namespace) -> int:
    directory: Path = chosen.directory
    if not (directory / JOURNAL).is_file():
        raise UnreadableError(f"{directory} holds no {JOURNAL}")
    if why := foreign(directory / JOURNAL):
        raise UnreadableError(f"{directory / JOURNAL}: {why}; nothing there is touched")
    try:
        records, verdict = rendered(directory, chosen.junit)
    except _FAULTS as fault:  # a traceback would end with 1, which says that a node is rejected
        print(
            f"{directory}: the report cannot be written ({fault!r}); nobody is accepted by it",
            file=sys.stderr,
        )
        return UNWRITTEN
    _print(console_lines(verdict, str(directory / "report.html")))
    return exit_status(records, verdict)


def _verify(chosen: argparse.Namespace) -> int:
    # In a process of its own: it judges again, and nothing else here needs the judges, the plan or pytest.
    return subprocess.run(
        [sys.executable, "-m", "fixtures.run.verify", chosen.directory], check=False
    ).returncode


def _diff(chosen: argparse.Namespace) -> int:
    old, new = read(chosen.old), read(chosen.new)
    found = diff.compare(old, new)
    _print(diff.lines(old, new, found))
    return int(found.differs)


def _print(lines: Iterable[str]) -> int:
    for line in lines:
        print(clean(line))
    return 0


def _begun(places: Sequence[Path]) -> list[Run]:
    """Read runs without samples, and print why others are left out; raises UnreadableError if all are."""
    found = []
    for place in places:
        if place.is_dir() and not (place / JOURNAL).exists():
            print(f"{place}: no run began there", file=sys.stderr)
            continue
        try:
            found.append(read(place, measurements=False))
        except UnreadableError as fault:
            print(f"{fault}; left out", file=sys.stderr)
    if not found:
        raise UnreadableError("none of these is a run that can be read")
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends a table without a word
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the locale may lack it; a traceback ends with 1
    sys.exit(main())
