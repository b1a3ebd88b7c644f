"""From healthy values to rows: floor = median x (1 - max(5.1 sigma, least margin)), ceilings likewise.

sigma is the standard deviation of what is left after the trim, in shares of the median. Its upper 95 % bound
is used, as few values estimate it badly. 5.1 sigma: see Z in noise.py. Nothing is subtracted later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from reports.record import Outcome
from thresholds.bounds import BoundError, bound, ceiling
from thresholds.calibrate.noise import SLOW_AT_MOST, Noise, Tolerance, limit, noise, strays, tolerance
from thresholds.calibrate.runs import Figure
from thresholds.calibrate.sift import Key, grouped
from thresholds.hardware import Hardware, LimitKind, LineRate
from thresholds.lookup import Case
from thresholds.units import METRICS, TAILS, format_number
from thresholds.verdict import judge, subject

LEAST_VALUES = 5  # five values below a floor by chance: 0.5 ** 5, three in a hundred
LEAST_LEFT = 3  # of those five, when a run was left out
LEAST_ITERATIONS = 5  # a median of five to nine ignores a spike and sees a fault of 8 %
WANTED_ITERATIONS = 10  # min_samples of a row that does not give it


@dataclass(frozen=True)
class Made:
    """One row to be written: a limit, or where `value` is None a gap for a figure that is only on record."""

    metric: str
    case: Case
    source: str
    kind: LimitKind = "min"
    value: float | None = None
    min_samples: int = WANTED_ITERATIONS


@dataclass
class Rows:
    """The rows, what was left out of them, and why some could not be made."""

    made: list[Made] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: dict[str, list[str]] = field(default_factory=dict)  # why -> the figures that have none


def each_once(faults: Mapping[str, Iterable[str]]) -> list[str]:
    """Every reason once, with its first figure and the number of others."""
    told = []
    for why, about in faults.items():
        names = list(about)
        told.append(f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}")
    return told


@dataclass(frozen=True)
class About:
    """What every row's source says: which nodes, runs and versions; `most`: the margins of --most-margin."""

    origin: str
    most: Mapping[str, float]

    def tolerance(self, metric: str) -> Tolerance:
        """The tolerance of a metric, with its --most-margin."""
        known = tolerance(metric)
        return replace(known, most=self.most[metric]) if metric in self.most else known


def shared(figures: Sequence[Figure], rates: LineRate, hint: str) -> tuple[list[Figure], list[str]]:
    """Compare bus bandwidths with their physical bound; a value above it measured something else.

    `hint` says how an unknown bound can be given.
    """
    found: list[Figure] = []
    faults: dict[str, dict[str, None]] = {}
    for one in figures:
        name = subject(one.metric, one.case)
        if not METRICS[one.metric].bounded:
            found.append(one)
            continue
        try:
            best, most = (f(one.case, rates, one.copy_rate) for f in (bound, ceiling))
        except BoundError as error:
            faults.setdefault(f"{error}; {hint}", {})[name] = None
            continue
        if one.value > most:
            above = f"{format_number(one.value, most)} GB/s is above the physical bound of"
            why = "something else was measured, or the line rate is wrong"
            what = f"{above} {format_number(most)} GB/s: {why}"
            faults.setdefault(what, {})[name] = None
        found.append(replace(one, share=one.value / best))
    return found, each_once(faults)


def rows(left: Sequence[Figure], gathered: Sequence[Figure], about: About) -> Rows:
    """A row for every figure that was gathered, from the values left without bad nodes and runs."""
    found = Rows()
    by_key: dict[Key, list[Made]] = {}
    healthy = grouped(left)
    for (key, variant), every in grouped(gathered).items():
        for made in _row(key, healthy.get((key, variant), []), every, about, found):
            by_key.setdefault(key, []).append(made)
    by_metric = {key: _loosest(same) for key, same in by_key.items()}
    found.made += [_no_lower_than_middle(one, key, by_metric) for key, one in by_metric.items()]
    return found


def _row(key: Key, group: list[Figure], every: list[Figure], about: About, found: Rows) -> Iterator[Made]:
    metric, case = key[0], dict(key[1])
    judged = any(one.judged for one in every)
    why = _too_few(group, every)
    if not why:
        allowed = about.tolerance(metric)
        dropped = strays([one.number for one in group], allowed)
        kept = [one for at, one in enumerate(group) if at not in dropped]
        counted = min(one.samples for one in kept) if metric == "slow_fraction" else 0
        healthy = noise([one.number for one in kept], allowed, counted)
        why = _why_not(kept, healthy, allowed)
    if not why:
        found.notes += [_note(subject(metric, case), group[at], healthy) for at in dropped]
        yield _made(key, kept, len(dropped), healthy, about)
    elif judged:
        found.faults.setdefault(why, []).append(subject(metric, case))
    else:
        yield Made(metric, case, f"on record only, and the runs give no limit for it: {why}")


def _too_few(group: Sequence[Figure], every: Sequence[Figure]) -> str:
    if len(every) < LEAST_VALUES:
        return f"too few values, {len(every)} and not {LEAST_VALUES}; add runs"
    if not group:
        return "every value is of a node or run that is left out; run again without it"
    if len(group) < LEAST_LEFT or 2 * len(group) <= len(every):
        return (
            f"{len(group)} of {len(every)} values are left, the others are of a node or run that is left out"
        )
    return ""


