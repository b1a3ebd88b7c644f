"""`python -m reports render DIR`: write the reports again from the journal, also after a run was killed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reports.answer import console_lines
from reports.begin import JOURNAL
from reports.decision import decide
from reports.render import load, render
from reports.text import clean


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status of the rendered run, 4 when there is no journal."""
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("render", help="write junit.xml, verdict.json, the lists and report.html")
    command.add_argument("directory", type=Path, help=f"a report directory that holds {JOURNAL}")
    chosen = parser.parse_args(arguments)
    if not (chosen.directory / JOURNAL).is_file():
        print(f"{chosen.directory} holds no {JOURNAL}", file=sys.stderr)
        return 4
    status = render(chosen.directory)
    verdict = decide(load(chosen.directory / JOURNAL))
    for line in console_lines(verdict, str(chosen.directory / "report.html")):
        print(clean(line))
    return status


if __name__ == "__main__":
    sys.exit(main())
