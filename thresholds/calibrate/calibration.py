"""Make a hardware file from healthy runs, or give all reasons why these runs make none.

Nothing is written where runs or nodes disagree, where data were wrong or a run was cut short: a floor learned
from bad nodes accepts bad nodes for as long as the file is used.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reports.notation import fold
from thresholds.calibrate import agree
from thresholds.calibrate import runs as calibrate_runs
from thresholds.calibrate import tables as calibrate_tables
from thresholds.calibrate.file import comment, text_of
from thresholds.calibrate.rows import About, Made, below, each_once, rows, shared
from thresholds.calibrate.runs import Run
from thresholds.calibrate.sift import Sifted, sift
from thresholds.hardware import Hardware
from thresholds.loading.faults import HardwareFileError
from thresholds.loading.load import read
from thresholds.lookup import absent

HINT = "say what the link carries with --line-rate, or name a file that does with --like"
HINT_LIKE = "a run with --hardware and that file measures what it calls measured"


class Refused(Exception):
    """The runs make no file; `reasons` are all of them."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(dict.fromkeys(reasons))
        super().__init__("\n".join(self.reasons))


@dataclass(frozen=True)
class Asked:
    """What the command line says. `rates` are line rates in GB/s, `most` the margins of --most-margin."""

    name: str = ""
    like: Hardware | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration:
    """The text of the file, and what was left out of it."""

    text: str
    notes: tuple[str, ...]
    limits: int
    gaps: int


def calibrate(words: Sequence[str], asked: Asked) -> Calibration:
    """Make a hardware file of these runs; `Refused` with every reason when they make none."""
    runs = [calibrate_runs.read(word) for word in words]
    reasons = [fault for run in runs for fault in run.faults]
    like = asked.like
    measured = [figure for run in runs for figure in run.figures]
    figures = [one for one in measured if like is None or absent(like, one.case) is None]
    if not figures:
        raise Refused([*reasons, "no figure was measured, so that there is nothing to make a limit of"])
    if not all(run.id for run in runs):
        raise Refused(reasons)
    reasons += agree.disagreements(runs)
    if like:
        reasons += agree.unlike(runs, figures, like)
    day = agree.day_of(runs)
    if day is None:
        reasons.append("the runs do not say when they began")
    if like:
        tables, rates = calibrate_tables.of_file(like, asked.name), like.line_rate
    else:
        tables = calibrate_tables.of_runs(runs, figures, asked.name, asked.rates)
        rates = calibrate_tables.rates(tables["line_rate"])
    gathered, faults = shared(figures, rates, HINT_LIKE if like else HINT)
    sifted = sift(gathered)
    reasons += [*faults, *sifted.faults, *agree.too_little(runs, sifted)]
    day = day or datetime.date.min
    made = rows(sifted.figures, gathered, About(agree.origin(runs, sifted), asked.most))
    reasons += [*each_once(made.faults), *(below(sifted.figures, like) if like else ())]
    if reasons:
        raise Refused([*reasons, *_left_out(sifted)])
    notes = (*_notes(runs, sifted, asked), *made.notes)
    return _checked(_head(runs, notes) + "\n" + text_of(tables, made.made, day), notes, made.made)


def _checked(text: str, notes: tuple[str, ...], made: Sequence[Made]) -> Calibration:
    try:
        read(text.encode(), Path("calibrated.toml"))
    except HardwareFileError as error:
        raise Refused(f"the file would not be good: {fault.text}" for fault in error.faults) from error
    gaps = sum(row.value is None for row in made)
    return Calibration(text, notes, len(made) - gaps, gaps)


# notes and the head of the file


def _left_out(sifted: Sifted) -> Iterator[str]:
    for node, why in sorted(sifted.nodes.items()):
        yield f"node {node} is left out, with everything that it took part in: {why}"
    for run, why in sorted(sifted.runs.items()):
        yield f"run {run} is left out of all figures across nodes: {why}"


def _notes(runs: Sequence[Run], sifted: Sifted, asked: Asked) -> Iterator[str]:
    yield from _left_out(sifted)
    if any(run.hardware == "none" for run in runs):
        yield "what carried the data was not judged (--hardware none): see the transport in the reports"
    if asked.like is None:
        yield (
            "[match] is what the nodes say of themselves, line rates are those of --line-rate; "
            "without NVLS and SHARP in them, as nothing here says whether the switches reduce"
        )


def _head(runs: Sequence[Run], notes: Sequence[str]) -> str:
    return comment(
        [
            "Made by `python -m thresholds calibrate` from runs of nodes that were believed healthy. A floor "
            "is median x (1 - margin), a ceiling median x (1 + margin). The margin is 5.1 sigma (its upper "
            "95 %) or the least margin of the metric; figures without unit have plain amounts.",
            "",
            f"Nodes: {fold(sorted(agree.nodes_of(runs)))}",
            f"Runs: {', '.join(f'{run.id} ({run.started})' for run in runs)}",
            f"Versions: {agree.versions(runs)}",
            *notes,
        ]
    )
