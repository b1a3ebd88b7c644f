"""One trial: a lab with a fault, the suite as a user runs it, and what its report says."""

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
from tests.faults.judging import Judged, judge, judge_each, read
from tests.faults.results import Key, Result, Results
from tests.faults.rows.planting import at_work
from tests.faults.rows.row import RATE, Row, Scene
from tests.faults.runs import Finished, Running, left_on
from tests.lab import Lab, LabError

CLEAN_S = 10.0
# A trial that could not be made, or a report that cannot be read, is wrong.
BROKEN = (LabError, AssertionError, OSError, ValueError, LookupError, subprocess.SubprocessError)
PATIENCE = 2.0  # times its limit: what a run may take before it is ended
BUSY = "print('ready', flush=True)\nwhile True: pass"


@dataclass(frozen=True)
class Trial:
    """A row, the number of the repeat, and the seed that decides which nodes have the fault."""

    row: Row
    repeat: int
    seed: int
    busy: bool = False  # whether a foreign program burns a core of the machine meanwhile

    @property
    def key(self) -> Key:
        """The key of its result."""
        return self.row.name, self.repeat, self.seed, self.busy


def fresh_seed() -> int:
    """A random seed."""
    return random.SystemRandom().randrange(1 << 32)


def draw(nodes: Sequence[str], count: int, seed: int, row: str, repeat: int) -> tuple[str, ...]:
    """Draw the nodes that have the fault in one repeat of one row: the same ones again for the same seed."""
    # The same seed must give the same nodes, so this must not be a secure generator.
    chance = random.Random(f"{seed}/{row}/{repeat}")  # noqa: S311
    return tuple(chance.sample(list(nodes), count))


@dataclass(frozen=True)
class Campaign:
    """The trials that were asked for, with their results; some results may be from earlier runs."""

    results: Results
    seed: int
    busy: bool
    asked: list[Result]

    def result(self, row: Row, repeat: int, place: Path) -> Result:
        """Give the result of a trial that has one, or run it."""
        trial = Trial(row, repeat, self.seed, self.busy)
        result = self.results.of(trial.key)
        if result is None:
            result = run(trial, place)
            self.results.add(result)
        self.asked.append(result)
        return result


def run(trial: Trial, place: Path) -> Result:
    """Run a trial in its own lab; its report stays in `place` only if something is wrong."""
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


def together(rows: Sequence[Row], healthy: int, seed: int, place: Path) -> list[str]:
    """Plant the faults of several rows in one lab, each on its own node, and say what is wrong with the run.

    The first row decides the workload and the user's arguments.
    """
    with Lab.up(len(rows) + healthy, RATE) as lab:
        drawn = draw(lab.nodes, len(rows), seed, rows[0].name, 0)
        scenes = [Scene(lab, (node,), place / row.name) for row, node in zip(rows, drawn, strict=True)]
        for scene in scenes:
            scene.place.mkdir(parents=True)
        done, wrong = _made(rows, scenes)
        expected = {node: row.expect for row, node in zip(rows, drawn, strict=True)}
        return [*judge_each(expected, lab.nodes, read(done)), *wrong]


def _attempt(trial: Trial, scene: Scene) -> Judged:
    if trial.busy:
        scene.lab.popen([sys.executable, "-S", "-c", BUSY], stdout=subprocess.DEVNULL)
    done, wrong = _made([trial.row], [scene])
    judged = judge(trial.row.expect, scene.drawn, scene.lab.nodes, read(done))
    return replace(judged, wrong=(*judged.wrong, *wrong))


def _made(rows: Sequence[Row], scenes: Sequence[Scene]) -> tuple[Finished, list[str]]:
    """Make a run with the faults of some rows, and say what is wrong with it apart from its report."""
    first, scene, lab = rows[0], scenes[0], scenes[0].lab
    both = list(zip(rows, scenes, strict=True))
    for row, own in both:
        row.plant(own)
    planted = {node: left_on(lab, node) for node in lab.nodes if is_on(lab, node)}
    started = time.monotonic()
    running = Running(lab, scene.place / "report", "--workload", first.workload, *first.arguments(scene))
    later = [(row.during, own) for row, own in both if row.during is not None]
    if later:
        at_work(lab, running, [node for _, own in later for node in own.drawn])
    for during, own in later:
        during(own, running)
    limit_s = max(row.limit_s for row in rows)
    done = running.end(PATIENCE * limit_s)
    seconds = time.monotonic() - started
    (scene.place / "output.txt").write_text(done.output)
    wrong = [line for row, own in both for line in row.complaints(own, done)]
    wrong += [*_inventory(both, done), *(_left(lab, planted) if all(row.cleans for row in rows) else ())]
    if seconds > limit_s:
        wrong.append(f"took {seconds:.0f} s, and {limit_s:.0f} s is the limit")
    return done, wrong


def _inventory(both: Sequence[tuple[Row, Scene]], done: Finished) -> Iterator[str]:
    """Subjects of the inventory that fail and must not, or must fail and do not."""
    if all(row.subjects is None for row, _ in both):
        return
    wanted = {node: row.subjects or () for row, scene in both for node in scene.drawn}
    found = done.inventory()
    assert found, "no inventory was judged"
    for (node, subject), check in found.items():
        if (check["outcome"] == "fail") != (subject in wanted.get(node, ())):
            yield f"{subject} of {node} is {check['outcome']}: {check['reason']}"


def _left(lab: Lab, planted: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What a run leaves on the nodes that are on, apart from what was planted there before it."""
    for node in lab.nodes:
        if is_on(lab, node) and (ours := _stays(lab, node, planted.get(node, ()))):
            yield f"left on {node}: {'; '.join(ours[:3])}"


def _stays(lab: Lab, node: str, before: Sequence[str]) -> list[str]:
    """What is still left on a node after CLEAN_S."""

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
