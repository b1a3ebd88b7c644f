"""One trial: a lab, a fault in it, the suite as a user runs it, and what its report says."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fixtures.node.processes import wait_until
from tests.faults.matrix.draw import draw
from tests.faults.matrix.judging import Judged, Said, judge, read
from tests.faults.matrix.results import Result
from tests.faults.matrix.row import RATE, Row, Scene
from tests.faults.runs import Finished, Running, left_on
from tests.lab import Lab, LabError

CLEAN_S = 10.0
# A trial that could not be made, or a report that cannot be read, is wrong, and the next one comes.
BROKEN = (LabError, AssertionError, OSError, ValueError, LookupError)
PATIENCE = 2.0  # so many times its limit a run may take before it is ended
_BUSY = "print('ready', flush=True)\nwhile True: pass"


@dataclass(frozen=True)
class Trial:
    """A row, for the how manieth time, and the seed that says which nodes have the fault."""

    row: Row
    repeat: int
    seed: int
    busy: bool = False  # whether a foreign program burns a core of the machine meanwhile

    @property
    def key(self) -> tuple[str, int, int]:
        """What its result is kept under."""
        return self.row.name, self.repeat, self.seed


def run(trial: Trial, place: Path) -> Result:
    """Run a trial in a lab of its own; its report stays in `place` only if something in it is wrong."""
    row = trial.row
    with Lab.up(row.nodes, RATE, row.slots) as lab:
        drawn = draw(lab.nodes, row.faulty, trial.seed, row.name, trial.repeat)
        shutil.rmtree(place, ignore_errors=True)  # of a trial that was interrupted
        place.mkdir(parents=True)
        started = time.monotonic()
        try:
            said, judged, seconds = _attempt(trial, Scene(lab, drawn, place))
        except (*BROKEN, subprocess.SubprocessError) as broken:
            judged = _failed(f"{type(broken).__name__}: {broken}")
            said, seconds = None, time.monotonic() - started
    if judged.right:
        shutil.rmtree(place)
    return Result(
        row.name,
        trial.repeat,
        trial.seed,
        drawn,
        said.status if said else None,
        round(seconds, 1),
        judged.detected,
        judged.kind,
        judged.name,
        judged.healthy,
        judged.of,
        judged.misnamed,
        tuple(node for node, standing in said.standing.items() if standing == "rejected") if said else (),
        judged.wrong,
        "" if judged.right else str(place),
    )


def _failed(why: str) -> Judged:
    return Judged(False, False, False, 0, 0, (), (why.splitlines()[0],))


def _attempt(trial: Trial, scene: Scene) -> tuple[Said, Judged, float]:
    row, lab = trial.row, scene.lab
    if trial.busy:
        lab.popen([sys.executable, "-S", "-c", _BUSY], stdout=subprocess.DEVNULL)
    row.plant(scene)
    planted = {node: left_on(lab, node) for node in lab.nodes if is_on(lab, node)}
    started = time.monotonic()
    running = Running(lab, scene.place / "report", "--workload", row.workload, *row.arguments(scene))
    if row.during is not None:
        row.during(scene, running)
    done = _finish(running, PATIENCE * row.limit_s)
    seconds = time.monotonic() - started
    (scene.place / "output.txt").write_text(done.output)
    said = read(done)
    judged = judge(row.expect, scene.drawn, lab.nodes, said)
    more = tuple(_late(row, seconds)) + tuple(_left(row, lab, planted))
    return said, _with(judged, more), seconds


def _finish(running: Running, most_s: float) -> Finished:
    """Wait for the end; a run that does not come to it is one that was ended."""
    try:
        return running.finish(most_s)
    except subprocess.TimeoutExpired:
        running.process.kill()
        output, _ = running.process.communicate()
        return Finished(running.process.returncode, output, running.report)


def _with(judged: Judged, more: tuple[str, ...]) -> Judged:
    return Judged(**{**vars(judged), "wrong": (*judged.wrong, *more)})


def _late(row: Row, seconds: float) -> Iterator[str]:
    if seconds > row.limit_s:
        yield f"took {seconds:.0f} s, and {row.limit_s:.0f} s is the limit"


def _left(row: Row, lab: Lab, planted: Mapping[str, list[str]]) -> Iterator[str]:
    """What of ours stays on the nodes that are on, beside what was planted there before the run."""
    for node in lab.nodes if row.cleans else ():
        before = planted.get(node, [])
        if is_on(lab, node) and (ours := _stays(lab, node, before)):
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
