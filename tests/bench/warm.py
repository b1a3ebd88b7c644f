"""What a warm case costs, beside a torchrun for every case: run on a controller, prints one JSON object.

python -m tests.bench.warm HOSTS SSH_CONFIG KNOWN_HOSTS PYTHON
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from fixtures.cluster.cluster import Cluster
from fixtures.cluster.measurement import CaseRequest, Measurement, World
from tests.lab.controller import opened

WARM_CASES = 200
COLD_CASES = 3


def timed(cluster: Cluster, request: CaseRequest, environment: dict[str, str]) -> float:
    """Seconds of one case, order to answer, the start of its job included if it needs one."""
    began = time.perf_counter()
    (answer,) = cluster.run([request], environment)
    if not isinstance(answer, Measurement):
        raise SystemExit(f"the case was not measured: {answer}")
    return time.perf_counter() - began


def measure(cluster: Cluster) -> dict[str, float]:
    """Warm cases in one job, then cases that each start a job of their own (an environment of their own)."""
    request = CaseRequest("nodes.present", World(tuple(cluster.nodes)), {}, 60.0)
    timed(cluster, request, {})
    warm = [timed(cluster, request, {}) for _ in range(WARM_CASES)]
    cold = [timed(cluster, request, {"OMP_NUM_THREADS": str(2 + n)}) for n in range(COLD_CASES)]
    return {
        "warm_median_s": statistics.median(warm),
        "warm_worst_s": max(warm),
        "cold_median_s": statistics.median(cold),
    }


def main(arguments: list[str]) -> None:
    """Open the cluster, measure, leave it clean."""
    with opened(arguments, "benchmark") as cluster:
        print(json.dumps(measure(cluster)))


if __name__ == "__main__":
    main(sys.argv[1:])
