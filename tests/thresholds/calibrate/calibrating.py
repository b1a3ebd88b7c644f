"""What the tests of `calibrate` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.thresholds.calibrate.journals import Script, write_runs
from tests.thresholds.files import GOOD
from thresholds.calibrate.calibration import Asked, Calibration, Refused, calibrate
from thresholds.hardware import Hardware, Limit
from thresholds.loading.load import load, read
from thresholds.lookup import find

RATES = Asked(rates={"nvlink": 450.0, "network": 50.0})
OTHER = {"gpu": "Other GPU", "gpu_count": 2, "fabric": "infiniband"}
NOISE = (90.0, 90.2, 89.9, 90.1, 89.8)


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
