"""`python -m tests.faults.matrix`: plant the faults of the catalogue, print what the suite made of them."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.bounds import sentence
from tests.faults.matrix import table
from tests.faults.matrix.draw import fresh_seed
from tests.faults.matrix.results import Result, Results
from tests.faults.matrix.row import Row
from tests.faults.matrix.rows import HEALTHY, ROWS, SLOW_LINK, chosen
from tests.faults.matrix.trial import Trial, run


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m tests.faults.matrix", description=__doc__)
    top.add_argument("--rows", nargs="+", default=["*"], metavar="NAME", help="names or patterns (all)")
    top.add_argument("--repeats", type=int, default=3, metavar="N", help="of every row (default: 3)")
    top.add_argument("--seed", type=int, help="draws the same nodes again (default: that of --results)")
    top.add_argument("--results", type=Path, metavar="FILE", help="appended after every trial; resumes")
    top.add_argument("--keep", type=Path, metavar="DIR", help="for reports of what went wrong")
    top.add_argument("--list", action="store_true", help="say what there is, and do nothing")
    top.add_argument("--healthy", type=int, metavar="N", help="N runs without a fault, on a busy machine")
    top.add_argument("--workload", help="of the healthy runs (default: full)")
    top.add_argument("--slow-link", type=int, metavar="N", help="N runs with one of eight links a tenth slow")
    return top


def planned(options: argparse.Namespace, seed: int) -> list[Trial]:
    """The trials that were asked for, repeat after repeat, so that all rows are seen early."""
    if options.healthy is not None:
        row = replace(HEALTHY, workload=options.workload or HEALTHY.workload)
        return [Trial(row, repeat, seed, busy=True) for repeat in range(options.healthy)]
    if options.slow_link is not None:
        return [Trial(SLOW_LINK, repeat, seed) for repeat in range(options.slow_link)]
    rows = chosen(options.rows)
    return [Trial(row, repeat, seed) for repeat in range(options.repeats) for row in rows]


def carry_out(trials: Sequence[Trial], results: Results, keep: Path) -> Iterator[Result]:
    """Run the trials that have no result yet, and give those that ran now."""
    for trial in trials:
        if results.of(trial.key) is None:
            row, repeat, seed = trial.key
            result = run(trial, keep / f"{row}-{seed}-{repeat}")
            results.add(result)
            yield result


def said(result: Result) -> str:
    """One trial in one line."""
    drawn = ", ".join(result.drawn) or "nobody"
    end = "right" if result.right else f"WRONG: {'; '.join(result.wrong)}; see {result.report}"
    return f"{result.row} {result.repeat} on {drawn}: {result.seconds:.0f} s, {end}"


def summary(options: argparse.Namespace, trials: Sequence[Trial], results: Sequence[Result]) -> Iterator[str]:
    """What all trials together say."""
    rows = list({trial.row.name: trial.row for trial in trials}.values())
    yield from table.table(rows, results)
    yield from table.wrong(results)
    if options.healthy is not None:
        yield from of_healthy(results)
    elif options.slow_link is not None:
        yield from of_slow_link(results)
    else:
        yield from table.impossible()
        yield from of_matrix(rows, results)


def of_healthy(results: Sequence[Result]) -> Iterator[str]:
    """How often a healthy run rejected a node, and how often it did not accept everybody."""
    count = len(results)
    yield sentence(sum(bool(one.rejected) for one in results), count, "false fails")
    yield sentence(sum(not one.right for one in results), count, "runs that did not accept everybody")


def of_slow_link(results: Sequence[Result]) -> Iterator[str]:
    """How often the slow link was named, nobody was, or somebody else was."""
    strange = [one for one in results if one.misnamed]
    named = [one for one in results if one not in strange and set(one.rejected) == set(one.drawn)]
    count = len(results)
    yield sentence(len(named), count, "named")
    yield sentence(count - len(named) - len(strange), count, "not named, nobody else either")
    yield sentence(len(strange), count, "a wrong name")


def of_matrix(rows: Sequence[Row], results: Sequence[Result]) -> Iterator[str]:
    """How often a fault was missed, and a healthy node named."""
    faults = {row.name for row in rows if row.expect.status != (0,)}
    there = [one for one in results if one.row in faults]
    yield sentence(sum(not one.detected for one in there), len(there), "missed")
    yield sentence(sum(bool(one.misnamed) for one in results), len(results), "a healthy node named")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 0 only when every trial has a result and every result is right."""
    top = parser()
    options = top.parse_args(arguments)
    if options.list:
        print(*table.listed(ROWS), *table.impossible(), sep="\n")
        return 0
    results = Results(options.results)
    seed = next((one for one in (options.seed, results.last_seed) if one is not None), None)
    seed = fresh_seed() if seed is None else seed
    try:
        trials = planned(options, seed)
    except ValueError as error:
        top.error(str(error))
    keep = options.keep or Path(tempfile.mkdtemp(prefix="shakedown-faults-"))
    print(f"seed {seed}; {len(trials)} trials; reports of what goes wrong: {keep}", flush=True)
    for result in carry_out(trials, results, keep):
        print(said(result), flush=True)
    found = results.among(trial.key for trial in trials)
    print(*summary(options, trials, found), f"seed {seed}", sep="\n")
    return int(not found or len(found) < len(trials) or any(not one.right for one in found))


if __name__ == "__main__":
    sys.exit(main())
