"""All tests of the tester, part by part: what took longest, and a budget for the whole.

python -m tests.parts
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fixtures.node import processes
from tests.house.tree import ROOT

USUAL = "not quiet and not long"
BESIDE = f"{USUAL} and not alone"
LOGS = ROOT / ".venv"
# User and system time of all parts, with what they start, as a multiple of a fixed piece of work (`piece_s`):
# wall time tells of the machine's other users too, and one machine takes 1700 s where another takes 3100.
BUDGET = 8000.0
# Images of containers often forbid Python to keep what it compiled. Every process that a test starts would
# then compile the tree anew, and every worker rewrite all tests.
UNWANTED = {"PYTHONDONTWRITEBYTECODE"}
SLOWEST = 10
_DURATION = re.compile(r"^ *([\d.]+)s (call|setup|teardown) +(\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """A pytest of its own: where it looks, and which marks it selects."""

    name: str
    paths: tuple[str, ...]
    marks: str = BESIDE
    workers: int = 0  # of pytest-xdist
    idle: bool = False  # whether it only gets what nobody else wants of the cores

    def command(self) -> list[str]:
        """What is run, in the root of the tree."""
        durations = ("--durations", str(SLOWEST), "--durations-min", "1")
        workers = ("-n", str(self.workers), "--dist", "worksteal") if self.workers else ()
        return [sys.executable, "-m", "pytest", *self.paths, "-m", self.marks, *durations, *workers]


@dataclass(frozen=True)
class Ended:
    """What became of a part: its status, what it printed, and its seconds on the clock and on all cores."""

    part: Part
    status: int
    text: str
    wall_s: float
    cpu_s: float

    def __str__(self) -> str:
        closing = self.text.rstrip().rpartition("\n")[2].strip("= ")
        return f"{self.part.name}: {closing} ({self.wall_s:.0f} s, {self.cpu_s:.0f} s of CPU)"


WORLDS = ("tests/suites", "tests/teeth")
FAULTS = Part("faults", ("tests/faults",), marks=f"{BESIDE} and not untimed")
UNTIMED = Part("untimed", FAULTS.paths, marks=f"{BESIDE} and untimed")
# Most planted faults measure bandwidth: what takes their cores makes healthy links miss their floors. So only
# what may take as long as it likes runs beside them, and idle: linters, and tests that compute and compare.
# A test with a deadline starves there. The faults that measure nothing run beside worlds of ranks.
FORMULAS = (
    *("tests/test_house.py", "tests/test_bounds.py", "tests/simulation", "tests/thresholds", "tests/reports"),
    *("tests/fixtures/blame", "tests/fixtures/check", "tests/fixtures/ranks/exact", "tests/fixtures/wire"),
)
REST = ("tests", *(f"--ignore={path}" for path in (*FAULTS.paths, *WORLDS, *FORMULAS)))
STAGES = (
    (FAULTS, Part("formulas", FORMULAS, workers=2, idle=True)),
    (Part("rest", REST, workers=2),),
    (UNTIMED, Part("worlds", WORLDS, workers=2)),
)


def alone(root: Path = ROOT) -> Part:
    """What judges or times this machine itself, so that it runs after the others; only its files are read."""
    files = sorted(path for path in (root / "tests").rglob("test_*.py") if "mark.alone" in path.read_text())
    return Part("alone", tuple(str(path.relative_to(root)) for path in files), marks="alone")


def step_back() -> None:
    """Take only what nobody else wants of the cores, also where the kernel shares them out among sessions.

    There (autogroup, sched(7)) an idle process counts in its own session alone, so that it needs another one.
    """
    os.setsid()
    processes.die_with_parent(signal.SIGINT)  # the terminal's does not reach it any more
    with contextlib.suppress(OSError):  # a kernel without it
        Path("/proc/self/autogroup").write_text("19")
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def start(part: Part) -> subprocess.Popen[bytes]:
    """Start a part, with its output in a file. What a shell starts in the background would ignore SIGINT."""

    def ready() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if part.idle:
            step_back()

    with log_of(part).open("wb") as log:
        return subprocess.Popen(
            part.command(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={name: word for name, word in os.environ.items() if name not in UNWANTED},
            preexec_fn=ready,  # noqa: PLW1509 - one thread
        )


def log_of(part: Part) -> Path:
    """Where a part writes; it stays there for whoever wants to know how far it is."""
    return LOGS / f"{part.name}.log"


def run(*stages: Sequence[Part]) -> Iterator[Ended]:
    """Run the parts of a stage beside each other, stage after stage; give each part as it ends."""
    for stage in stages:
        running: dict[int, tuple[subprocess.Popen[bytes], Part, float]] = {}
        for part in stage:
            process = start(part)
            running[os.pidfd_open(process.pid)] = process, part, time.monotonic()
        while running:
            for ended in select.select(list(running), [], [])[0]:
                process, part, began = running.pop(ended)
                os.close(ended)
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                text = log_of(part).read_text(encoding="utf-8", errors="replace")
                wall_s, cpu_s = time.monotonic() - began, used.ru_utime + used.ru_stime
                yield Ended(part, process.returncode, text, wall_s, cpu_s)


def slowest(texts: Sequence[str]) -> list[str]:
    """The tests that took longest in any part."""
    found = [
        (float(seconds), f"{what} {test}")
        for text in texts
        for seconds, what, test in _DURATION.findall(text)
    ]
    return [f"{seconds:7.1f} s {test}" for seconds, test in sorted(found, reverse=True)[:SLOWEST]]


def piece_s() -> float:
    """CPU seconds that this machine takes for a fixed piece of work."""
    began_s = time.process_time()
    sum(number * number for number in range(5_000_000))
    return time.process_time() - began_s


def report(ended: Sequence[Ended], piece_s: float, budget: float = BUDGET) -> tuple[int, list[str]]:
    """The status of the whole, and the lines that close it."""
    used_s = sum(one.cpu_s for one in ended)
    pieces = used_s / piece_s
    over = pieces > budget
    lines = ["the slowest:", *slowest([one.text for one in ended]), *map(str, ended)]
    lines.append(
        f"{'over the budget' if over else 'in all'}: {used_s:.0f} s of CPU, {pieces:.0f} times a fixed piece "
        f"of work, where {budget:.0f} are allowed (tests/parts.py)"
    )
    return int(over or any(one.status for one in ended)), lines


def main() -> int:
    """Run everything; 0 when all parts are green and within the budget."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ended, before_s = [], piece_s()
    for one in itertools.chain(run(*STAGES), run([alone()])):
        print(one.text, flush=True)
        ended.append(one)
    status, lines = report(ended, max(before_s, piece_s()))
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
