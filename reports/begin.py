"""How a report directory begins: held by one run, with a red report in it and nothing of an earlier run.

By default that is a new directory in `reports/runs`, to which `reports/out` links. `python3 -m reports.begin
ARGUMENTS` does the same for `pytest suites/ ARGUMENTS`. It needs only the standard library, so that a set-up
that fails leaves a red report too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from reports.hold import HeldError, Hold, drop_unused, is_ours
from reports.text import first_line, shown, write_file

JOURNAL, JUNIT, VERDICT, PAGE = "results.jsonl", "junit.xml", "verdict.json", "report.html"
LISTS = ("accepted.txt", "rejected.txt", "unproven.txt")
FAMILIES = "checks-*.html"  # the pages of the families, beside report.html
CASES = ("checks", "nodes")  # what has a case in junit.xml: checks and nodes, or nodes only
HTML_LOG = "logs/report-html.txt"
TOMBSTONE = "the run ended without writing its report"
RUN_CLASS, RUN_NAME = "shakedown.run", "complete"
UNUSABLE = 4  # the exit status
INPUTS = ("--hosts", "--beside", "--hardware")  # may name files that an earlier run has left
RUNS = Path("reports", "runs")  # where runs are kept, from the root of the tree

_STALE = (*LISTS, VERDICT, JOURNAL, PAGE, "report.css", HTML_LOG)
_TEXT = ("-h", "--help", "-V", "--version", "--markers", "--fixtures", "--funcargs", "--fixtures-per-test")
PLAN = "--plan"  # says what a run would do, and how long that takes
_WRITES_NOTHING = frozenset((*_TEXT, "--collect-only", "--collectonly", "--co", PLAN))
_XML = """\
<?xml version="1.0" encoding="utf-8"?>
<testsuites name="shakedown" {counters}>
  <testsuite name="shakedown" {counters} skipped="0">
    <testcase classname="{classname}" name="{name}" time="0.000">
      <error message="{message}" type="cut short">{body}</error>
    </testcase>
  </testsuite>
</testsuites>
"""
_MOST_DEEP = 5  # files of arguments that name files; pytest does not start with one that names itself
_COUNTERS = 'tests="1" failures="0" errors="1" time="0.000"'


class UnusableError(Exception):
    """No report can be written there; the text says what is left there of an earlier run."""


def take(place: Path, user_junit: Path | None = None, runs: Path | None = None) -> Hold:
    """Hold the place and begin in it; raises HeldError, with nothing touched there, or UnusableError.

    With `runs` the last run stays as it is. Where no directory can be made there, or no link to it (because
    the operator has a mount or a link there), the run begins in the place itself.
    """
    try:
        hold = _kept(place, runs) if runs is not None else None
        hold = hold or Hold(place)
    except HeldError:
        if user_junit is not None and user_junit.parent.resolve() != place.resolve():
            redden(user_junit)  # what stands there is of no run that was asked for now
        raise
    except OSError as fault:
        begin(place, user_junit=user_junit)
        raise UnusableError(f"--report-dir {place}: {fault.strerror or fault}") from None
    try:
        begin(hold.directory, user_junit=user_junit)
    except UnusableError:
        hold.release()
        raise
    return hold


def _kept(place: Path, runs: Path) -> Hold | None:
    """Hold a new directory in `runs`, to which the place links as soon as there is a red report in it.

    None where that is impossible: then the place links nowhere, so that no later write changes the last run.
    """
    hold = None
    with contextlib.suppress(OSError):
        hold = Hold(place, runs)
        _write_fault(hold.directory / JUNIT, _tombstone(""))
        hold.publish()
        return hold
    if hold is not None:
        drop_unused(hold.directory)
        hold.release()
    with contextlib.suppress(OSError):
        if is_ours(place, runs):
            place.unlink()
    return None


def begin(directory: Path, why: str = "", user_junit: Path | None = None) -> None:
    """Leave a red report, which stays until the run replaces it, and nothing of an earlier run.

    What CI servers read turns red first, so that a kill at any moment leaves nothing green of an incomplete
    report. Where nothing can be written, old files are removed or emptied, and UnusableError says so.
    """
    text, made = _tombstone(why), _made_by_runs(directory)
    reports = [directory / JUNIT, *([user_junit] if user_junit else [])]
    failed = [path for path in reports if _write_fault(path, text)]
    stale = [*failed, *(directory / name for name in _STALE), *directory.glob(FAMILIES)]
    remain = [path.name for path in stale if not _taken_away(path)]
    for path in made:
        _taken_away(path)
    for folder in ("plots", "parts"):
        with contextlib.suppress(OSError):  # it is not there, or has something of the operator's
            (directory / folder).rmdir()
    faults = [fault for path in failed if (fault := _write_fault(path, text))]  # there may be room now
    if remain:
        names = ", ".join(remain)
        faults.append(f"of an earlier run and impossible to remove, so do not believe it: {names}")
    if faults:
        raise UnusableError(f"--report-dir {directory}: {'; '.join(faults)}")


def _made_by_runs(directory: Path) -> list[Path]:
    """List the pictures that a report there shows, and workers' journals; other files there are not ours."""
    shown_there: list[str] = []
    with contextlib.suppress(OSError):
        page = (directory / PAGE).read_text(encoding="utf-8", errors="replace")
        shown_there = re.findall(r"plots/[A-Za-z0-9-]+\.svg", page)
    journals = (directory / "parts").glob("[0-9][0-9][0-9][0-9][0-9].jsonl")
    return [*(directory / name for name in dict.fromkeys(shown_there)), *journals]


