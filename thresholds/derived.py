"""The limit of a step's own pattern of collectives where no row has one: it follows from the rows of those.

A pattern is a list of collectives of known bytes, one after the other. Each may take the latency that the
file allows a small one, and its bytes over the bandwidth that the file asks of a large one:

    allowed = FACTOR x sum over the collectives of (latency + size x factor / busbw)

with nccl-tests' factor and busbw. That is Hockney's model of a message (R. Hockney, "The communication
challenge for MPP", 1994). So a small pattern is judged by latencies and a large one by bandwidths. FACTOR is
for sizes between the two, where neither is reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from reports.record import Judgement, Outcome
from thresholds.bounds import BoundError, bound
from thresholds.hardware import Hardware, Limit
from thresholds.lookup import Case, LimitError, find
from thresholds.metrics import busbw_factor
from thresholds.units import format_number, format_size

METRIC = "pattern"
FACTOR = 1.25
_SWEEP: Case = {"step": "collectives.sweep", "dtype": "fp32"}


@dataclass(frozen=True)
class Moved:
    """One collective of a pattern, over all ranks of the case: its kind and its bytes, as for nccl-tests."""

    collective: str
    size_bytes: int


@dataclass(frozen=True)
class Share:
    """What a collective of a pattern may take: latency and bytes, each by a row."""

    moved: Moved
    latency_s: float
    bytes_s: float
    rows: tuple[Limit, Limit]

    def __str__(self) -> str:
        small, large = (row.where for row in self.rows)
        size = format_size(self.moved.size_bytes)
        return (
            f"{self.moved.collective} of {size}: {self.latency_s * 1e6:.4g} us ({small}) "
            f"+ {self.bytes_s * 1e6:.4g} us ({large})"
        )


def shares(hardware: Hardware, pattern: Sequence[Moved], case: Case, ranks: int) -> list[Share]:
    """Give what each collective may take; LimitError where a row is missing, BoundError where a rate is."""
    return [_share(hardware, moved, case, ranks) for moved in pattern]


def _share(hardware: Hardware, moved: Moved, case: Case, ranks: int) -> Share:
    sweep = hardware.sweep
    here = {**case, **_SWEEP, "collective": moved.collective}
    latency = find(hardware, "latency", {**here, "size": min(sweep.latency)})
    rate, row = floor(hardware, {**here, "size": max(sweep.plateau)})
    return Share(moved, latency.value / 1e6, sent_bytes([moved], ranks) / rate / 1e9, (latency, row))


def sent_bytes(pattern: Sequence[Moved], ranks: int) -> float:
    """Bytes that a rank must send: those of nccl-tests' bus bandwidth."""
    return sum(moved.size_bytes * busbw_factor(moved.collective, ranks) for moved in pattern)


def allowed_s(parts: Sequence[Share]) -> float:
    """Give what a pattern of these may take."""
    return FACTOR * sum(part.latency_s + part.bytes_s for part in parts)


def floor(hardware: Hardware, case: Case) -> tuple[float, Limit]:
    """Give the bus bandwidth that the file asks of a case, GB/s, and its row."""
    row = find(hardware, "busbw", case)
    best = bound(case, hardware.line_rate) if row.kind == "min_of_bound" else 1.0
    return row.value * best, row


def judge(
    hardware: Hardware, pattern: Sequence[Moved], case: Case, ranks: int, median_s: float
) -> tuple[Judgement | None, str]:
    """Hold the median time of a pattern against its derived limit; without one, why there is none."""
    try:
        parts = shares(hardware, pattern, case, ranks)
    except (LimitError, BoundError) as error:
        return None, str(error)
    most_s = allowed_s(parts)
    sent = sent_bytes(pattern, ranks) / 1e9
    value, limit = sent / median_s, sent / most_s
    good = median_s <= most_s
    words = (
        f"{case.get('step')} {METRIC} {format_number(value, limit)} GB/s over {case.get('path')} is "
        f"{'at least' if good else 'below'} {format_number(limit, value)} GB/s: "
        f"{_counted(pattern)} took {median_s * 1e3:.4g} ms, and {most_s * 1e3:.4g} ms are allowed"
    )
    rows = ", ".join(dict.fromkeys(row.where for part in parts for row in part.rows))
    source = f"derived: {FACTOR:g} x (latency + bytes / busbw) of {hardware.name} ({rows})"
    outcome = Outcome.PASS if good else Outcome.FAIL
    asked = f">= {format_number(limit, value)} GB/s"
    return Judgement(METRIC, outcome, words, value, "GB/s", asked, limit, source, dict(case)), ""


def _counted(pattern: Sequence[Moved]) -> str:
    counts = Counter(pattern).items()
    return ", ".join(f"{count} {one.collective} of {format_size(one.size_bytes)}" for one, count in counts)
