"""Seeded bugs: what a real stack could do wrong, planted in torch's calls, and what each must turn red."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fixtures.ranks import timing
from fixtures.ranks.steps import REGISTRY, Context
from fixtures.ranks.study import overlap
from tests.fixtures.ranks.gloo_world import run_world
from tests.suites import parallel

Patch = Callable[[], AbstractContextManager[Any]]
Maker = Callable[[Callable[..., Any]], Callable[..., Any]]
HEALTHY = "healthy"
MOST_UNFORMED = 3


@dataclass(frozen=True)
class Bug:
    """One bug in one step. `patch` makes the context manager that plants it, in every rank of the world.

    A bug of one rank alone asks `dist.get_rank()`. Every part in `red` must turn red: "parity", "repeat",
    "traffic", "memory", "figures", "wrong", "time", or "error" where the step itself must refuse to go on.
    `size` is the world's. Only one that is `timed` is measured as long as in a real run, and its time judged.
    """

    name: str
    step: str
    parameters: Mapping[str, Any]
    patch: Patch
    red: tuple[str, ...]
    size: int = 2
    timed: bool = False

    @property
    def run(self) -> tuple[int, str, str, bool]:
        """The same for bugs that are planted in the same run."""
        return self.size, self.step, json.dumps(dict(self.parameters), sort_keys=True), self.timed


@dataclass(frozen=True)
class Trial:
    """What became of a run with a bug in it: the parts that turned red, each with its sentence."""

    bug: Bug
    red: Mapping[str, str]

    @property
    def survived(self) -> tuple[str, ...]:
        """The parts that should have turned red and are green; of a healthy run those that are red."""
        if self.bug.name == HEALTHY:
            return tuple(self.red)
        return tuple(part for part in self.bug.red if part not in self.red)

    def __str__(self) -> str:
        bug = self.bug
        found = "; ".join(f"{part}: {sentence}" for part, sentence in self.red.items()) or "all is green"
        return f"{bug.name} in {bug.step} {dict(bug.parameters)} on {bug.size} ranks: {found}"


@contextmanager
def applied(bug: Bug) -> Iterator[None]:
    """Run with the bug planted."""
    with bug.patch():
        yield


@contextmanager
def replaced(owner: Any, name: str, make: Maker) -> Iterator[None]:
    """Put `make(original)` in the place of a function of torch, or of a method of one of its classes."""
    own = name in vars(owner)
    original = getattr(owner, name)
    # A static method that is put there, or put back, as a plain function would be handed the object.
    kept = vars(owner)[name] if own else original
    made = make(original)
    setattr(owner, name, staticmethod(made) if isinstance(kept, staticmethod) else made)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, kept)
        else:
            delattr(owner, name)


def survivors(bugs: Sequence[Bug]) -> list[str]:
    """Every bug that did not turn its parts red, and every healthy run that did not stay green."""
    return [str(trial) for trial in trials(bugs) if trial.survived]


def trials(bugs: Sequence[Bug]) -> list[Trial]:
    """Run each step healthy and then with each of its bugs, those of a step and a size in one world."""
    parallel.load([bug.step for bug in bugs])
    importlib.import_module("torch._dynamo")  # here once: some of torch's calls import it in every rank
    found: list[Trial] = []
    for size, step in sorted({(bug.size, bug.step) for bug in bugs}):
        here = [bug for bug in bugs if (bug.size, bug.step) == (size, step)]
        found += _trials_of(size, [*healthy(here), *here])
    return found


def healthy(bugs: Sequence[Bug]) -> list[Bug]:
    """The runs of these bugs without them, each once."""
    runs = {bug.run: bug for bug in bugs}
    return [replace(bug, name=HEALTHY, patch=nullcontext, red=()) for bug in runs.values()]


def _trials_of(size: int, bugs: Sequence[Bug]) -> list[Trial]:
    """A bug that breaks its world ends it, and the next begins with the bug after it."""
    found: list[Trial] = []
    unformed = 0
    while len(found) < len(bugs):
        more, why = _one_world(size, bugs[len(found) :])
        unformed += not more
        if unformed > MOST_UNFORMED:
            raise AssertionError(f"no world of {size} could be formed: {why}")
        found += more
    return found


def _one_world(size: int, bugs: Sequence[Bug]) -> tuple[list[Trial], str]:
    """The trials up to the first that broke the world, and what broke it; none if it was never formed."""
    with tempfile.TemporaryDirectory() as directory:
        said = [Path(directory) / f"{rank}.jsonl" for rank in range(size)]
        broke = ""
        try:
            run_world(size, lambda ctx: _rank(ctx, bugs, said[ctx.rank]))
        except (AssertionError, TimeoutError, EOFError) as error:
            broke = str(error) or type(error).__name__
        if not all(path.exists() for path in said):
            return [], broke  # on a busy machine gloo's ranks may fail to connect: no bug was in it yet
        by_rank = [_whole_lines(path) for path in said]
    whole = min(len(answers) for answers in by_rank)
    found = [
        Trial(bug, _red(bug, [answers[index] for answers in by_rank]))
        for index, bug in enumerate(bugs[:whole])
    ]
    if len(found) < len(bugs) and not any("error" in trial.red for trial in found):
        found.append(Trial(bugs[len(found)], {"error": broke.strip().splitlines()[-1]}))
    return found, broke


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """What a rank said before it ended; a line without its end was being written then."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def _rank(ctx: Context, bugs: Sequence[Bug], path: Path) -> None:
    """Run one after another; each answer is on disk before the next begins."""
    usual = timing.WINDOW_S, overlap.ROUNDS, overlap.STAGE_S
    with path.open("w", encoding="utf-8") as file:
        for bug in bugs:
            timing.WINDOW_S, overlap.ROUNDS, overlap.STAGE_S = usual if bug.timed else (0.0, 1, 0.0)
            try:
                with applied(bug):
                    answer = REGISTRY[bug.step](ctx, **bug.parameters)
            except BaseException as error:
                file.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
                raise
            file.write(json.dumps(answer) + "\n")
            file.flush()


def _red(bug: Bug, answers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    errors = [f"rank {rank}: {said['error']}" for rank, said in enumerate(answers) if "error" in said]
    if errors:
        return {"error": "; ".join(errors)}
    return parallel.red(bug.step, answers, bug.parameters, timed=bug.timed)
