"""One trial: a lab, a fault in it, the suite as a user runs it, and what its report says."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fixtures.node.processes import wait_until
from tests.faults.judging import Judged, judge, read
from tests.faults.results import Key, Result, Results
from tests.faults.rows.row import RATE, Row, Scene
from tests.faults.runs import Finished, Running, left_on
from tests.lab import Lab, LabError

CLEAN_S = 10.0
# A trial that could not be made, or a report that cannot be read, is wrong.
BROKEN = (LabError, AssertionError, OSError, ValueError, LookupError, subprocess.SubprocessError)
PATIENCE = 2.0  # so many times its limit a run may take before it is ended
BUSY = "print('ready', flush=True)\nwhile True: pass"


@dataclass(frozen=True)
class Trial:
    """A row, for the how manieth time, and the seed that says which nodes have the fault."""

    row: Row
    repeat: int
    seed: int
    busy: bool = False  # whether a foreign program burns a core of the machine meanwhile

    @property
    def key(self) -> Key:
        """What its result is kept under."""
        return self.row.name, self.repeat, self.seed, self.busy


def fresh_seed() -> int:
    """A seed that nobody has chosen."""
    return random.SystemRandom().randrange(1 << 32)


def draw(nodes: Sequence[str], count: int, seed: int, row: str, repeat: int) -> tuple[str, ...]:
    """Draw the nodes that have the fault in one repeat of one row: the same ones again for the same seed."""
    # Whoever has the seed must get the same nodes: a secret is the last thing this should be.
    chance = random.Random(f"{seed}/{row}/{repeat}")  # noqa: S311
    return tuple(chance.sample(list(nodes), count))


@dataclass(frozen=True)
class Campaign:
    """The trials that were asked for, with their results, of which some may be those of earlier runs."""

    results: Results
    seed: int
    busy: bool
    asked: list[Result]

    def result(self, row: Row, repeat: int, place: Path) -> Result:
        """Give the result that a trial has, or run it."""
        trial = Trial(row, repeat, self.seed, self.busy)
        result = self.results.of(trial.key)
        if result is None:
            result = run(trial, place)
            self.results.add(result)
        self.asked.append(result)
        return result


def run(trial: Trial, place: Path) -> Result:
    """Run a trial in a lab of its own; its report stays in `place` only if something in it is wrong."""
    row = trial.row
    place.mkdir(parents=True)
    with Lab.up(row.nodes, RATE, row.slots) as lab:
        drawn = draw(lab.nodes, row.faulty, trial.seed, row.name, trial.repeat)
        started = time.monotonic()
        try:
            judged = _attempt(trial, Scene(lab, drawn, place))
        except BROKEN as broken:
            why = f"{type(broken).__name__}: {broken}"
            judged = Judged(False, (), (why.splitlines()[0],))
        seconds = round(time.monotonic() - started, 1)
    if not judged.wrong:
        shutil.rmtree(place)
    report = str(place) if judged.wrong else ""
    return Result(*trial.key, drawn, seconds, judged.noticed, judged.misnamed, judged.wrong, report)


def _attempt(trial: Trial, scene: Scene) -> Judged:
    row, lab = trial.row, scene.lab
    if trial.busy:
        lab.popen([sys.executable, "-S", "-c", BUSY], stdout=subprocess.DEVNULL)
    row.plant(scene)
    planted = {node: left_on(lab, node) for node in lab.nodes if is_on(lab, node)}
    started = time.monotonic()
    running = Running(lab, scene.place / "report", "--workload", row.workload, *row.arguments(scene))
    if row.during is not None:
        row.during(scene, running)
    done = _finish(running, PATIENCE * row.limit_s)
    seconds = time.monotonic() - started
    (scene.place / "output.txt").write_text(done.output)
    judged = judge(row.expect, scene.drawn, lab.nodes, read(done))
    wrong = [*judged.wrong, *row.complaints(scene, done), *_left(row, lab, planted)]
    if seconds > row.limit_s:
        wrong.append(f"took {seconds:.0f} s, and {row.limit_s:.0f} s is the limit")
    return replace(judged, wrong=tuple(wrong))


def _finish(running: Running, most_s: float) -> Finished:
    """Wait for the end; a run that does not come to it is one that was ended."""
    try:
        return running.finish(most_s)
    except subprocess.TimeoutExpired:
        running.process.kill()
        return running.finish(most_s)


def _left(row: Row, lab: Lab, planted: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What of ours stays on the nodes that are on, beside what was planted there before the run."""
    for node in lab.nodes if row.cleans else ():
        if is_on(lab, node) and (ours := _stays(lab, node, planted.get(node, ()))):
            yield f"left on {node}: {'; '.join(ours[:3])}"


def _stays(lab: Lab, node: str, before: Sequence[str]) -> list[str]:
    """What is still there when a node has had its time."""

    def ours() -> list[str]:
        return [line for line in left_on(lab, node) if line not in before]

    wait_until(lambda: not ours(), CLEAN_S, poll_s=0.3)
    return ours()


def is_on(lab: Lab, node: str) -> bool:
    """Whether a node is switched on."""
    try:
        lab.processes(node)
    except LabError:
        return False
    return True
