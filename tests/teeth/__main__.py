"""`python -m tests.teeth [family ...]`: plant every seeded bug and print what caught it."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Iterator, Sequence

import tests.teeth
from tests.teeth.bug import HEALTHY, Bug, Trial, trials

_WIDTHS = (28, 44, 5, 22)


def families() -> dict[str, list[Bug]]:
    """The bugs by family: each module of this package that has BUGS is one, most named as a suite."""
    found = {}
    for module in sorted(pkgutil.iter_modules(tests.teeth.__path__), key=lambda module: module.name):
        if not module.name.startswith(("test_", "__")):
            bugs = getattr(importlib.import_module(f"tests.teeth.{module.name}"), "BUGS", None)
            if bugs is not None:
                found[module.name] = list(bugs)
    return found


def table(trials: Sequence[Trial]) -> Iterator[str]:
    """A line for each bug: where it was planted, what it had to turn red, and the sentence that says so."""
    yield _row("step", "bug", "ranks", "must turn red", "what is said then")
    for trial in trials:
        bug = trial.bug
        if bug.name != HEALTHY or trial.survived:
            wanted = "nothing" if bug.name == HEALTHY else ", ".join(bug.red)
            yield _row(bug.step, bug.name, str(bug.size), wanted, _said(trial))
    bugs = [trial for trial in trials if trial.bug.name != HEALTHY]
    caught = sum(not trial.survived for trial in bugs)
    sick = sum(bool(trial.survived) for trial in trials if trial.bug.name == HEALTHY)
    steps = len({trial.bug.step for trial in bugs})
    yield f"{caught} of {len(bugs)} bugs in {steps} steps are caught; {sick} healthy runs are not green"


def _said(trial: Trial) -> str:
    if trial.bug.name == HEALTHY:
        return f"NOT GREEN: {trial}"
    if trial.survived:
        others = f" ({', '.join(trial.red)} is red)" if trial.red else ""
        return f"SURVIVES: {', '.join(trial.survived)} stays green{others}"
    return trial.red[trial.bug.red[0]] if trial.bug.red else "SURVIVES: nothing was asked of it"


def _row(*cells: str) -> str:
    return "  ".join([*(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)), cells[-1]])


def main(arguments: list[str] | None = None) -> int:
    """Print the table; the status is 0 when every bug is caught and every healthy run is green."""
    known = families()
    parser = argparse.ArgumentParser(prog="python -m tests.teeth", description=__doc__)
    parser.add_argument("family", nargs="*", help=f"one of {', '.join(known)}; all of them without a name")
    asked = parser.parse_args(arguments).family or list(known)
    if unknown := [name for name in asked if name not in known]:
        parser.error(f"no such family: {', '.join(unknown)}; there is: {', '.join(known)}")
    found: list[Trial] = [trial for name in asked for trial in trials(known[name])]
    for line in table(found):
        print(line)
    return int(not found or any(trial.survived for trial in found))


if __name__ == "__main__":
    raise SystemExit(main())
