"""One run with its faults, and what is wrong afterwards: of scripted nodes, or of this machine for real."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fixtures.node.processes import wait_until
from fixtures.run import hooks, verify  # noqa: F401 - loaded once here, not again in every run
from fixtures.run.provenance import ROOT
from reports import __main__ as reports
from reports import begin
from reports.record import NodeRecord
from reports.render import load
from tests.chaos.draw import CONTROLLER, NODES, draw
from tests.chaos.invariants import Ended, complaints, of_places, processes
from tests.chaos.nodes import FILLER, Chaos
from tests.fixtures.run.test_first import ACCEPTED, GREEN
from tests.fixtures.scenario import Scenario

LIMIT_S = 60.0  # a run that takes its deadlines one after the other takes 20 s
STILL_S = 1.0
NOT_ENDED = 99
BAD = "slow or wrong:"
MEAN_S = 8.0  # of the moments of kills: half of them fall into the imports and the first connection
CLEAN_S = 20.0  # the lease of a node and more
QUIET = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--assert=plain")


Tried = tuple[Ended, str, list[str]]  # what befell it, and what is wrong


def scripted(seed: int, place: Path) -> Tried:
    """Scripted nodes under the real controller, in a process of their own; what befell it, what is wrong."""
    faults = draw(seed)
    tree = Scenario(cast(pytest.Pytester, SimpleNamespace(path=place))).build()
    tree.hosts(*(f"{name} slots=2" for name in NODES))
    chaos = Chaos(faults, place)

    def run() -> int:
        chaos.begin()
        status = int(pytest.main([*QUIET, *tree.arguments("--start-deadline", "3")], plugins=[chaos]))
        left = [each.name for each in threading.enumerate() if not (each.daemon or each.name == "MainThread")]
        print(*(f"Traceback: the thread {name} was left" for name in left))
        print(BAD, *sorted(chaos.bad))
        return status

    status, output = forked(place, run)
    (place / FILLER).unlink(missing_ok=True)
    found = ended(tree.out, status, output, place)
    wrong = list(complaints(found, [*NODES]))
    if not any(fault.place == CONTROLLER for fault in faults):
        bad = set(output.rpartition(BAD)[2].split())
        wrong += of_places(found, [*NODES], {fault.place for fault in faults}, bad)
    return found, "; ".join(map(str, faults)), wrong


def real(seed: int, place: Path) -> Tried:
    """The nodes workload on this machine, over a green report, killed at a moment that is rather early."""
    report, after_s = place / "report", min(random.Random(seed).expovariate(1 / MEAN_S), LIMIT_S)  # noqa: S311
    report.mkdir()
    for name in (begin.JUNIT, *begin.LISTS, begin.VERDICT, begin.JOURNAL):
        (report / name).write_text(GREEN if name == begin.JUNIT else ACCEPTED)
    where = ["--report-dir", str(report)]
    subprocess.run([sys.executable, "-m", "reports.begin", *where], cwd=ROOT, check=True)
    log = place / "log"
    with log.open("wb") as output:
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "suites/",
            "-p",
            "no:cacheprovider",
            "--workload",
            "nodes",
            *where,
        ]
        process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    output_text = log.read_text(encoding="utf-8", errors="replace")
    wrong = (
        [] if wait_until(lambda: not [*processes()], CLEAN_S) else [f"it left {one}" for one in processes()]
    )
    found = ended(report, process.returncode, output_text, ROOT)
    nodes = [one for one in load(report / begin.JOURNAL) if isinstance(one, NodeRecord)]
    wrong += [one.sentence for one in nodes if one.state == "busy"]
    return found, f"kill after {after_s:.1f} s", [*wrong, *complaints(found, ["localhost"])]


def ended(report: Path, status: int, output: str, root: Path) -> Ended:
    """Look at a run that has ended, by the commands that a user has for that."""
    said, rendered = "", 1
    if (report / begin.JOURNAL).is_file():
        if status >= 0:
            verified, said = forked(report.parent, lambda: verify.main([str(report)], root))
            said = said if verified else ""
        rendered, _ = forked(report.parent, lambda: reports.main(["render", str(report)]))
    return Ended(report, status, output, rendered, said)


def forked(place: Path, do: Callable[[], int]) -> tuple[int, str]:
    """Do it in a fork of this process, which has everything loaded; its status, and what it printed."""
    log = os.memfd_create("log")  # on no disk, since that may be full
    pid = os.fork()
    if pid == 0:
        status = NOT_ENDED
        try:
            os.setsid()
            os.chdir(place)
            for standard in (1, 2):
                os.dup2(log, standard)
            faulthandler.enable()
            status = do()
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    status = waited(pid)
    with open(log, "rb") as file:
        file.seek(0)
        return status, file.read().decode("utf-8", "replace")


def waited(pid: int) -> int:
    """Wait for a process, which goes on after a second where it was stopped; its status, -N for signal N."""
    found: list[int] = []

    def has_ended() -> bool:
        done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if done and os.WIFSTOPPED(status):
            threading.Event().wait(STILL_S)
            os.kill(pid, signal.SIGCONT)
        elif done:
            found.append(os.waitstatus_to_exitcode(status))
        return bool(found)

    if not wait_until(has_ended, LIMIT_S):
        os.kill(pid, signal.SIGABRT)  # with a stack of every thread
        os.waitpid(pid, 0)
        return NOT_ENDED
    return found[0]