def _why_not(kept: list[Figure], healthy: Noise, allowed: Tolerance) -> str:
    """Why these values make no limit; "" when they do."""
    if (fewest := min(one.samples for one in kept)) < LEAST_ITERATIONS:
        return f"a value is the median of {fewest} iterations, and {LEAST_ITERATIONS} are needed"
    if healthy.margin > allowed.most:
        noisy = f"sigma {allowed.shown(healthy.sigma)} asks for a margin of {allowed.shown(healthy.margin)}"
        most = f"and more than {allowed.shown(allowed.most)} is no limit"
        return f"the values disagree too much: {noisy}, {most}: {_by_node(kept)}"
    return _no_limit(kept, healthy, allowed)


def _no_limit(kept: list[Figure], healthy: Noise, allowed: Tolerance) -> str:
    """Why the limit would be useless: nothing could fail it, or the values that it was made of do."""
    metric, more = kept[0].metric, METRICS[kept[0].metric].better == "more"
    value = limit(healthy, allowed, more_is_better=more)
    if more and value <= 0:
        return f"a median of {healthy.median:.3g} leaves no room for a floor"
    if metric == "slow_fraction" and value >= SLOW_AT_MOST:
        return f"a ceiling of {value:g} could not fail, for no more than half are slower than their median"
    if any((one.number < value) if more else (one.number > value) for one in kept):
        return f"the values disagree too much: some do not meet their own limit, {value:g}: {_by_node(kept)}"
    return ""


def _by_node(group: Sequence[Figure]) -> str:
    """The values by node, or by run where they belong to worlds across nodes."""
    across = any(len(one.nodes) > 1 for one in group)
    found: dict[str, list[float]] = {}
    for one in group:
        found.setdefault(one.run if across else one.nodes[0], []).append(one.value)
    shown = [
        f"{name} {format_number(min(values))}"
        + (f" to {format_number(max(values))}" if len(values) > 1 else "")
        for name, values in sorted(found.items())
    ]
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return ", ".join(shown[:8]) + more + f" {METRICS[group[0].metric].unit}".rstrip()


def _note(name: str, one: Figure, healthy: Noise) -> str:
    unit = METRICS[one.metric].unit
    value = f"{format_number(one.value)} {unit}".strip()
    whose = one.nodes[0] if len(one.nodes) == 1 else f"all of {', '.join(one.nodes)}, and can blame none"
    away = f", {100 * (one.number / healthy.median - 1):+.1f} %" if healthy.median else ""
    return (
        f"one value left out: {name} {value}{away} from the median, in run {one.run}; it belongs to {whose}"
    )


def _made(key: Key, kept: list[Figure], dropped: int, healthy: Noise, about: About) -> Made:
    metric, allowed = key[0], about.tolerance(key[0])
    more = METRICS[metric].better == "more"
    value = limit(healthy, allowed, more_is_better=more)
    of_bound = all(one.share is not None for one in kept)
    kind: LimitKind = "max" if not more else "min_of_bound" if of_bound else "min"
    if kind == "min_of_bound" and value > 1:  # a burst is faster than its bound, and a share is at most 1
        # in GB/s; the bound is the same for all, unless it was measured with each
        kind, value = "min", float(f"{min(value * one.value / (one.share or 1.0) for one in kept):.3g}")
    samples = min(WANTED_ITERATIONS, *(one.samples for one in kept))
    unit = "of the bound" if of_bound else METRICS[metric].unit
    out = f" and {dropped} left out as outliers" if dropped else ""
    median = f"median {healthy.median:.4g} {unit}".rstrip() + f", n {healthy.n}{out}"
    source = f"{about.origin}; {median}, {_margin(metric, healthy, about)}"
    return Made(metric, dict(key[1]), source, kind, value, samples)


def _margin(metric: str, healthy: Noise, about: About) -> str:
    allowed = about.tolerance(metric)
    noisy = f"sigma {allowed.shown(healthy.sigma)}, spread {allowed.shown(healthy.spread)}"
    how = "5.1 sigma" if healthy.margin > allowed.least else "the least margin"
    by_hand = f" (up to {allowed.shown(allowed.most)} allowed by hand)" if metric in about.most else ""
    return f"{noisy}; margin {allowed.shown(healthy.margin)}, {how}{by_hand}"


def _loosest(same: Sequence[Made]) -> Made:
    """One row for all checks that share a metric and its selectors: a limit that each of them meets."""
    limits = [one for one in same if one.value is not None]
    if len(limits) < len(same) or len(same) == 1:
        return next((one for one in same if one.value is None), same[0])
    sign = -1 if limits[0].kind == "max" else 1
    found = min(limits, key=lambda one: (one.kind == "min", sign * (one.value or 0.0)))
    fewest = min(one.min_samples for one in same)
    source = f"{found.source}; the loosest of {len(same)} checks that share this row"
    return replace(found, source=source, min_samples=fewest)


def _no_lower_than_middle(one: Made, key: Key, made: Mapping[Key, Made]) -> Made:
    """A tail's ceiling where the middle is noisier: no file may have it below the middle's."""
    metric, case = key
    middles = [
        made[name, case].value for name, tail in TAILS.items() if tail == metric and (name, case) in made
    ]
    least = max((value for value in middles if value is not None), default=0.0)
    if one.value is None or one.value >= least:
        return one
    return replace(one, value=least, source=f"{one.source}; raised to the ceiling of the median iteration")


def below(figures: Sequence[Figure], like: Hardware) -> Iterator[str]:
    """The limits of a file that the median of these values misses: these nodes are not healthy."""
    for (key, _), group in grouped(figures).items():
        middle = sorted(group, key=lambda one: one.number)[len(group) // 2]
        held = judge(
            like,
            middle.metric,
            dict(key[1]),
            middle.value,
            middle.samples,
            measured_gigabytes_per_s=middle.copy_rate,
            required=False,
        )
        if held is not None and held.outcome is Outcome.FAIL:
            yield f"by {like.name} these nodes are not healthy: {held.sentence}"
