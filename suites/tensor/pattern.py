"""The collectives of a tensor parallel layer alone: exact payloads through them, and their bus bandwidth."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fixtures.ranks import timing
from fixtures.ranks.collectives.collectives import Collective
from fixtures.ranks.collectives.shapes import count_for
from fixtures.ranks.exact.dtypes import format_of
from fixtures.ranks.steps import Context

SIZE_BYTES = {"cpu": 1 << 18, "cuda": 1 << 26}
TIMED = 10
_BUDGET_S = 1.0
_BUS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}  # times (n-1)/n: nccl-tests' factors

Corruptions = list[dict[str, Any]]


@dataclass(frozen=True)
class Through:
    """What carries the payload, and in which dtype."""

    kind: type[Collective] = Collective
    dtype: str = "int32"


def measured(ctx: Context, kinds: Iterable[str], through: Through) -> tuple[dict[str, float], Corruptions]:
    """Bus bandwidth (GB/s) of each kind of collective, and of all in turn; and what did not arrive right."""
    figures: dict[str, float] = {}
    wrong: Corruptions = []
    all_s = sent_bytes = 0.0
    for name in sorted(kinds):
        each_s, corrupt = _one(ctx, name, through)
        sent = _bus_bytes(name, SIZE_BYTES[ctx.device.type], ctx.size)
        figures[f"{name}_busbw"] = sent / each_s / 1e9
        all_s, sent_bytes, wrong = all_s + each_s, sent_bytes + sent, wrong + corrupt
    return {**figures, "pattern": sent_bytes / all_s / 1e9}, wrong


def _one(ctx: Context, name: str, through: Through) -> tuple[float, Corruptions]:
    """Seconds of the median iteration of one collective, and the corruption of the last iterations."""
    size_bytes = SIZE_BYTES[ctx.device.type]
    count = count_for(name, size_bytes, ctx.size, format_of(through.dtype))
    work = through.kind(ctx, name, through.dtype, "sum", count, size_bytes=size_bytes)
    samples = timing.measure(ctx, work, TIMED, _BUDGET_S, name)
    checked = [work.check(i) for i in range(samples.last - work.kept + 1, samples.last + 1)]
    return statistics.median(samples.seconds), [one for one in checked if one is not None]


def _bus_bytes(name: str, size_bytes: int, ranks: int) -> float:
    """What one rank sends of a collective of this size, as nccl-tests counts it."""
    return size_bytes * _BUS[name] * (ranks - 1) / ranks
