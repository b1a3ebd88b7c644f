"""Seeded bugs: what a real stack could do wrong, planted in torch's calls, and what each must turn red."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from fixtures.check.plan import Entries
from fixtures.ranks import timing
from fixtures.ranks.steps import Context
from fixtures.ranks.study import at_size, driver, overlap, pattern
from fixtures.ranks.study.deliveries import Deliveries
from suites.context import techniques
from tests.fixtures.ranks.gloo_world import run_world
from tests.suites import parallel

Patch = Callable[[], AbstractContextManager[Any]]
Maker = Callable[[Callable[..., Any]], Callable[..., Any]]
HEALTHY = "healthy"
MOST_UNFORMED = 3
_UNTIMED = ((timing, "WINDOW_S", 0.0), (overlap, "ROUNDS", 1), (overlap, "STAGE_S", 0.0))
_STUDIED = ((driver.Technique, "dtypes"), (techniques.ContextParallel, "studied"))
_GO_ON_IN_FP64 = {"zero.ddp", "pipeline.gpipe", "expert.m2n"}  # with what they have run in it
_SENT = {"wrong", "figures", "time"}
# What is done for some parts alone, and what it answers where none of them is asked for.
_SHOWS: tuple[tuple[set[str], Any, str, Any], ...] = (
    ({"parity"}, driver, "compared", []),
    ({"repeat", "memory"}, driver, "repeated", ([], [])),
    ({"repeat", "traffic"}, driver, "record_deliveries", nullcontext(Deliveries())),
    ({"memory"}, driver, "highest", []),
    ({"parity"}, driver, "begin", None),
    ({"figures"}, at_size, "taken_down", {}),
    (_SENT, pattern, "exact", []),
    (_SENT, pattern, "timed", pattern.Timed([1.0] * pattern.ITERATIONS, [])),
)


@dataclass(frozen=True)
class Bug:
    """One bug in one step. `patch` makes the context manager that plants it, in every rank of the world.

    A bug of one rank alone asks `dist.get_rank()`. Every part in `red` must turn red: "parity", "repeat",
    "traffic", "memory", "figures", "wrong", "time", or "error" where the step itself must refuse to go on.
    Only these are judged, and runs that show other parts are left out; without any, all of it is judged.
    `size` is the world's. Only one that is `timed` is measured as long as in a real run, and its time judged.
    What a step runs in fp64 and in bf16 runs in bf16 for one that is `narrow`, and for others in fp64.
    """

    name: str
    step: str
    parameters: Mapping[str, Any]
    patch: Patch
    red: tuple[str, ...]
    size: int = 2
    timed: bool = False
    narrow: bool = False

    @property
    def run(self) -> tuple[int, str, str, bool, bool]:
        """The same for bugs that are planted in the same run."""
        parameters = json.dumps(dict(self.parameters), sort_keys=True)
        return self.size, self.step, parameters, self.timed, self.narrow

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Of fp64 and bf16 those that it is planted in."""
        if self.timed or (self.narrow and self.step in _GO_ON_IN_FP64):
            return driver.EXACT, driver.TRAINED
        return (driver.TRAINED,) if self.narrow else (driver.EXACT,)


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


def planted(owner: Any, name: str, make: Maker) -> Patch:
    """The same, to be done when a bug is planted."""
    return lambda: replaced(owner, name, make)


