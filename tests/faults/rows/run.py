"""Faults of the run itself and of its input, which must not make anything green, and runs without a fault."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace

from fixtures.check.forecast import family_of
from fixtures.check.workload import FAMILIES
from fixtures.node.processes import wait_until
from tests.faults.rows import patches
from tests.faults.rows.planting import everywhere, later
from tests.faults.rows.row import HARDWARE, During, Row, Scene, harmless, nobody, unproven, with_file
from tests.faults.runs import Finished, Running, clean

ENDS_S = 40.0  # after a signal
FIRST_S = 300.0
LOST_OF_TWO = replace(unproven("lost", "crash"), healthy=("unproven",))
GAP = """
[hardware]
name = "lab-gap"
about = "The lab, without a floor for all_reduce"
extends = "lab-200mbit"
auto = false

[[gap]]
metric = "busbw"
collective = "all_reduce"
path = "network"
nodes = "2..4"
ranks_per_node = 1
size = "1MiB"
reason = "nobody has measured it"
"""
# Janitor and supervisor have the same command line; the janitor is the parent and has the lower pid.
KILL = """
import os, signal, sys
found = []
for name in sorted((n for n in os.listdir("/proc") if n.isdigit()), key=int):
    words = open(f"/proc/{name}/cmdline", "rb").read().split(b"\\0")
    if words[1:3] == [b"-u", b"-c"]:
        found.append(int(name))
os.kill(found[int(sys.argv[1])], signal.SIGKILL)
"""


def _ended_by(number: signal.Signals) -> During:
    def during(_: Scene, running: Running) -> None:
        running.process.send_signal(number)
        assert wait_until(lambda: running.process.poll() is not None, ENDS_S), f"{number.name} ends no run"

    return during


def _without(which: int) -> During:
    """Kill the janitor (0) or the supervisor (1) of the node, and check that the node is clean soon after."""

    def kill(scene: Scene) -> None:
        killed = scene.lab.on(scene.node, [sys.executable, "-c", KILL, str(which)])
        assert killed.returncode == 0, killed.stderr
        assert clean(scene.lab, scene.node), f"{scene.node} still has what a run left on it"

    return later(kill)


def _first_run(scene: Scene) -> None:
    Running(scene.lab, scene.place / "first", *HARDWARE, "--workload", "collectives").wait_for_ranks()


def _first_goes_on(scene: Scene, _: Finished) -> Iterator[str]:
    """A run that is refused does not harm the run that holds the nodes."""
    verdict = scene.place / "first" / "verdict.json"
    if not wait_until(verdict.exists, FIRST_S):
        yield "the first run does not end"
    elif (status := json.loads(verdict.read_text())["exit_status"]) != 0:
        yield f"the first run ended with status {status}"


def _every_family(_: Scene, done: Finished) -> Iterator[str]:
    """What is left of a workload within a budget has checks of every family, and says what it left out."""
    missing = set(FAMILIES) - {family_of(check["id"]) for check in done.checks()}
    if missing:
        yield f"nothing was measured of {', '.join(sorted(missing))}"
    if not done.verdict["made_of"]["left_out"] or " within 1m, without " not in done.verdict["workload"]:
        yield f"the verdict does not say what was left out of {done.verdict['workload']}"


RUN = (
    Row("healthy", 0, "nothing at all", harmless(), workload="full", limit_s=1800.0, faulty=0),
    Row(
        *("healthy-in-a-budget", 0, "nothing at all, and one minute to measure", harmless()),
        arguments=lambda _: (*HARDWARE, "--budget", "1m"),
        workload="full",
        faulty=0,
        complaints=_every_family,
    ),
    Row(
        *("limit-missing", 30, "the hardware file lacks a limit", nobody(2, words=("all_reduce",))),
        arguments=with_file(GAP),
        faulty=4,
    ),
    Row(
        *("hardware-wrong", 30, "the hardware file of other hardware", nobody(2)),
        arguments=lambda _: ("--hardware", "h100-sxm5-ndr400"),
        workload="nodes",
        faulty=4,
    ),
    Row(
        *("clocks-slow", 30, "every clock at a third of its speed", nobody(2, words=("bound",))),
        everywhere("patch_torch", patches.SLOW_CLOCK),
        faulty=4,
    ),
    Row(
        *("run-interrupted", 30, "the run is stopped by SIGTERM"),
        replace(nobody(2, words=("SIGTERM",)), junit=("SIGTERM",)),
        during=_ended_by(signal.SIGTERM),
        nodes=2,
        faulty=2,
    ),
    Row(
        *("run-interrupted-by-hand", 30, "the run is stopped by SIGINT"),
        replace(nobody(2), junit=("SIGINT",)),
        during=_ended_by(signal.SIGINT),
        nodes=2,
        faulty=2,
    ),
    Row(
        *("run-killed", 30, "the run is killed", nobody(-signal.SIGKILL, standings=("missing", "unproven"))),
        during=_ended_by(signal.SIGKILL),
        nodes=2,
        faulty=2,
    ),
    Row(
        *("janitor-killed", 30, "what cleans a node is killed", LOST_OF_TWO),
        during=_without(0),
        nodes=2,
    ),
    Row(
        *("supervisor-killed", 30, "what starts the ranks of a node is killed", LOST_OF_TWO),
        during=_without(1),
        nodes=2,
    ),
    Row(
        *("second-run", 26, "another run is at work on the same nodes"),
        unproven("lost", words=("another Shakedown run holds it", "user root")),
        _first_run,
        nodes=2,
        faulty=2,
        limit_s=600.0,
        complaints=_first_goes_on,
    ),
)
