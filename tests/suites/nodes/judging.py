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
ROWS = {"copy": "min = 0.2", "triad": "min = 0.2", "slope": "max = 0.4"}
FLOPS, FLOPS_OF_16_BITS = "min = 0.0005", "min = 0.00005"  # a CPU may have no units for those


def judge(measurement: Measurement, part: str) -> Findings:
    """Judge one part of what the ranks of a node said."""
    judges = {
        "series": devices.figures,
        "losses": device_data.learning,
        "pattern": device_data.pattern,
        "kernels": device_data.kernels,
        "digests": repeatability.judge,
    }
    narrow = measurement.parameters.get("dtype") in ("bf16", "fp16")
    floors = {**ROWS, "tflops": FLOPS_OF_16_BITS if narrow else FLOPS}
    file = paper(*(row(*one) for one in floors.items()))
    return judges[part](answered(measurement, aimed(measurement, file, NODE), [measurement]))