def replacing(function: Callable[..., Any]) -> Maker:
    """Make it of a function that is called in the original's place, and handed the original first."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: function(original, *args, **kwargs)

    return make


def instead_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], Patch]:
    """Plant the function that follows in the place of another, which it is handed first."""
    return lambda function: planted(owner, name, replacing(function))


def where(chosen: Callable[..., bool], make: Maker) -> Maker:
    """Plant it in those calls alone that are chosen by their arguments."""

    def some(original: Callable[..., Any]) -> Callable[..., Any]:
        wrong = make(original)
        return lambda *args, **kwargs: (wrong if chosen(*args, **kwargs) else original)(*args, **kwargs)

    return some


def one_in(period: int, make: Maker) -> Maker:
    """Plant it in every so many calls."""

    def some(original: Callable[..., Any]) -> Callable[..., Any]:
        count = itertools.count(1)
        return where(lambda *_, **__: next(count) % period == 0, make)(original)

    return some


def of(name: str, make: Maker) -> Patch:
    """Plant it in a call of torch.distributed."""
    return planted(dist, name, make)


def told(**wrong: Any) -> Maker:
    """It is told this, whatever it was to be told."""
    return lambda original: lambda *args, **kwargs: original(*args, **{**kwargs, **wrong})


def never(_original: Callable[..., Any]) -> Callable[..., Any]:
    """It is not done."""
    return lambda *_, **__: None


def is_narrow(name: str) -> bool:
    """Whether its name says that it takes a run in bf16."""
    return "bf16" in name


def in_step(
    step: str, parameters: Mapping[str, Any], *rows: tuple[str, Patch, str], size: int = 2
) -> list[Bug]:
    """The bugs of one step: a row has a name, what plants it, and the parts that it must turn red."""
    return [
        Bug(name, step, parameters, patch, tuple(red.split()), size, narrow=is_narrow(name))
        for name, patch, red in rows
    ]


def survivors(bugs: Sequence[Bug]) -> list[str]:
    """Every bug that did not turn its parts red, and every healthy run that did not stay green."""
    return [str(trial) for trial in trials(bugs) if trial.survived]


def trials(bugs: Sequence[Bug]) -> list[Trial]:
    """Run each step healthy and then with each of its bugs, those of a step and a size in one world."""
    parallel.load([bug.step for bug in bugs])
    found: list[Trial] = []
    for size, step in sorted({(bug.size, bug.step) for bug in bugs}):
        here = [bug for bug in bugs if (bug.size, bug.step) == (size, step)]
        found += _trials_of(size, [*healthy(here), *here])
    return found


def healthy(bugs: Sequence[Bug]) -> list[Bug]:
    """The runs of these bugs without them, each once, and judged by all that the bugs are to turn red.

    What is to turn nothing red needs none: it is green, or it is told. Nor do steps at the size of training,
    which are planned: `make accept`, which a test runs, has each of them.
    """
    runs: dict[Any, list[Bug]] = {}
    for bug in bugs:
        if bug.red and not bug.parameters.get("at_size"):
            runs.setdefault(bug.run, []).append(bug)
    return [
        replace(
            each[0],
            name=HEALTHY,
            patch=nullcontext,
            red=tuple({part for one in each for part in one.red}),
        )
        for each in runs.values()
    ]


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
    with path.open("w", encoding="utf-8") as file:
        for bug in bugs:
            try:
                with _as_little(bug), bug.patch():
                    answer = parallel.told(ctx, bug.step, bug.parameters)
            except BaseException as error:
                file.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
                raise
            file.write(json.dumps(answer) + "\n")
            file.flush()


@contextmanager
def _as_little(bug: Bug) -> Iterator[None]:
    """Measure for no time, unless that is judged, and make no run of a study that shows nothing asked for."""
    every = not bug.red or "error" in bug.red
    with ExitStack() as less:
        for module, name, value in () if bug.timed else _UNTIMED:
            less.enter_context(mock.patch.object(module, name, value))
        for kind, name in _STUDIED:
            less.enter_context(mock.patch.object(kind, name, bug.dtypes))
        for parts, module, name, nothing in _SHOWS:
            if not (every or bug.timed or parts.intersection(bug.red)):
                # A Mock would keep what it is called with.
                less.enter_context(mock.patch.object(module, name, lambda *_, nothing=nothing, **__: nothing))
        yield


def _red(bug: Bug, answers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    errors = [f"rank {rank}: {said['error']}" for rank, said in enumerate(answers) if "error" in said]
    if errors:
        return {"error": "; ".join(errors)}
    # What the plan says is said of all dtypes, but for the axes and what follows of times.
    holds = parallel._holds
    alike = lambda told: Entries(axes=holds(told).axes, timed=holds(told).timed)  # noqa: E731
    unplanned = mock.patch.object(parallel, "_holds", alike)
    with nullcontext() if len(bug.dtypes) > 1 else unplanned:
        found = parallel.red(bug.step, answers, bug.parameters, timed=bug.timed)
    return {part: said for part, said in found.items() if not bug.red or part in (*bug.red, "error")}
