"""Print in Markdown how often searches err: `python -m tests.simulation [NODES ...]`, or `--flaps COUNT`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tests.simulation.flapping import lines
from tests.simulation.study import Errors, settings, study, table

SIZES = (64, 256, 1024, 4096)
NODES = 12_000  # in all searches of one row


def rows(sizes: list[int], nodes: int) -> Iterator[Errors]:
    """Search in every setting until so many nodes were looked at."""
    for setting in settings(sizes):
        yield study(setting, max(3, nodes // setting.nodes))


def main() -> None:
    """Print the table line by line, as the searches are made."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, help="how many nodes to search among")
    parser.add_argument("--nodes", type=int, default=NODES, help="how many nodes each row looks at in all")
    parser.add_argument("--flaps", type=int, help="look instead so often for a NIC that is away now and then")
    given = parser.parse_args()
    for line in lines(given.flaps) if given.flaps else table(rows(given.sizes, given.nodes)):
        print(line, flush=True)


main()
