"""Which nodes and runs are not healthy, and which of them the evidence can name.

A value of one node belongs to that node. A value of a world across nodes belongs to all of its nodes: in a
ring all are as slow as the slowest. If it is low it condemns the run, and no node.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from thresholds.calibrate.noise import FEWEST_TO_COMPARE, outliers, tolerance
from thresholds.calibrate.runs import Figure
from thresholds.units import METRICS, format_number
from thresholds.verdict import subject

Key = tuple[str, tuple[tuple[str, str | int], ...]]  # a metric, and the selectors of a case


@dataclass
class Sifted:
    """The figures that are left, and what was left out, with reasons."""

    figures: tuple[Figure, ...]
    nodes: dict[str, str] = field(default_factory=dict)  # left out, each with its reason
    runs: dict[str, str] = field(default_factory=dict)  # their values across nodes are not used
    faults: list[str] = field(default_factory=list)


def key_of(figure: Figure) -> Key:
    """The metric and selectors of a row for this figure."""
    return figure.metric, tuple(sorted(figure.case.items()))


def grouped(figures: Iterable[Figure]) -> dict[tuple[Key, str], list[Figure]]:
    """The values grouped by metric, selectors and check."""
    found: dict[tuple[Key, str], list[Figure]] = {}
    for figure in figures:
        found.setdefault((key_of(figure), figure.variant), []).append(figure)
    return dict(sorted(found.items(), key=lambda item: str(item[0])))


def sift(figures: Sequence[Figure]) -> Sifted:
    """Leave out bad nodes, with all that they took part in, and then bad runs, until none are left."""
    found = Sifted(tuple(figures))
    nodes = {node for figure in figures for node in figure.nodes}
    runs = {figure.run for figure in figures if len(figure.nodes) > 1}
    while bad := _bad_nodes(found.figures):
        found.nodes |= bad
        found.figures = tuple(one for one in found.figures if not bad.keys() & set(one.nodes))
        if 2 * len(found.nodes) >= len(nodes):
            found.faults.append(_no_majority(found.nodes, nodes, "nodes"))
            return found
    while bad := _bad_runs(found.figures):
        found.runs |= bad
        found.figures = tuple(one for one in found.figures if len(one.nodes) == 1 or one.run not in bad)
        if 2 * len(found.runs) >= len(runs):
            found.faults.append(_no_majority(found.runs, runs, "runs"))
            return found
    return found


def _no_majority(bad: Mapping[str, str], every: set[str], what: str) -> str:
    reasons = "; ".join(f"{name}: {why}" for name, why in sorted(bad.items()))
    left = len(every) - len(bad)
    return f"{left} of {len(every)} {what} would be left, which is no majority to learn from: {reasons}"


def _bad_nodes(figures: Sequence[Figure]) -> dict[str, str]:
    """Nodes on the bad side in at least half of their values of some figure that is judged."""
    found: dict[str, str] = {}
    for (key, _), group in grouped(figures).items():
        if any(len(one.nodes) > 1 for one in group) or not any(one.judged for one in group):
            continue
        bad = bad_of(group)
        for node in {one.nodes[0] for one in bad} - set(found):
            own = [one for one in group if one.nodes[0] == node]
            low = [one for one in bad if one.nodes[0] == node]
            if 2 * len(low) >= len(own):
                found[node] = _against(key, low, group, f"{len(low)} of its {len(own)} values")
    return found


def _bad_runs(figures: Sequence[Figure]) -> dict[str, str]:
    """Runs on the bad side in at least half of the judged figures across nodes."""
    took: dict[str, int] = {}
    low: dict[str, list[str]] = {}
    worlds: dict[str, set[str]] = {}
    for (key, _), group in grouped(figures).items():
        if all(len(one.nodes) > 1 for one in group) and any(one.judged for one in group):
            bad = {one.run: one for one in bad_of(group)}
            for one in group:
                took[one.run] = took.get(one.run, 0) + 1
                worlds.setdefault(one.run, set()).update(one.nodes)
            for run, one in bad.items():
                low.setdefault(run, []).append(_against(key, [one], group, ""))
    bad_runs = {run for run, said in low.items() if 2 * len(said) >= took[run]}
    hint = _only_there(worlds, bad_runs)
    return {run: f"{low[run][0]} (and {len(low[run]) - 1} more){hint}" for run in sorted(bad_runs)}


def _only_there(worlds: Mapping[str, set[str]], bad: set[str]) -> str:
    """The nodes that took part in every bad run and in no other: suspects, if there are any."""
    if not bad:
        return ""
    inside = set.intersection(*(worlds[run] for run in bad))
    outside = set().union(*(nodes for run, nodes in worlds.items() if run not in bad))
    only = sorted(inside - outside)
    if not only:
        return "; it belongs to all nodes of the world, so that no node can be named"
    return f"; {', '.join(only)} took part in such runs only: look there first"


def bad_of(group: Sequence[Figure]) -> list[Figure]:
    """The outliers of a figure that are worse than the rest."""
    if len(group) < FEWEST_TO_COMPARE:
        return []
    metric = group[0].metric
    middle = statistics.median(one.number for one in group)
    more = METRICS[metric].better == "more"
    positions = outliers([one.number for one in group], tolerance(metric))
    return [group[at] for at in positions if (group[at].number < middle) == more]


def _against(key: Key, bad: Sequence[Figure], group: Sequence[Figure], how_many: str) -> str:
    value = format_number(statistics.median(one.value for one in bad))
    middle = format_number(statistics.median(one.value for one in group))
    unit = METRICS[key[0]].unit
    beside = f"{value} {unit}".strip() + f" beside a median of {middle} {unit}".rstrip()
    return f"{subject(key[0], dict(key[1]))} {beside}" + (f" in {how_many}" if how_many else "")
