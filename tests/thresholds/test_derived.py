"""The limit that follows for a pattern of collectives, in every shipped file and on paper."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from reports.record import Outcome
from tests.fixtures.scenario import HARDWARE
from thresholds import derived
from thresholds.bounds import BoundError
from thresholds.derived import Moved
from thresholds.hardware import Hardware
from thresholds.loading.load import load, shipped
from thresholds.lookup import Case, LimitError, absent

MIB = 1 << 20
ROWS = """
[[limit]]
metric = "busbw"
collective = ["all_reduce", "all_gather"]
path = "network"
ranks_per_node = 2
min = 0.1
source = "tests/thresholds/test_derived.py in this repository"
date = 2026-11-20

[[limit]]
metric = "latency"
path = "network"
max = 1000.0
source = "tests/thresholds/test_derived.py in this repository"
date = 2026-11-20
"""
CASE: Case = {"step": "zero.ddp", "path": "network", "nodes": 2, "ranks_per_node": 2}
# What the patterns of ZeRO, tensor and context parallelism consist of.
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    (tmp_path / "paper.toml").write_text(HARDWARE.partition("[[limit]]")[0] + ROWS)
    return load(tmp_path / "paper.toml")


def test_latency_and_bytes_of_every_collective_and_a_quarter_more(hardware: Hardware) -> None:
    pattern = [Moved("all_reduce", MIB), Moved("all_reduce", MIB), Moved("all_gather", MIB)]
    sent = (2 * 1.5 + 0.75) * MIB
    allowed_s = 1.25 * (3 * 1e-3 + sent / 0.1e9)
    good, _ = derived.judge(hardware, pattern, CASE, allowed_s * 0.999)
    bad, _ = derived.judge(hardware, pattern, CASE, allowed_s * 1.001)
    assert good is not None
    assert bad is not None
    assert (good.outcome, bad.outcome) == (Outcome.PASS, Outcome.FAIL)
    assert good.limit_value == pytest.approx(sent / allowed_s / 1e9)
    assert "2 all_reduce of 1MiB, 1 all_gather of 1MiB took" in bad.sentence
    assert "paper.toml" in bad.source


def test_without_a_row_there_is_no_limit_and_the_reason_is_told(hardware: Hardware) -> None:
    judged, why = derived.judge(hardware, [Moved("send_recv", MIB)], CASE, 1e-3)
    assert judged is None
    assert "send_recv" in why


def test_every_shipped_file_limits_every_pattern_inside_and_across() -> None:
    """Or says why not: a gap, an absent path, or a bound that only the same run can tell (copies on CPUs)."""
    lacking = []
    for name, file in ((name, load(path)) for name, path in shipped().items()):
        if name.startswith(("board-", "fabric-")) or "network" not in file.line_rate.links:
            continue  # parts, and files of machines without a network
        ranks, most = (1, 8) if name.startswith("lab-") else (int(file.expect.get("gpus_per_node", 8)), 16)
        worlds = [(file.inside, 1, ranks), *(("network", nodes, ranks) for nodes in (2, 4, most))]
        for (path, nodes, each), kind in itertools.product(worlds, KINDS):
            case = {**CASE, "path": path, "nodes": nodes, "ranks_per_node": each, "collective": kind}
            if absent(file, case) or file.line_rate.links.get(path, 1.0) is None:
                continue
            try:
                derived.shares(file, [Moved(kind, MIB)], case)
            except (LimitError, BoundError) as error:
                if not (isinstance(error, LimitError) and error.kind == "gap"):
                    lacking.append(f"{name}: {kind} over {path} on {nodes}: {error}")
    assert not lacking, "\n".join(lacking)