def redden(report: Path) -> None:
    """Leave red in the place of what another program wrote; where there is no room for it, nothing."""
    if _write_fault(report, _tombstone("")):
        _taken_away(report)


def withdraw(directory: Path) -> None:
    """Leave red in the place of a report that is not whole, and no answer beside it; the journal stays."""
    redden(directory / JUNIT)
    for path in (*(directory / name for name in (*LISTS, VERDICT, PAGE)), *directory.glob(FAMILIES)):
        _taken_away(path)


def _tombstone(why: str) -> str:
    message = shown(f"{TOMBSTONE}: {why}" if why else TOMBSTONE)
    return _XML.format(
        counters=_COUNTERS,
        classname=RUN_CLASS,
        name=RUN_NAME,
        message=escape(first_line(message)),
        body=escape(message),
    )


def _write_fault(path: Path, text: str) -> str:
    try:
        write_file(path, text)
    except OSError as fault:
        return f"{path.name} cannot be written: {fault.strerror or fault}"
    return ""


def _taken_away(path: Path) -> bool:
    """Remove a file, or at least empty it: an empty one is not read as green either."""
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        try:
            os.truncate(path, 0)
        except OSError:
            return False
    return True


def report_dir(here: Path, text: str | None, root: Path) -> tuple[Path, Path | None]:
    """Say where the report goes (--report-dir, relative to `here`, or reports/out) and where runs are kept.

    The latter is None for a directory that the operator named.
    """
    ours = root / "reports" / "out"
    place = Path(os.path.abspath(here / os.path.expanduser(text))) if text else ours
    same = (place.name, place.parent.resolve()) == (ours.name, ours.parent.resolve())
    return place, (ours.with_name("runs") if same else None)


def resumed(here: Path, text: str, place: Path, runs: Path | None) -> Path | None:
    """Give the run that --resume names, before `reports/out` links to another; None without the option.

    Raises UnusableError where the new report would take the place of that run.
    """
    if not text:
        return None
    directory = (here / os.path.expanduser(text)).resolve()
    directory = directory.parent if directory.name == JOURNAL else directory
    if runs is not None and directory == place.resolve():
        directory = _last_run(place, runs)
    if runs is None and directory == place.resolve():
        raise UnusableError(f"--resume {text}: what was measured there must stay; name another --report-dir")
    return directory


