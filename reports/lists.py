"""`accepted.txt`, `rejected.txt`, `unproven.txt`: hosts files of the nodes that stand so, with the reasons.

All three are always written, the one that hands nodes over last, so that a full disk cannot hand over
nodes of which the other lists know nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reports import atomic
from reports.clean import clean, first_line
from reports.verdict import NodeVerdict, RunVerdict, Standing

ORDER = (Standing.REJECTED, Standing.UNPROVEN, Standing.ACCEPTED)


def write(report_dir: Path, verdict: RunVerdict) -> None:
    """Write the three lists into `report_dir`."""
    for standing in ORDER:
        atomic.write_text(report_dir / f"{standing.value}.txt", text(verdict, standing))


def text(verdict: RunVerdict, standing: Standing) -> str:
    """The hosts file of the nodes that stand so."""
    return "".join(f"{line}\n" for line in (*_header(verdict, standing), *_entries(verdict, standing)))


def _header(verdict: RunVerdict, standing: Standing) -> Iterator[str]:
    nodes = verdict.standing(standing)
    yield _comment(
        f"{standing.value} for workload {verdict.workload or 'unknown'}"
        f" on hardware {verdict.hardware or 'unknown'}, run {verdict.run_id or 'unknown'}"
    )
    yield _comment(f"{len(nodes)} of {len(verdict.nodes)} nodes")
    if standing is Standing.ACCEPTED:
        yield from (_comment(f"nobody is accepted: {why}") for why in verdict.refusals)


def _entries(verdict: RunVerdict, standing: Standing) -> Iterator[str]:
    for node in verdict.standing(standing):
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
