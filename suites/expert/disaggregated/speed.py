"""How busy both sides were, and how fast the M-to-N pattern is beside an all_to_all that moves the same."""

from __future__ import annotations

import statistics
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks.steps import Context
from fixtures.ranks.study import parity
from fixtures.ranks.study.traffic import count_traffic
from suites.expert.disaggregated.model import Pace
from suites.expert.disaggregated.passes import Log, Sides
from suites.expert.disaggregated.traffic import by_pairs, through_pairs
from suites.expert.payload import stream, through_all_to_all
from suites.expert.routing import column
from suites.expert.speed import Repeated, timed

_SIZES, _EXACT = 1100, 1200
_WORD_BYTES = 8


def pace_figures(
    ctx: Context, roles: Sides, alone: Log, log: Log, *, layers: int, micro_batches: int
) -> dict[str, float]:
    """Utilisation of both sides and span of the pass, measured and by the formula.

    The transfer time is what a pass of one micro-batch takes beyond its stages: (span / L - Ta - Te) / 2.
    """
    own = [alone.span_s, statistics.fmean(alone.stages), log.span_s, statistics.fmean(log.stages)]
    table = torch.zeros(ctx.size, len(own), dtype=torch.float64, device=ctx.device)
    table[ctx.rank] = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(table)
    spans, stages = table[:, 0].max(), table[:, 1]
    attention, experts = slice(0, len(roles.attention)), slice(len(roles.attention), None)
    trip_s = float(spans) / layers
    transfer_s = max(trip_s - float(stages[attention].max()) - float(stages[experts].max()), 0.0) / 2
    pace = Pace(float(table[attention, 3].max()), float(table[experts, 3].max()), transfer_s)
    span_s, expected_s = float(table[:, 2].max()), pace.span_s(layers, micro_batches)
    work = layers * micro_batches
    sides = [work * float(table[side, 3].mean()) / span_s for side in (attention, experts)]
    return {
        "utilisation": min(sides),
        "attention_utilisation": sides[0],
        "expert_utilisation": sides[1],
        "expected_attention_utilisation": work * pace.attention_s / expected_s,
        "expected_expert_utilisation": work * pace.expert_s / expected_s,
        "span_ms": span_s * 1e3,
        "expected_span_ms": expected_s * 1e3,
        "transfer_ms": transfer_s * 1e3,
    }


def pattern_speed(
    ctx: Context, roles: Sides, sizes: list[int], iterations: int, budget_s: float
) -> dict[str, Any]:
    """Time each size both ways and compare what the last iterations left; `pattern` is the last size's."""
    found: dict[str, Any] = {"parity": [], "traffic": [], "figures": {}, "wrong": []}
    for number, size in enumerate(sizes):
        sent = m2n_matrix(ctx, roles, size)
        work = _Pattern(ctx, roles, sent, _SIZES + number)
        with count_traffic() as seen:
            work.by_pairs()
            work.by_all_to_all()
        found["traffic"] += seen.table(_expected(ctx, roles, size), f"{size} bytes")
        for name, call in (("m2n", work.by_pairs), ("all_to_all", work.by_all_to_all)):
            repeated = Repeated(call, work.look, work.output.zero_)
            seconds = timed(ctx, repeated, iterations, budget_s / (2 * len(sizes)), f"{name} {size}")
            median = statistics.median(seconds)
            found["samples"] = min(len(seconds), found.get("samples", len(seconds)))
            found["figures"][f"{name}_us_{size}"] = median * 1e6
            found["figures"][f"{name}_gigabytes_per_s_{size}"] = size * len(roles.attention) / median / 1e9
            found["parity"] += work.parity(f"{name} {size} bytes")
        found["figures"]["pattern"] = found["figures"][f"m2n_gigabytes_per_s_{size}"]
        found["wrong"] += through_pairs(ctx, roles.dispatch, "M-to-N", sent, _EXACT)
        found["wrong"] += through_all_to_all(ctx, "M-to-N by all_to_all", sent, 2, _EXACT + 50)
    return found


def m2n_matrix(ctx: Context, roles: Sides, size_bytes: int) -> list[list[int]]:
    """Words from every rank to every rank: the same from each attention rank to each expert rank."""
    words = size_bytes // _WORD_BYTES
    return [
        [words * (source in roles.attention and target in roles.experts) for target in range(ctx.size)]
        for source in range(ctx.size)
    ]


def _expected(ctx: Context, roles: Sides, size: int) -> dict[str, tuple[int, int]]:
    if ctx.rank in roles.attention:
        peers = len(roles.experts)
        return {"send": (peers, peers * size), "all_to_all": (1, peers * size)}
    return {"recv": (len(roles.attention), len(roles.attention) * size), "all_to_all": (1, 0)}


class _Pattern:
    """One size, ready to be sent either way."""

    def __init__(self, ctx: Context, roles: Sides, sent: list[list[int]], tag: int) -> None:
        self.ctx, self.tag, self.sent = ctx, tag, sent
        self.given, self.taken, self.group = sent[ctx.rank], column(sent, ctx.rank), roles.dispatch
        self.own = stream(ctx, ctx.rank, tag, 0, sum(self.given))
        self.output = torch.zeros(sum(self.taken), dtype=torch.int64, device=ctx.device)
        self.right = self._right()
        self.wrong = torch.zeros(1, dtype=torch.int64, device=ctx.device)

    def by_pairs(self) -> None:
        """Isend and irecv."""
        by_pairs(self.group, self.own, self.given, self.output, self.taken)

    def by_all_to_all(self) -> None:
        """One uneven all_to_all."""
        dist.all_to_all_single(self.output, self.own, self.taken, self.given, group=self.group)

    def look(self) -> None:
        """Note whether the last exchange brought what it must."""
        self.wrong += (self.output != self.right).any()

    def parity(self, name: str) -> list[dict[str, Any]]:
        """What the last exchange brought, and how many so far were wrong."""
        return [
            parity.equal(name, self.output, self.right),
            parity.equal(f"{name}: exchanges that went wrong", self.wrong, torch.zeros_like(self.wrong)),
        ]

    def _right(self) -> torch.Tensor:
        parts = [
            stream(self.ctx, source, self.tag, sum(row[: self.ctx.rank]), row[self.ctx.rank])
            for source, row in enumerate(self.sent)
        ]
        return torch.cat(parts)
