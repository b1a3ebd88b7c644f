"""Steps of the nodes suite judged as the controller judges them, with limits that a broken device misses."""

from __future__ import annotations

from fixtures.check.findings import Findings
from fixtures.check.judges import device_data, devices, repeatability
from fixtures.check.plan import NODE
from fixtures.cluster.measurement import Measurement
from tests.fixtures.check.answered import aimed, answered, paper
from tests.thresholds.files import row

PARTS = ("series", "digests", "losses", "pattern", "kernels")
# Far from what any machine does: floors a hundredth of it, and 0.6 of the speed at the end of a run.
ROWS = {"tflops": "min = 0.0005", "copy": "min = 0.2", "triad": "min = 0.2", "slope": "max = 0.4"}


def judge(measurement: Measurement, part: str) -> Findings:
    """Judge one part of what the ranks of a node said."""
    judges = {
        "series": devices.figures,
        "losses": device_data.learning,
        "pattern": device_data.pattern,
        "kernels": device_data.kernels,
        "digests": repeatability.judge,
    }
    file = paper(*(row(*one) for one in ROWS.items()))
    return judges[part](answered(measurement, aimed(measurement, file, NODE), [measurement]))
