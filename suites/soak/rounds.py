"""Rounds of a soak beside the first of them: what a device, or the links of a node, has lost since then."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fixtures.check.findings import Answered, Findings, at, blame_of
from fixtures.check.judges.judging import value_of
from fixtures.cluster.measurement import Measurement, RankReport, Unchecked
from reports.record import Outcome
from thresholds import metrics
from thresholds.metrics import SampleError
from thresholds.units import is_finite
from thresholds.verdict import judge as hold

SLOPE = "slope"
_Speed = tuple[float, int, tuple[RankReport, ...]]  # in any unit, of so many samples, on whose account


def judge(answered: Answered) -> Findings:
    """Hold the share of each speed that was lost since the first round against the limit for a slope.

    Across nodes it is on record alone: it would be nobody's, and the floors are held in every round.
    """
    first, target = answered.first, answered.target
    findings = Findings()
    if first is None:
        return findings
    before, lost = dict(_speeds(first)), dict[str, float]()
    for what, (speed, samples, ranks) in _speeds(answered.measurement):
        if what not in before:
            continue
        lost[what] = 1 - speed / before[what][0]
        share = min(1.0, max(0.0, lost[what]))
        held = hold(target.hardware, SLOPE, target.case(), share, samples, required=False)
        if held is None or not target.planned.place.each:
            continue
        sentence = f"{held.sentence}; {what}, since the first round"
        findings.judgements.append(replace(held, sentence=sentence))
        if held.outcome is Outcome.FAIL:
            findings.blame.append(blame_of(ranks, sentence))
    findings.recorded["lost_since_first_round"] = lost
    return findings


def _speeds(measurement: Measurement) -> Iterator[tuple[str, _Speed]]:
    """Yield the median speed of each device, or of each size of a sweep, by what it is of."""
    if "sizes" in measurement.parameters:
        yield from _of_sizes(measurement)
        return
    for rank in measurement.ranks:
        for entry in value_of(rank, "series", list):
            yield f"products of {at(rank)}", _of_windows(entry, rank)


def _of_windows(entry: Mapping[str, object], rank: RankReport) -> _Speed:
    windows, products = entry.get("windows"), entry.get("products")
    if not isinstance(windows, list) or not windows or not all(map(is_finite, windows)) or min(windows) <= 0:
        raise Unchecked(f"{at(rank)} does not say how long each window took")
    if not is_finite(products) or products <= 0:
        raise Unchecked(f"{at(rank)} does not say how many products a window had")
    return products / statistics.median(windows), len(windows), (rank,)


def _of_sizes(measurement: Measurement) -> Iterator[tuple[str, _Speed]]:
    for index, size in enumerate(measurement.parameters["sizes"]):
        times = [rank.result["sizes"][index].get("seconds") or [] for rank in measurement.ranks]
        try:
            seconds = metrics.iteration_seconds(times)
        except SampleError as fault:
            raise Unchecked(f"{size} bytes cannot be judged: {fault}") from fault
        yield (
            f"{measurement.parameters['collective']} of {size} bytes",
            (
                1 / statistics.median(seconds),
                len(seconds),
                measurement.ranks,
            ),
        )
