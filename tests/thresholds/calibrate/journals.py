"""Journals of runs that never were, with the figures that a test wants, and files that are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from reports.record import CheckRecord, JobRecord, Judgement, NodeRecord, Outcome, Record, RunRecord
from tests.reports import making
from tests.thresholds.files import GOOD
from thresholds.calibrate.calibration import Asked, Calibration, Refused, calibrate
from thresholds.hardware import Hardware, Limit
from thresholds.loading.load import load, read
from thresholds.lookup import find

NODES = ("n01", "n02", "n03")
IDENTITY = {"gpu": "Some GPU", "gpu_count": 2, "fabric": "infiniband"}
SIZE = 8 << 30
NETWORK: dict[str, str | int] = {
    "step": "collectives.sweep",
    "path": "network",
    "nodes": 3,
    "ranks_per_node": 2,
    "collective": "all_reduce",
    "dtype": "fp32",
    "size": SIZE,
}
INSIDE = {**NETWORK, "path": "nvlink", "nodes": 1}
RATES = Asked(rates={"nvlink": 450.0, "network": 50.0})
OTHER = {"gpu": "Other GPU", "gpu_count": 2, "fabric": "infiniband"}
NOISE = (90.0, 90.2, 89.9, 90.1, 89.8)


@dataclass
class Script:
    """What one run measures; bandwidths in GB/s, one across all nodes and one inside each."""

    number: int = 0
    nodes: tuple[str, ...] = NODES
    network: float = 90.0
    inside: Mapping[str, float] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=lambda: dict(IDENTITY))
    torch: str = "2.13.0"
    driver: str = "570.86"
    workload: str = "nodes, collectives"
    selection: str = ""
    hardware: str = "none"
    slow: float = 0.05
    samples: int = 20
    more: tuple[CheckRecord, ...] = ()
    cut_short: str = ""
    state: str = "ready"

    def records(self) -> list[Record]:
        """The run, from its head to its end."""
        checks = [*self.checks(), *self.more]
        end = making.end(cut_short=self.cut_short, pytest_status=1)
        rank = {"backend": "nccl", "facts": {"libraries": ["/usr/lib/libnccl.so.2.27.3"]}}
        job = JobRecord("1", self.nodes, {}, (rank,), 1.0)
        return [self.head(), making.plan(*checks), *self.node_records(), job, *checks, end]

    def head(self) -> RunRecord:
        """Who runs what."""
        return making.run(
            self.nodes,
            run_id=f"run-{self.number}",
            started=f"2026-11-{self.number + 10:02d}T09:00:00+00:00",
            workload=self.workload,
            hardware=self.hardware,
            selection=self.selection,
        )

    def node_records(self) -> list[NodeRecord]:
        """The nodes as they were found."""
        device = {"name": "Some GPU", "driver": self.driver}
        facts = {
            "identity": dict(self.identity),
            "torch": {"version": self.torch},
            "accelerators": {"devices": [device]},
        }
        return [
            NodeRecord(node, self.state, "" if self.state == "ready" else "why", "none", facts)
            for node in self.nodes
        ]

    def checks(self) -> list[CheckRecord]:
        """One case across all nodes, and one inside each."""
        across = {**NETWORK, "nodes": len(self.nodes)}
        found = [self.sweep("all_reduce-network", self.nodes, across, self.network)]
        for node in self.nodes:
            value = self.inside.get(node, 400.0 + self.number)
            found.append(self.sweep(f"all_reduce-inside-{node}", (node,), INSIDE, value))
        return found

    def sweep(
        self, words: str, nodes: tuple[str, ...], case: Mapping[str, str | int], busbw: float
    ) -> CheckRecord:
        """The check of one bandwidth case, as `--hardware none` leaves it."""
        sweep = [{"size_bytes": case["size"], "samples": self.samples}]
        figures = {"busbw": busbw, "busbw_mean": busbw * 0.98, "slow_fraction": self.slow}
        return check(words, nodes, figures, case, {"sweep": sweep})


def check(
    words: str,
    nodes: tuple[str, ...],
    figures: Mapping[str, float],
    case: Mapping[str, str | int],
    recorded: Mapping[str, Any] | None = None,
) -> CheckRecord:
    """A check whose figures nothing judged."""
    judgements = [
        Judgement(metric, Outcome.UNCHECKED, f"{metric} is unchecked", value, case=case)
        for metric, value in figures.items()
    ]
    return making.check(
        f"suites/collectives/test_bandwidth.py::test_busbw[{words}]",
        nodes,
        Outcome.UNCHECKED,
        reason="no hardware file says what is good enough",
        judgements=tuple(judgements),
        recorded=recorded or {},
    )


def write(directory: Path, records: Sequence[Record]) -> str:
    """Write a journal into a report directory, whose name is handed back."""
    making.save(records, directory)
    return str(directory)


def write_runs(directory: Path, scripts: Sequence[Script]) -> list[str]:
    """Write one run for every script, each with a number of its own."""
    return [
        write(directory / f"run-{number}", replace(script, number=number).records())
        for number, script in enumerate(scripts)
    ]


def healthy() -> list[Script]:
    return [Script(network=busbw) for busbw in NOISE]


def calibrated(tmp_path: Path, scripts: Sequence[Script], asked: Asked = RATES) -> Calibration:
    return calibrate(write_runs(tmp_path, scripts), asked)


def refusals(tmp_path: Path, scripts: Sequence[Script], asked: Asked = RATES) -> str:
    with pytest.raises(Refused) as refused:
        calibrated(tmp_path, scripts, asked)
    return str(refused.value)


def hardware(found: Calibration) -> Hardware:
    return read(found.text.encode(), Path("calibrated.toml"))


def row(found: Calibration, metric: str, case: dict[str, str | int]) -> Limit:
    return find(hardware(found), metric, case)


def small(tmp_path: Path) -> Hardware:
    """The file that asks 80 GB/s of an all_reduce across three nodes."""
    path = tmp_path / "like.toml"
    path.write_text(GOOD.replace('path = "network"\nnodes = "2..4"', 'path = "network"\nnodes = 3'))
    return load(path)
