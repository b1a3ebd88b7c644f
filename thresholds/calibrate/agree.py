"""Whether runs may be combined: one hardware, one workload, one set of versions, each run once."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence

from reports.notation import fold
from thresholds.calibrate.runs import Figure, Run
from thresholds.calibrate.sift import Sifted
from thresholds.hardware import Hardware
from thresholds.match import differences
from thresholds.units import format_size

LEAST_RUNS = 2  # one run says nothing about what repeats
LEAST_NODES = 2  # one node says nothing about what nodes of its kind have in common
VARYING = frozenset({"netdevs"})  # of a node's identity: containers have their own network devices
_Kinds = dict[str, list[str]]  # value -> the runs or nodes that have it


def disagreements(runs: Sequence[Run]) -> Iterator[str]:
    """Every way in which the runs differ."""
    for number, run in enumerate(runs):
        if run.id in {other.id for other in runs[:number]}:
            yield f"{run.path}: run {run.id} is given twice"
    yield from _differ("the runs differ in their workload", ((run.workload, run.id) for run in runs))
    yield from _differ("the runs differ in their selection", ((run.selection, run.id) for run in runs))
    said = [pair for run in runs for pair in run.said.items()]
    kinds = ((_alike(facts), node) for node, facts in said)
    yield from _differ("the nodes are different hardware", kinds)
    for name in sorted({name for run in runs for name in run.versions}):
        told = ((version, run.id) for run in runs for version in run.versions.get(name, ["unknown"]))
        yield from _differ(f"{name} is not the same everywhere", told)


def _alike(facts: Mapping[str, str | int]) -> str:
    """What nodes of one kind say alike of themselves."""
    return ", ".join(f"{name} = {value}" for name, value in facts.items() if name not in VARYING)


def _differ(what: str, told: Iterable[tuple[str, str]]) -> Iterator[str]:
    kinds: _Kinds = {}
    for value, who in told:
        kinds.setdefault(value, []).append(who)
    if len(kinds) > 1:
        listed = "; ".join(f"{value or 'all'} ({fold(who)})" for value, who in sorted(kinds.items()))
        yield f"{what}: {listed}"


def too_little(runs: Sequence[Run], sifted: Sifted) -> Iterator[str]:
    """Too few runs, or too few nodes that are left."""
    if len(runs) < LEAST_RUNS:
        yield f"{len(runs)} run is too few, {LEAST_RUNS} are needed to see what repeats"
    left = nodes_of(runs) - sifted.nodes.keys()
    if len(left) < LEAST_NODES:
        yield f"{len(left)} node is too few, {LEAST_NODES} are needed to see what nodes have in common"


def nodes_of(runs: Iterable[Run]) -> set[str]:
    """Every node that a run knew."""
    return {node for run in runs for node in run.said}


def day_of(runs: Sequence[Run]) -> datetime.date | None:
    """The day on which the last of the runs began; None where one does not say."""
    try:
        return max(datetime.datetime.fromisoformat(run.started) for run in runs).date()
    except (ValueError, TypeError):  # not a time, or times with and without a zone
        return None


def unlike(runs: Sequence[Run], figures: Sequence[Figure], like: Hardware) -> Iterator[str]:
    """Where the hardware or the sizes of the runs are not those of a file."""
    kinds: dict[str, set[str]] = {}
    for run in runs:
        for node, facts in run.said.items():
            for difference in differences(like, facts):
                kinds.setdefault(difference, set()).add(node)
    for difference, nodes in sorted(kinds.items()):
        yield f"{fold(sorted(nodes))} is not {like.name}: {difference}"
    swept = {one.case.get("size") for one in figures if one.metric == "busbw"}
    missing = [format_size(size) for size in like.sweep.plateau if swept and size not in swept]
    if missing:
        yield f"{like.name} judges {', '.join(missing)}, and the runs did not; run with that file"


def origin(runs: Sequence[Run], sifted: Sifted) -> str:
    """The origin of all figures, for the source of every row."""
    nodes = sorted(nodes_of(runs) - sifted.nodes.keys())
    ids = [run.id for run in runs]
    return f"{_counted(nodes, 'healthy node')} in {_counted(ids, 'run')}; {versions(runs)}"


def _counted(names: Sequence[str], what: str) -> str:
    folded = fold(names)
    named = folded if len(folded) <= 300 else f"{names[0]} ... {names[-1]}, all in the head of this file"
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'} ({named})"


def versions(runs: Sequence[Run]) -> str:
    """The versions of all runs, which agree."""
    first: Mapping[str, frozenset[str]] = runs[0].versions
    return ", ".join(f"{name} {' '.join(sorted(said))}" for name, said in first.items()) or "versions unknown"
