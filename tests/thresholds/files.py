"""A small good hardware file, to be changed one line at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from thresholds.hardware import Hardware
from thresholds.loading.faults import HardwareFileError
from thresholds.loading.load import load, read, shipped
from thresholds.match import Facts, choose

GOOD = """\
[hardware]
name = "small"
about = "two GPUs and a NIC each"
inside = "nvlink"

[match]
gpu = "Some GPU"
fabric = "infiniband"

[expect]
gpus_per_node = 2
nics_per_node = 2
nic_gigabits_per_s = 400

[line_rate]
nvlink = 450.0
network = 50.0

[env]
NCCL_IB_HCA = "mlx5"

[sweep]
bandwidth = ["1MiB", "8GiB"]
plateau = ["8GiB"]
latency = ["16KiB"]

[absent]
gather = "this library has no gather"

[[limit]]
metric = "busbw"
collective = "all_reduce"
path = "network"
nodes = "2..4"
size = "8GiB"
min = 80.0
source = "example/repository@0000000 file:1"
date = 2026-05-01

[[limit]]
metric = ["latency", "latency_p99"]
path = "network"
max = 100.0
source = "example/repository@0000000 file:2"
date = 2026-05-01

[[gap]]
metric = "busbw"
path = "network"
nodes = ">=5"
reason = "nobody measured more than four"
"""
FIRST, SECOND, GAP = 30, 40, 47  # the lines of the rows
CASE: dict[str, str | int] = {
    "collective": "all_reduce",
    "path": "network",
    "nodes": 2,
    "ranks_per_node": 2,
    "size": 8 << 30,
}


def case(
    collective: str,
    nodes: int,
    path: str = "network",
    ranks_per_node: int = 8,
    algorithm: str = "",
    *,
    size: int = 8 << 30,
) -> dict[str, str | int]:
    """What a check of bus bandwidth asks a limit for."""
    return {
        "collective": collective,
        "path": path,
        "nodes": nodes,
        "ranks_per_node": ranks_per_node,
        "algorithm": algorithm,
        "size": size,
    }


def loaded(text: str = GOOD) -> Hardware:
    return read(text.encode(), Path("small.toml"))


@cache
def whole() -> dict[str, Hardware]:
    """The shipped files that judge nodes, by name; they are read once for all tests."""
    return {name: file for name, path in shipped().items() if not (file := load(path)).part}


def recognise(facts: Facts, files: Iterable[Path] | None = None) -> Hardware:
    """The one of these files, or of the shipped ones, that matches the facts."""
    return choose(facts, whole().values() if files is None else [load(path) for path in files])


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) >= 1, old
    return GOOD.replace(old, new, 1)


def faults(text: str | bytes) -> list[str]:
    """All faults as the user reads them; none when the file is good."""
    try:
        read(text if isinstance(text, bytes) else text.encode(), Path("small.toml"))
    except HardwareFileError as error:
        return [str(fault) for fault in error.faults]
    return []


def row(metric: str | list[str], limit: str, **selectors: object) -> str:
    """A row for a file: `limit` has all that it allows, such as "min = 9.0"."""
    words = {"metric": metric, **selectors}  # what JSON says of these, TOML says too
    lines = [f"{name} = {json.dumps(value)}" for name, value in words.items()]
    return "\n".join(["\n[[limit]]", *lines, limit, 'source = "a test"', "date = 2026-11-20", ""])
