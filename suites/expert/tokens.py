"""Tokens that name themselves, sent to their experts and back: every copy must come home as it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fixtures.ranks.steps import Context
from fixtures.ranks.study.parity import equal
from suites.expert.layer import Group, copies, exchange, inverse, lay_out, returned
from suites.expert.payload import stream

TAGS = 2  # the first words of a token: the rank it comes from, and its index there
_TOKENS = 720


@dataclass(frozen=True)
class Trip:
    """What arrived at this rank's experts, in their order; what came home; rows all sent and received."""

    arrived: Tensor
    home: Tensor
    totals: Tensor


def tokens(ctx: Context, rank: int, count: int, words: int) -> Tensor:
    """A rank's tokens as rows of words: source, index, pattern."""
    rows = stream(ctx, rank, _TOKENS, 0, count * words).view(count, words)
    rows[:, 0] = rank
    rows[:, 1] = torch.arange(count, device=ctx.device)
    return rows


def round_trip(ctx: Context, chosen: Tensor, rows: Tensor, experts: int, group: Group = None) -> Trip:
    """Dispatch every token to its experts, and bring it back unchanged."""
    slots = chosen.shape[1]
    layout = lay_out(chosen, experts, ctx.size, group)
    arrived = exchange(copies(rows, layout.order, slots), layout.sent, layout.received, group)
    by_expert = arrived[layout.grouped]
    home = exchange(by_expert[inverse(layout.grouped)], layout.received, layout.sent, group)
    totals = torch.tensor([sum(layout.sent), arrived.shape[0]], device=ctx.device)
    dist.all_reduce(totals, group=group)
    return Trip(by_expert, returned(home, layout.order, slots), totals)


def compared_tokens(
    ctx: Context, trip: Trip, routing: list[Tensor], everybodys: list[Tensor], experts: int
) -> list[dict[str, Any]]:
    """Every token is where it must be, is back in its place, and none was lost or made."""
    own = everybodys[ctx.rank].unsqueeze(1).expand_as(trip.home)
    rows = sum(chosen.numel() for chosen in routing)
    return [
        equal("tokens at experts", trip.arrived, expected_at_experts(ctx, routing, everybodys, experts)),
        equal("tokens at home", trip.home, own),
        equal("rows sent and received", trip.totals, torch.full_like(trip.totals, rows)),
    ]


def expected_at_experts(
    ctx: Context,
    routing: list[Tensor],
    everybodys: list[Tensor],
    experts: int,
    sources: Sequence[int] | None = None,
) -> Tensor:
    """The closed form of what this rank's experts get: expert by expert, source by source, token by token.

    Sources follow each other upwards, or as `sources` says.
    """
    local = experts // ctx.size
    return torch.cat(
        [
            everybodys[source][(routing[source] == expert).any(1)]
            for expert in range(ctx.rank * local, (ctx.rank + 1) * local)
            for source in (range(len(routing)) if sources is None else sources)
        ]
    )
