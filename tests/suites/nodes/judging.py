"""Steps of the nodes suite judged as the controller judges them, with limits that a broken device misses."""

from __future__ import annotations

from collections import Counter

from fixtures.check.findings import Findings
from fixtures.check.judges import device_data, devices, repeatability
from fixtures.check.plan import NODE, Case, Entries, Planned
from fixtures.check.target import Target
from fixtures.cluster.measurement import Measurement
from tests.fixtures.check.answered import answered, file_of
from tests.fixtures.scenario import HARDWARE
from thresholds.hardware import Hardware

PARTS = ("series", "digests", "losses", "pattern", "kernels")
# Far from what any machine does: floors a hundredth of it, and 0.6 of the speed at the end of a run.
ROWS = {"tflops": "min = 0.0005", "copy": "min = 0.2", "triad": "min = 0.2", "slope": "max = 0.4"}
ROW = """
[[limit]]
metric = "{metric}"
step = ["nodes.matmul", "nodes.memory", "nodes.slope", "nodes.training"]
{limit}
source = "tests/suites/nodes/judging.py in this repository"
date = 2026-11-20
"""


def hardware(rows: dict[str, str], more: str = "") -> Hardware:
    """A file with these limits for the steps of nodes; `more` is whatever else it says."""
    text = (
        HARDWARE.partition("[[limit]]")[0]
        + more
        + "".join(ROW.format(metric=metric, limit=limit) for metric, limit in rows.items())
    )
    return file_of(text)


def target(
    measurement: Measurement,
    file: Hardware,
    metrics: tuple[str, ...] = (),
    holds: Entries | None = Entries(),  # noqa: B008 - it is frozen
) -> Target:
    """Where a measurement comes from; of the entries that its ranks say there is no least."""
    planned = Planned(Case(measurement.step, holds=holds), NODE, measurement.world.nodes, "case", metrics)
    ranks = Counter(rank.node for rank in measurement.ranks)
    return Target(planned, ranks, file, measurement.backend, {})


def judge(measurement: Measurement, part: str) -> Findings:
    """Judge one part of what the ranks of a node said."""
    judges = {
        "series": devices.figures,
        "losses": device_data.learning,
        "pattern": device_data.pattern,
        "kernels": device_data.kernels,
        "digests": repeatability.judge,
    }
    return judges[part](answered(measurement, target(measurement, hardware(ROWS)), [measurement]))
