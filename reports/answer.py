"""The answer for the operator: a hosts file for each standing, and the last lines on the console.

All three hosts files are always written. `accepted.txt`, which hands nodes over, is written last: a full disk
must not leave accepted nodes without the lists of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reports.decision import NodeVerdict, RunVerdict, Standing
from reports.notation import fold
from reports.text import clean, first_line, write_file

_COMPACT_ABOVE = 32  # accepted nodes; more of them would push the bad ones off the screen
_ORDER = (Standing.REJECTED, Standing.UNPROVEN, Standing.ACCEPTED)


def write_lists(report_dir: Path, verdict: RunVerdict) -> None:
    """Write `rejected.txt`, `unproven.txt` and `accepted.txt`: hosts files with the reasons as comments."""
    for name, text in lists(verdict):
        write_file(report_dir / name, text)


def lists(verdict: RunVerdict) -> Iterator[tuple[str, str]]:
    """The name of each list, and what it says."""
    for standing in _ORDER:
        yield f"{standing.value}.txt", "".join(f"{line}\n" for line in _lines(verdict, standing))


def _lines(verdict: RunVerdict, standing: Standing) -> Iterator[str]:
    nodes = verdict.standing(standing)
    yield _comment(
        f"{standing.value} for workload {verdict.workload or 'unknown'}"
        f" on hardware {verdict.hardware or 'unknown'}, run {verdict.run_id or 'unknown'}"
    )
    yield _comment(f"{len(nodes)} of {len(verdict.nodes)} nodes")
    if standing is Standing.ACCEPTED:
        yield from (_comment(f"nobody is accepted: {why}") for why in verdict.refusals)
    for node in nodes:
        if standing is not Standing.ACCEPTED:
            yield _comment(f"{node.node}: {node.reason}")
        yield hosts_line(node) or _comment(f"{node.node} has no line in the hosts file of this run")


def hosts_line(node: NodeVerdict) -> str:
    """The hosts-file line of this node alone, even where the file named it by a range."""
    words = clean(node.host_line).split()
    if not words:
        return ""
    user, at, host = words[0].rpartition("@")
    if "[" in host:
        words[0] = f"{user}{at}{node.node}"
    return " ".join(words)


def _comment(sentence: str) -> str:
    return f"# {first_line(sentence, 1000)}"


def console_lines(verdict: RunVerdict, report: str = "report.html") -> list[str]:
    """One line per node (verdict, reason, where to look) and one for the run; `report` has the details.

    The bad nodes come last, where the reader looks when the run ends.
    """
    accepted = verdict.standing(Standing.ACCEPTED)
    others = (*verdict.standing(Standing.UNPROVEN), *verdict.standing(Standing.REJECTED))
    width = max((len(node.node) for node in verdict.nodes), default=0)
    counts = ", ".join(f"{number} {standing}" for standing, number in verdict.counts.items())
    terms = f"workload {verdict.workload or 'unknown'} on hardware {verdict.hardware or 'unknown'}"
    why = f"; nobody is accepted: {verdict.refusals[0]}" if verdict.refusals else ""
    return [
        *_accepted(accepted, width),
        *(_line(node, width) for node in verdict.standing(Standing.BESIDE)),
        *(_bad(node, width) for node in others),
        f"{counts} for {terms}{why}; details: {report}",
    ]


def _accepted(nodes: tuple[NodeVerdict, ...], width: int) -> Iterator[str]:
    if len(nodes) > _COMPACT_ABOVE:
        yield f"accepted  {len(nodes)} nodes: {fold(node.node for node in nodes)}"
    else:
        yield from (f"accepted  {node.node:<{width}}  {node.reason}" for node in nodes)


def _line(node: NodeVerdict, width: int) -> str:
    return f"{node.standing.value:<8}  {node.node:<{width}}  {first_line(node.reason, 240)}"


def _bad(node: NodeVerdict, width: int) -> str:
    where = f"  (see {node.checks[0]})" if node.checks and node.checks[0] not in node.reason else ""
    return _line(node, width) + where
