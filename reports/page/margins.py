"""Nodes by metrics: how much of its limit each measurement takes up, the thinnest margin first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from reports import notation
from reports.record import Outcome

MOST_NODES, MOST_METRICS = 24, 10
ACROSS = "across nodes"  # the row of checks that ran on several nodes


class Margin(NamedTuple):
    """The share of a limit that one judgement takes up; `check` is the id of its check."""

    node: str
    metric: str
    used: float
    outcome: Outcome
    check: str
    measured: str
    limit: str

    @property
    def text(self) -> str:
        """`98.2 %`."""
        return f"{notation.number(100 * self.used, 3)} %"


@dataclass(frozen=True)
class Table:
    """A row per node with a cell per metric (None: nothing was judged), and how many are not shown."""

    metrics: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Margin | None, ...]], ...]
    more_nodes: int
    more_metrics: int


def table(margins: Iterable[Margin]) -> Table:
    """The thinnest margin of every node in every metric; nodes and metrics with the thinnest come first."""
    thinnest: dict[tuple[str, str], Margin] = {}
    nodes: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for one in margins:
        key = (one.node, one.metric)
        if key not in thinnest or one.used > thinnest[key].used:
            thinnest[key] = one
        nodes[one.node] = max(nodes.get(one.node, 0.0), one.used)
        metrics[one.metric] = max(metrics.get(one.metric, 0.0), one.used)
    shown = sorted(metrics, key=lambda name: -metrics[name])[:MOST_METRICS]
    rows = sorted(nodes, key=lambda name: -nodes[name])[:MOST_NODES]
    return Table(
        tuple(shown),
        tuple((node, tuple(thinnest.get((node, metric)) for metric in shown)) for node in rows),
        len(nodes) - len(rows),
        len(metrics) - len(shown),
    )
