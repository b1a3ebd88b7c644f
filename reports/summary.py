"""What the console says last: one line per node (verdict, reason, where to look) and one line for the run."""

from __future__ import annotations

from collections.abc import Iterator

from reports.clean import first_line
from reports.hostlist import fold
from reports.verdict import NodeVerdict, RunVerdict, Standing

_COMPACT_ABOVE = 32  # accepted nodes; more of them would push the bad ones off the screen


def lines(verdict: RunVerdict, report: str = "report.html") -> list[str]:
    """The bad nodes last, where the eye is when the run ends; `report` is where the reader finds more."""
    accepted = verdict.standing(Standing.ACCEPTED)
    others = (*verdict.standing(Standing.UNPROVEN), *verdict.standing(Standing.REJECTED))
    width = max((len(node.node) for node in verdict.nodes), default=0)
    return [*_accepted(accepted, width), *(_bad(node, width) for node in others), _closing(verdict, report)]


def _accepted(nodes: tuple[NodeVerdict, ...], width: int) -> Iterator[str]:
    if len(nodes) > _COMPACT_ABOVE:
        yield f"accepted  {len(nodes)} nodes: {fold(node.node for node in nodes)}"
    else:
        yield from (f"accepted  {node.node:<{width}}  {node.reason}" for node in nodes)


def _bad(node: NodeVerdict, width: int) -> str:
    where = f"  (see {node.checks[0]})" if node.checks and node.checks[0] not in node.reason else ""
    return f"{node.standing.value:<8}  {node.node:<{width}}  {first_line(node.reason, 240)}{where}"


def _closing(verdict: RunVerdict, report: str) -> str:
    counts = ", ".join(f"{len(verdict.standing(standing))} {standing.value}" for standing in Standing)
    forms = f"workload {verdict.workload or 'unknown'} on hardware {verdict.hardware or 'unknown'}"
    why = f"; nobody is accepted: {verdict.refusals[0]}" if verdict.refusals else ""
    return f"{counts} for {forms}{why}; details: {report}"
