"""The last verdict of every node in Prometheus' text format, for node_exporter's textfile collector.

The format: https://prometheus.io/docs/instrumenting/exposition_formats. A verdict is a state set: a series
for each possible verdict, one of which is 1, so that an alert does not wait for an old series to vanish.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from reports.compare.runs import Run
from reports.decision import NodeVerdict, RunVerdict, Standing, decide
from reports.record import EndRecord

VERDICT, TIME = "shakedown_node_verdict", "shakedown_node_judged_timestamp_seconds"


def lines(runs: Sequence[Run]) -> Iterator[str]:
    """Two metrics of each node, by the newest run that judged it. A run of selected checks judges nobody."""
    newest: dict[str, tuple[Run, RunVerdict, NodeVerdict]] = {}
    for run in sorted(runs, key=_ended):
        verdict = decide(run.records)
        if not verdict.selection:
            judged = [node for node in verdict.nodes if node.standing is not Standing.BESIDE]
            newest.update({node.node: (run, verdict, node) for node in judged})
    yield f"# HELP {VERDICT} What the newest run says of the node: 1 for that verdict, 0 for others."
    yield f"# TYPE {VERDICT} gauge"
    for name, (_, verdict, node) in sorted(newest.items()):
        for standing in (standing for standing in Standing if standing is not Standing.BESIDE):
            about = {
                "node": name,
                "verdict": standing.value,
                "workload": verdict.workload,
                "hardware": verdict.hardware,
            }
            yield f"{VERDICT}{_labels(about)} {int(node.standing is standing)}"
    yield f"# HELP {TIME} When the newest acceptance run of the node ended, in seconds since 1970 (UTC)."
    yield f"# TYPE {TIME} gauge"
    for name, (run, _, _) in sorted(newest.items()):
        yield f"{TIME}{_labels({'node': name})} {_ended(run):.0f}"


def _ended(run: Run) -> float:
    """Give the end of a run, or the start of one that was cut off before it."""
    ends = (record.ended for record in run.records if isinstance(record, EndRecord))
    return datetime.fromisoformat(next(ends, "") or run.first.started).timestamp()


def _labels(about: dict[str, str]) -> str:
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    told = [f'{name}="{value.translate(escapes)}"' for name, value in about.items()]
    return "{" + ",".join(told) + "}"
