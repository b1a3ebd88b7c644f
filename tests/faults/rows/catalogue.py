"""The catalogue of what goes wrong in clusters: its rows, and what no lab of namespaces can show."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.faults.rows.hardware import HARDWARE
from tests.faults.rows.links import LINKS
from tests.faults.rows.ranks import COMPUTE, DATA, NODES, RANKS
from tests.faults.rows.row import Row
from tests.faults.rows.run import RUN
from tests.faults.rows.setup import ROOM, SOFTWARE, SSH

ROWS: tuple[Row, ...] = (
    *(*LINKS, *NODES, *RANKS, *DATA, *COMPUTE),
    *(*SSH, *SOFTWARE, *ROOM, *HARDWARE, *RUN),
)
# The rows that run for every change (all rows take hours): some in their own labs, with marks, and some that
# share a lab.
# There are smaller tests: of run-interrupted in tests/fixtures/run/test_plugin.py, and of supervisor-killed
# and second-run in tests/fixtures/cluster/test_cluster.py.
USUAL = {"healthy-in-a-budget": (), "run-killed": (pytest.mark.untimed,)}
TOGETHER = (
    # before anything is measured
    (
        *("rails-swapped", "nic-missing", "storage-silent", "torch-missing", "shell-noisy"),
        *("off", "host-key-changed", "key-refused", "python-missing", "tmp-small", "held"),
    ),
    # at work
    ("link-slow", "wrong-results", "cable-pulled", "power-off"),
)
CATALOGUE = {
    0: "nothing",
    1: "slow NIC or cable",
    2: "one directed link or path is slow",
    3: "NIC missing, port down, wrong count",
    4: "wrong network used",
    5: "link flap, intermittent loss",
    6: "blackhole, access list, wrong subnet",
    7: "MTU mismatch",
    8: "miswired rails, swapped cables",
    9: "oversubscribed or failed spine",
    10: "NVLink or NVSwitch degraded, fabric manager down",
    11: "PCIe downgrade, ACS",
    12: "slow GPU: clocks, heat, power",
    13: "contention on the host",
    14: "silent corruption in computing",
    15: "corruption in transit or reduction",
    16: "wrong or slow only under overlap",
    17: "straggler, process that hangs",
    18: "rank or node that crashes",
    19: "versions that differ",
    20: "settings that differ",
    21: "clock skew",
    22: "storage missing or stale",
    23: "disk, shared memory or ports full",
    24: "names and addresses",
    25: "SSH",
    26: "leftovers, a second run",
    27: "slow only after a while",
    28: "fails only at scale",
    29: "all nodes equally wrong",
    30: "a fault of the suite or of its input",
}


@dataclass(frozen=True)
class Impossible:
    """A fault of the catalogue, or a kind of it, that is not planted, and why."""

    catalogue: int
    fault: str
    reason: str


CANNOT = (
    Impossible(4, "NCCL falls back to TCP", "needs NCCL: no lab node has a GPU; read from NCCL's own logs"),
    Impossible(
        *(5, "a link that NCCL gives up"),
        "needs RDMA: NCCL's recorded words end a case in tests/fixtures/cluster/test_cluster.py",
    ),
    Impossible(
        *(5, "one packet in a thousand is lost"),
        "netem is no part of this kernel, and a filter counts offloaded packets: 1 % of those is not felt",
    ),
    Impossible(
        *(8, "two cables of a node are swapped, and its addresses are not"),
        "a lab node has one NIC that carries data: only the addresses of rails are swapped (rails-swapped)",
    ),
    Impossible(
        *(10, "one NVLink of eight at half its speed"),
        "ranks on one CPU share its memory: only all of their ways together can be slowed (inside-slow)",
    ),
    Impossible(11, "ACS sends peer traffic to the root", "no GPU and no PCIe switch: read from /sys only"),
    Impossible(
        *(12, "one GPU of eight is slow"),
        "ranks on one node share its cores: a core cannot be slow for one of them (cpu-quota: the node)",
    ),
    Impossible(
        *(27, "throttles after ten minutes"),
        "two shared cores drift more than heat would slow them; a link can (link-slow-in-soak)",
    ),
    Impossible(
        *(28, "queue pairs or SHARP resources run out"),
        "no RDMA: only limits of the system are short here (nofile-low)",
    ),
    Impossible(
        30, "a wrong factor in a formula", "a fault of the suite's text: tests of formulas, not a lab"
    ),
)