def inputs(here: Path, words: Sequence[str], place: Path, runs: Path | None) -> dict[str, str]:
    """Give the files of INPUTS to which `place` leads, where they lie before it links to another run.

    Raises UnusableError where the new report would take their place: then that is red, and they stay.
    """
    found: dict[str, str] = {}
    for option in INPUTS:
        text = given(words, option)
        path = Path(os.path.abspath(here / os.path.expanduser(text)))
        inside = _below(path, place) or _below(path.resolve(), place.resolve())
        if not text or inside is None:
            continue
        if runs is not None and is_ours(place, runs):
            path = _last_run(place, runs) / inside
            found |= {option: str(path)} if path.is_file() else {}
        elif path.is_file() and (runs is not None or _is_replaced(inside)):
            with contextlib.suppress(HeldError, OSError):
                hold = Hold(place)
                redden(place / JUNIT)
                hold.release()
            raise UnusableError(
                f"{option} {path}: the report of this run would take its place; name another --report-dir, "
                "or copy the file elsewhere first"
            )
    return found


def _below(path: Path, folder: Path) -> Path | None:
    return path.relative_to(folder) if folder in path.parents else None


def _is_replaced(inside: Path) -> bool:
    """Say whether a file of a report directory is removed or written anew when a run begins there."""
    return str(inside) in (*_STALE, JUNIT) or inside.match(FAMILIES)


def _last_run(place: Path, runs: Path) -> Path:
    """Give the run to which the place leads; the last one if that is `make begin`'s red report."""
    there = place.resolve()
    if (there / JOURNAL).exists():
        return there
    return max((path.parent.resolve() for path in runs.glob(f"*/{JOURNAL}")), default=there)


def junit_path(text: str | None) -> Path | None:
    """Give the path of --junitxml as pytest understands it, None when it was not asked for.

    None for a device or a pipe too: it keeps no old report, and /dev/null must not be replaced.
    """
    if not text:
        return None
    path = Path(os.path.abspath(os.path.expanduser(os.path.expandvars(text))))
    return None if path.exists() and not path.is_file() else path


def given(words: Sequence[str], *names: str) -> str:
    """Give the last value of an option on a command line, "" without one."""
    value = ""
    for word, following in zip(words, [*words[1:], ""]):  # noqa: B905 - `strict` is newer than some Pythons
        name, equals, rest = word.partition("=")
        if name in names:
            value = rest if equals else "" if following.startswith("-") else following
    return value


def all_words(typed: Iterable[object], settings: Iterable[str] = ()) -> list[str]:
    """Give all arguments that pytest takes: those of its settings, of the environment, and what was typed."""
    said = os.environ.get("PYTEST_ADDOPTS", "")
    try:
        environment = shlex.split(said)
    except ValueError:  # a quotation that is open, with which pytest does not start: the report must be red
        environment = said.split()
    return [*_with_files([*settings, *environment, *map(str, typed)])]


def _with_files(arguments: Iterable[str], deep: int = _MOST_DEEP) -> Iterator[str]:
    """Yield arguments, the lines of a file in the place of its `@FILE`; pytest refuses one without a file."""
    for word in arguments:
        named = deep and word[:1] == "@"
        try:
            lines = Path(word[1:]).read_text(encoding="utf-8").splitlines() if named else None
        except (OSError, ValueError):
            lines = None
        yield from [word] if lines is None else _with_files(lines, deep - 1)


def main(arguments: Sequence[str]) -> int:
    """Begin as `pytest suites/` with these arguments would; returns the exit status."""
    asked = all_words(arguments)
    if not _WRITES_NOTHING.isdisjoint(asked):
        return 0
    root = Path(__file__).resolve().parent.parent
    place, runs = report_dir(Path.cwd(), given(asked, "--report-dir"), root)
    try:
        resumed(Path.cwd(), given(asked, "--resume"), place, runs)
        inputs(Path.cwd(), asked, place, runs)
        take(place, junit_path(given(asked, "--junitxml", "--junit-xml")), runs).release()
    except (HeldError, UnusableError) as refused:
        print(refused, file=sys.stderr)  # noqa: T201 - a command line: why nothing can begin
        return UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
