"""Integer payloads through the patterns of the expert steps, compared with their closed form bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks import timing
from fixtures.ranks.exact.compare import MOST_REPORTED, examine
from fixtures.ranks.exact.dtypes import format_of
from fixtures.ranks.exact.expected import Moved, Run, moved
from fixtures.ranks.exact.payload import poison
from fixtures.ranks.steps import Context
from suites.expert.routing import column

FORM = format_of("int64")
_EARLIER = 4


def stream(ctx: Context, rank: int, tag: int, start: int, count: int) -> torch.Tensor:
    """Words `start` to `start + count` of what a rank sends in exchange `tag`."""
    one = range(rank, rank + 1)
    return moved(FORM, ctx.seed, one, tag, start=start, count=count, device=ctx.device)[0].contiguous()


@dataclass(frozen=True)
class Members:
    """Consecutive ranks of the world that meet in a process group (None: that of the world)."""

    ranks: range
    group: Any = None

    def of(self, row: list[int]) -> list[int]:
        """What concerns them, of something that every rank of the world has one of."""
        return row[self.ranks.start : self.ranks.stop]


def through_all_to_all(  # noqa: PLR0917 - what, how often, which payload, among whom
    ctx: Context,
    name: str,
    sent: list[list[int]],
    iterations: int,
    first_tag: int,
    members: Members | None = None,
) -> list[dict[str, Any]]:
    """Exchange `sent[s][d]` words from every rank s to every rank d, fresh ones each time.

    Ranks are those of the world, also where an exchange is among a few of them.
    """
    wrong: list[dict[str, Any]] = []
    ctx.progress.phase(f"exact {name}"[:31])
    among = members or Members(range(ctx.size))
    given, taken = among.of(sent[ctx.rank]), among.of(column(sent, ctx.rank))
    for i in range(iterations):
        output = torch.empty(sum(taken), dtype=torch.int64, device=ctx.device)
        poison(output)
        own = stream(ctx, ctx.rank, first_tag + i, 0, sum(given))
        dist.all_to_all_single(output, own, taken, given, group=among.group)
        timing.complete(ctx)
        keep(wrong, examined(ctx, name, output, sent, first_tag=first_tag, i=i))
        ctx.progress.done(i + 1)
    return wrong


def examined(
    ctx: Context, name: str, output: torch.Tensor, sent: list[list[int]], *, first_tag: int, i: int
) -> dict[str, Any] | None:
    """Compare what came in iteration i of an exchange with what every rank must have sent."""
    runs = tuple(
        Run(range(s, s + 1), sum(sent[s][: ctx.rank]), sent[s][ctx.rank])
        for s in range(ctx.size)
        if sent[s][ctx.rank]
    )
    earlier = tuple((j, first_tag + j) for j in range(max(i - _EARLIER, 0), i))
    expected = Moved(FORM, ctx.seed, ctx.size, first_tag + i, runs, ctx.device, (), earlier)
    return examine(output, expected, about(ctx, name, output, i))


def about(ctx: Context, name: str, output: torch.Tensor, i: int) -> dict[str, Any]:
    """Who and what, for a corruption report."""
    return {
        "rank": ctx.rank,
        "collective": name,
        "dtype": FORM.name,
        "size_bytes": output.numel() * FORM.item_bytes,
        "iteration": i,
    }


def keep(wrong: list[dict[str, Any]], corruption: dict[str, Any] | None) -> None:
    """Note a corruption, up to as many as are reported."""
    if corruption is not None and len(wrong) < MOST_REPORTED:
        wrong.append(corruption)


def scaled(sent: list[list[int]], words: int) -> list[list[int]]:
    """Words in place of rows."""
    return [[rows * words for rows in row] for row in sent]
