"""The words of a hardware file: collectives, paths, dtypes, metrics with their units, and sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard

from fixtures.wire.collectives import BARRIER
from fixtures.wire.collectives import COLLECTIVES as rows

DATA_COLLECTIVES = tuple(rows)
COLLECTIVES = (*DATA_COLLECTIVES, BARRIER)
INSIDE_LINKS = ("nvlink", "xgmi", "pcie", "memory")
MNNVL = "mnnvl"  # NVLink between the nodes of one NVLink domain: NCCL's multi-node NVLink
PATHS = (*INSIDE_LINKS, "network", "nic", MNNVL)
DTYPES = ("fp32", "fp16", "bf16", "fp64", "int32", "int64", "uint8", "fp8_e4m3", "fp8_e5m2")
# What devices multiply in; tf32 is fp32 with the precision of a tensor core.
ARITHMETIC = ("fp32", "tf32", "fp16", "bf16", "fp8_e4m3")
ALGORITHMS = ("ring", "tree", "nvls", "")


@dataclass(frozen=True)
class Metric:
    """What a metric's numbers mean.

    `bounded` metrics are bus bandwidths, which physics bounds (see bounds.py); `share` metrics lie in 0..1.
    Values beyond `least` and `most` (ten times better than any hardware sold) measured something else.
    """

    unit: str
    better: Literal["more", "less"]
    bounded: bool = False
    share: bool = False
    least: float = 0.0
    most: float = math.inf


METRICS: Mapping[str, Metric] = {
    "busbw": Metric("GB/s", "more", bounded=True, most=20_000),  # size x factor over the median iteration
    "busbw_mean": Metric("GB/s", "more", bounded=True, most=20_000),  # all bytes over all time: sees stalls
    "slow_fraction": Metric("", "less", share=True),  # iterations slower than median / 0.8
    "latency": Metric("us", "less", least=0.05),  # median iteration
    "latency_p99": Metric("us", "less", least=0.05),
    "copy": Metric("GB/s", "more", most=100_000),  # inside one device: bytes read and bytes written
    "triad": Metric("GB/s", "more", most=100_000),  # a = b + s c inside one device: two reads and one write
    "host_to_device": Metric("GB/s", "more", most=10_000),
    "device_to_host": Metric("GB/s", "more", most=10_000),
    "peer_to_peer": Metric("GB/s", "more", most=20_000),  # copy between two devices of a node
    "tflops": Metric("TFLOP/s", "more", most=100_000),
    "pattern": Metric("GB/s", "more", most=20_000),  # sent in a step's own pattern, over its median time
    "dispatch": Metric("GB/s", "more", most=20_000),  # bytes of the tokens that a rank gets, over the time
    "combine": Metric("GB/s", "more", most=20_000),  # the same on the way back
    "edge": Metric("GB/s", "more", most=20_000),  # activations between two neighbouring stages of a pipeline
    "overlap": Metric("", "more", share=True),  # communication hidden behind computation
    "utilisation": Metric("", "more", share=True),  # busy time over the whole
    "bubble": Metric("", "less", least=1e-9),  # the whole over the busiest rank's work, minus 1
    "imbalance": Metric("", "less", least=0.999),  # the most loaded over the mean
    "step_seconds": Metric("s", "less", least=1e-5),
    "mfu": Metric("", "more", most=2),  # a training step's model operations over what the device can do
    "slope": Metric("", "less", share=True),  # speed that the last quarter of a run has lost to the first
}
# The tail of a metric's samples. Few files have a row for it: it is judged only where there is one.
TAILS = {"latency": "latency_p99"}

_SIZE = re.compile(r"([0-9]{1,12})(B|KiB|MiB|GiB|TiB)")
_SHIFT = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


def is_finite(value: object) -> TypeGuard[float]:
    """Whether this is a number, and finite."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False  # a whole number that no float can hold


def parse_size(text: object) -> int:
    """Bytes of a size such as "8GiB"; ValueError says how a size is written."""
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f'{text!r} is not a size; write a whole number and B, KiB, MiB, GiB or TiB: "8GiB"')
    return int(found[1]) << _SHIFT[found[2]]


def format_size(size_bytes: int) -> str:
    """The shortest exact text of a size, which `parse_size` reads back."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % (1 << _SHIFT[unit]) == 0:
            return f"{size_bytes >> _SHIFT[unit]}{unit}"
    return f"{size_bytes}B"


def format_number(value: float, beside: float | None = None) -> str:
    """A figure in three digits, or in as many as are needed to distinguish it from `beside`."""
    for digits in range(3, 17):
        if beside is None or value == beside or f"{value:.{digits}g}" != f"{beside:.{digits}g}":
            break
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text and 1 <= abs(value) < 1e15 else text
