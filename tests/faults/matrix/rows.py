"""All rows of the matrix, and how they are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from tests.faults.matrix.row import Row, harmless, rejected
from tests.faults.matrix.rows_hardware import HARDWARE
from tests.faults.matrix.rows_links import LINKS, slow_link
from tests.faults.matrix.rows_ranks import COMPUTE, DATA, NODES, RANKS
from tests.faults.matrix.rows_run import RUN
from tests.faults.matrix.rows_setup import ROOM, SOFTWARE, SSH

ROWS: tuple[Row, ...] = (
    *LINKS,
    *NODES,
    *RANKS,
    *DATA,
    *COMPUTE,
    *SSH,
    *SOFTWARE,
    *ROOM,
    *HARDWARE,
    *RUN,
)
# Not faults of the matrix: how often nothing is found where nothing is, and a tenth where a tenth is missing.
HEALTHY = Row("healthy", 0, "nothing at all", harmless(), workload="full", limit_s=1800.0, faulty=0)
SLOW_LINK = Row(
    *("slow-link-of-8", 1, "one of eight links at 180 of 200 Mbit/s"),
    rejected("nic"),
    slow_link,
    nodes=8,
    limit_s=900.0,
)
# One of each kind of answer, the fastest of it.
FEW = ("host-key-changed", "wrong-products", "nic-missing", "run-killed")


def chosen(patterns: Sequence[str]) -> tuple[Row, ...]:
    """The rows whose names match one of these patterns, in the matrix's order; ValueError names the rest."""
    idle = [one for one in patterns if not any(fnmatchcase(row.name, one) for row in ROWS)]
    if idle:
        raise ValueError(f"no row is called {', '.join(idle)}; --list says which there are")
    return tuple(row for row in ROWS if any(fnmatchcase(row.name, one) for one in patterns))
