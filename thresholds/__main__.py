"""`python -m thresholds lint | explain`: whether files hold, and which row judges a case and why."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from thresholds.bounds import BoundError, bound, ceiling
from thresholds.faults import HardwareFileError
from thresholds.hardware import Hardware, Limit
from thresholds.load import load, resolve, shipped
from thresholds.lookup import Case, LimitError, absent, find
from thresholds.selectors import READERS, Value
from thresholds.units import METRICS, format_number, parse_size


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the two commands; 0 good, 1 faults or no row, 2 a command line that makes no sense."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "lint":
            return _lint([resolve(name) for name in options.files] or list(shipped().values()))
        hardware = load(resolve(options.file))
    except HardwareFileError as error:
        return _say(sys.stderr.write, str(error), status=1)
    return _explain(hardware, options.metric, dict(options.case))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m thresholds", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    lint = commands.add_parser("lint", help="check hardware files and print every fault")
    lint.add_argument("files", nargs="*", help="names or paths (default: all shipped files)")
    explain = commands.add_parser("explain", help="show which row judges a case, and what it asks")
    explain.add_argument("file", help="a shipped name, or a path")
    explain.add_argument("metric", choices=sorted(METRICS))
    explain.add_argument("case", nargs="*", type=_pair, metavar="key=value", help="such as size=8GiB nodes=2")
    return parser


def _pair(text: str) -> tuple[str, Value]:
    name, equals, value = text.partition("=")
    if not equals or name not in READERS:
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value with a key of: {', '.join(READERS)}")
    try:
        if name == "size":
            return name, parse_size(value)
        READERS[name](int(value) if value.isascii() and value.isdigit() else value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name, int(value) if name in ("nodes", "ranks_per_node") else value


def _lint(paths: list[Path]) -> int:
    status = 0
    for path in paths:
        try:
            hardware = load(path)
        except HardwareFileError as error:
            status = _say(sys.stderr.write, str(error), status=1)
        else:
            rows = f"{len(hardware.limits)} limits, {len(hardware.gaps)} gaps"
            _say(sys.stdout.write, f"{path}: good ({rows}, sha256 {hardware.sha256[:12]})")
    return status


def _explain(hardware: Hardware, metric: str, case: Case) -> int:
    if reason := absent(hardware, case):
        return _say(sys.stdout.write, f"n/a: {reason}")
    try:
        row = find(hardware, metric, case)
    except LimitError as error:
        return _say(sys.stderr.write, f"unchecked: {error}", status=1)
    return _say(sys.stdout.write, "\n".join(_why(hardware, metric, row, case)))


def _why(hardware: Hardware, metric: str, row: Limit, case: Case) -> Iterator[str]:
    unit = "" if row.kind == "min_of_bound" else METRICS[metric].unit
    yield f"{row.where} judges it: {row.kind} = {row.value:g} {unit}".rstrip()
    for name, selector in row.selectors.items():
        yield f"  {name} = {selector.text} matches {case.get(name)}"
    yield f"  source: {'derived: ' if row.derived else ''}{row.source} ({row.date})"
    yield f"  fewer than {row.min_samples} samples are unchecked"
    if METRICS[metric].bounded:
        yield from _physics(hardware, row, case)


def _physics(hardware: Hardware, row: Limit, case: Case) -> Iterator[str]:
    try:
        best = bound(case, hardware.line_rate)
        yield f"  bound of this algorithm: {format_number(best)} GB/s"
        if row.kind == "min_of_bound":
            yield f"  floor: {row.value:g} x {format_number(best)} = {format_number(row.value * best)} GB/s"
        yield f"  above {format_number(ceiling(case, hardware.line_rate))} GB/s something else was measured"
    except BoundError as error:
        yield f"  bound: {error}"


def _say(write: object, text: str, status: int = 0) -> int:
    assert callable(write)
    write(text + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
