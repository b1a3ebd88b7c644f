"""`python -m thresholds lint | explain | calibrate | diff`: whether files hold, and where they come from."""

from __future__ import annotations

import argparse
import datetime
import math
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from thresholds import derived
from thresholds.bounds import BoundError, asked, bound, ceiling
from thresholds.calibrate.calibration import Asked, Refused, calibrate
from thresholds.calibrate.tables import PER_NODE
from thresholds.derived import Moved
from thresholds.diff import BadInput, diff
from thresholds.hardware import Hardware, Limit
from thresholds.loading import rules
from thresholds.loading.faults import HardwareFileError
from thresholds.loading.load import load, load_whole, resolve, shipped
from thresholds.lookup import Case, LimitError, absent, find
from thresholds.losses import losses
from thresholds.selectors import READERS, Value
from thresholds.units import INSIDE_LINKS, METRICS, MNNVL, format_number, parse_size

_PATTERN = {"size", "nodes", "ranks_per_node"}  # what a case needs for the derived limit of a pattern
_LINKS = (*INSIDE_LINKS, MNNVL, "network", PER_NODE)
_CALIBRATE = """Make a hardware file from runs of nodes that are believed healthy.

A floor is median x (1 - margin). The margin is 5.1 sigma, so that 1024 nodes with 50 figures each
fail by chance once in a hundred acceptances, and never less than the least margin of the metric;
ceilings likewise. A figure needs five values, the file two runs and two nodes. Nodes that are
outliers are left out and named.

Nothing is written, and the exit status is 1, when the runs do not agree (all reasons are said at
once): other hardware, workload or versions, wrong data, a run that was cut short, a journal that
cannot be read, too few values, or values that disagree so much that a limit would mean nothing.

Line rates, [match] and [sweep] are those of --like; its rows are not taken over, but the healthy
figures must meet them. Without it [match] is what the nodes say, and bus bandwidths need
--line-rate, as nothing in a journal says how fast a link should be."""
_DIFF = """Compare two hardware files, or a hardware file with a run.

Of two files: rows and gaps that were added or removed, limits that changed, in per cent, and facts
that differ. Names, comments, sources and dates are no difference.

Of a file and a run: for each row and case the limit, the measured median and the margin in per cent
(negative: not met), rows that judged nothing, and judged figures for which there is no one row.

Exit status: 0 nothing differs (every row is met and used, every figure has one), 1 something does,
2 bad input."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 good, 1 faults, no row, refused or different, 2 bad input."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.run
    try:
        return command(options)
    except HardwareFileError as error:
        return _say(sys.stderr, str(error), status=2 if command is _diff else 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m thresholds", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    lint = commands.add_parser("lint", help="check hardware files and print every fault")
    lint.add_argument("files", nargs="*", help="names or paths (default: all shipped files)")
    lint.set_defaults(run=_lint)
    explain = commands.add_parser("explain", help="show which row judges a case, and what it asks")
    explain.add_argument("file", help="a shipped name, or a path")
    explain.add_argument("metric", choices=sorted(METRICS))
    explain.add_argument("case", nargs="*", type=_pair, metavar="key=value", help="such as size=8GiB nodes=2")
    explain.set_defaults(run=_explain)
    _add_calibrate(commands)
    compare = _described(commands, "diff", "compare two hardware files, or one with a run", _DIFF)
    compare.add_argument("first", metavar="A", help="a hardware file: a shipped name, or a path")
    compare.add_argument("second", metavar="B", help="another, or a run: report directory or results.jsonl")
    compare.set_defaults(run=_diff)
    return parser


def _add_calibrate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _described(commands, "calibrate", "make a hardware file from healthy runs", _CALIBRATE)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="report directories, or results.jsonl of them")
    parser.add_argument("-o", "--output", metavar="FILE", help="a new file (default: standard output)")
    parser.add_argument("--name", default="", help="[hardware] name (default: that of --like, -calibrated)")
    parser.add_argument(
        "--like", metavar="FILE", help="take line rates, match, sweep and so on from this file"
    )
    parser.add_argument(
        "--line-rate",
        action="append",
        default=[],
        type=partial(_figure, _LINKS),
        metavar="LINK=GB/S",
        help=f"per rank and direction; links are {', '.join(_LINKS)}",
    )
    parser.add_argument(
        "--most-margin",
        action="append",
        default=[],
        type=partial(_figure, tuple(METRICS)),
        metavar="METRIC=SHARE",
        help="accept noise up to this margin, such as latency=5; the row's source will say so",
    )
    parser.set_defaults(run=_calibrate)


def _described(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, short: str, long: str
) -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=short, description=long, formatter_class=plain)


# reading the command line


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


def _figure(names: Sequence[str], text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if name not in names or not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER with a name of: {', '.join(names)}")
    return name, number


# the commands


def _lint(options: argparse.Namespace) -> int:
    status = 0
    for path in [resolve(name) for name in options.files] or list(shipped().values()):
        try:
            hardware = load(path)
        except HardwareFileError as error:
            status = _say(sys.stderr, str(error), status=1)
        else:
            rows = f"{len(hardware.limits)} limits, {len(hardware.gaps)} gaps"
            _say(sys.stdout, f"{path}: good ({rows}, sha256 {hardware.sha256[:12]})")
            for loss in losses(hardware) if not hardware.part else ():
                _say(sys.stdout, f"  {loss}")
                status = _say(sys.stderr, loss.fault, 1) if loss.fault else status
            for warning in rules.dates(hardware, datetime.datetime.now(datetime.timezone.utc).date()):
                _say(sys.stderr, f"warning: {warning}")
    return status


def _calibrate(options: argparse.Namespace) -> int:
    target = Path(options.output) if options.output else None
    if target is not None and target.exists():
        return _say(sys.stderr, f"{target} is there already; name a new file", status=1)
    if options.like and options.line_rate:
        return _say(sys.stderr, "--like brings its own line rates; leave --line-rate out", status=2)
    like = load_whole(resolve(options.like)) if options.like else None
    asked = Asked(options.name, like, dict(options.line_rate), dict(options.most_margin))
    try:
        found = calibrate(options.runs, asked)
        if target is not None:
            target.write_text(found.text, encoding="utf-8")
    except Refused as refused:
        return _say(sys.stderr, f"refused, and nothing is written:\n{_bullets(refused.reasons)}", 1)
    except OSError as error:
        return _say(sys.stderr, f"{target} cannot be written: {error.strerror or error}", status=1)
    _say(sys.stderr, _bullets([*found.notes, f"{found.limits} limits and {found.gaps} gaps"]))
    return 0 if target is not None else _say(sys.stdout, found.text.removesuffix("\n"))


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _diff(options: argparse.Namespace) -> int:
    try:
        found = diff(options.first, options.second)
    except BadInput as error:
        return _say(sys.stderr, str(error), status=2)
    if found.lines:
        _say(sys.stdout, "\n".join(found.lines))
    return int(found.differs)


def _explain(options: argparse.Namespace) -> int:
    hardware, metric, case = load(resolve(options.file)), options.metric, dict(options.case)
    if reason := absent(hardware, case):
        return _say(sys.stdout, f"n/a: {reason}")
    try:
        row = find(hardware, metric, case)
    except LimitError as error:
        if metric == derived.METRIC and case.keys() >= _PATTERN:
            return _explain_derived(hardware, case)
        return _say(sys.stderr, f"unchecked: {error}", status=1)
    return _say(sys.stdout, "\n".join(_why(hardware, metric, row, case)))


def _why(hardware: Hardware, metric: str, row: Limit, case: Case) -> Iterator[str]:
    unit = "" if row.kind == "min_of_bound" else METRICS[metric].unit
    yield f"{row.where} judges it: {row.kind} = {row.value:g} {unit}".rstrip()
    for name, selector in row.selectors.items():
        yield f"  {name} = {selector.text} matches {case.get(name)}"
    yield f"  source: {'derived: ' if row.derived else ''}{row.source} ({row.date})"
    yield f"  fewer than {row.min_samples} samples are unchecked"
    if not METRICS[metric].bounded:
        return
    rates = hardware.line_rate
    try:
        best = format_number(bound(case, rates))
        yield f"  bound of this algorithm: {best} GB/s"
        if row.kind == "min_of_bound":
            yield f"  floor: {row.value:g} x {best} = {format_number(asked(row, case, rates))} GB/s"
        yield f"  above {format_number(ceiling(case, rates))} GB/s something else was measured"
    except BoundError as error:
        yield f"  bound: {error}"


def _explain_derived(hardware: Hardware, case: Case) -> int:
    """Show the limit of a pattern with one collective, which is derived from the collective's rows.

    Without a collective, half of the ranks send `size` bytes to each of the others.
    """
    size, per_node = int(case["size"]), [int(case["ranks_per_node"])] * int(case["nodes"])
    ranks = sum(per_node)
    try:
        named = "collective" in case
        moved = Moved(str(case["collective"]), size) if named else derived.fanned(size, ranks // 2, per_node)
        shares = derived.shares(hardware, [moved], case, ranks)
    except (LimitError, BoundError) as error:
        return _say(sys.stderr, f"on record only: {error}", status=1)
    lines = [f"no row judges it: {derived.FACTOR:g} x the sum of", *(f"  {share}" for share in shares)]
    return _say(sys.stdout, "\n".join([*lines, f"  is {derived.allowed_s(shares) * 1e6:.4g} us"]))


def _say(stream: TextIO, text: str, status: int = 0) -> int:
    stream.write(text + "\n")
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends a list without a word
    sys.exit(main())
