"""Look at one GPU, point by point: a line for each, and the status 0 only if all are green.

Evidence of each point is below DIRECTORY: its log, its figures as lines of JSON, what tools printed.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from tests.gpu import hanging, points, training
from tests.gpu.frame import Point, all_of, status
from tests.house.tree import ROOT

POINTS = (
    Point("tools", points.tools),
    Point("suite-measured", points.suite_measured, 900.0),
    Point("suite-judged", points.suite_judged, 900.0),
    Point("process-groups", points.process_groups),
    Point("clock", points.clock),
    Point("payloads", points.payloads),
    Point("counting", training.counting, 300.0),
    Point("small-steps", training.small, 300.0),
    Point("at-size", training.at_size, 600.0),
    Point("hang", hanging.hang),
)


def main(arguments: list[str] | None = None) -> int:
    """Run all points, print a line for each, and say whether all are green."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "reports" / "gpu" / now)
    place = parser.parse_args(arguments).directory.absolute()
    place.mkdir(parents=True)
    found = []
    for said in all_of(POINTS, place):
        print(said, flush=True)
        found.append(said)
    print(f"evidence: {place}")
    return status(found)


if __name__ == "__main__":
    raise SystemExit(main())
