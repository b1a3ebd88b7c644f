"""Tokens that carry their rank and index, sent to experts and back: every copy must return unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fixtures.ranks.exact.dtypes import format_of
from fixtures.ranks.exact.expected import moved_by
from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context
from fixtures.ranks.study.dealt import Dealt
from fixtures.ranks.study.driver import Form, Left, Named, Seen, Technique
from fixtures.ranks.study.pattern import PAYLOADS, Move, Pattern, enlargement, last_timed, layers, moved
from fixtures.wire.collectives import TRAINED_BYTES
from suites.expert import held
from suites.expert.issued import TAGS, WORD_BYTES, fp8_bytes, round_trip
from suites.expert.layer import Group, copies, exchange, inverse, lay_out, returned
from suites.expert.routing import Shape, column, matrix, scaled, tables, transposed

_TOKENS = 720
_FORM = format_of("int64")
_Way = tuple[str, list[list[int]], str]  # a name, the items from each rank to each, and their dtype


def stream(ctx: Context, rank: int, tag: int, count: int) -> Tensor:
    """The first words of what a rank sends as `tag`."""
    return moved_by(_FORM, ctx.seed, rank, tag, start=0, count=count, device=ctx.device).contiguous()


def tokens(ctx: Context, rank: int, count: int, words: int) -> Tensor:
    """A rank's tokens as rows of words: source, index, pattern."""
    rows = stream(ctx, rank, _TOKENS, count * words).view(count, words)
    rows[:, 0] = rank
    rows[:, 1] = torch.arange(count, device=ctx.device)
    return rows


@dataclass
class RoundTrip(Technique[None]):
    """Every token goes to its experts, and back to its place; `shape.hidden` are its words besides the tags.

    Ranks are those of a group (None: the world), as `ctx` counts them.
    """

    ctx: Context
    routing: str
    shape: Shape
    group: Group = None
    variant: str = ""
    dtypes = (torch.int64,)

    def __post_init__(self) -> None:
        drawn = tables(self.routing, self.ctx.seed, self.ctx.size, self.shape)
        self.routed = [chosen.to(self.ctx.device) for chosen in drawn]
        words = TAGS + self.shape.hidden
        self.everybodys = [tokens(self.ctx, r, len(chosen), words) for r, chosen in enumerate(drawn)]
        self.sent = matrix(drawn, self.shape.experts)

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[None]:
        """Dispatch and combine, and count the rows that all ranks sent and received."""
        ctx, group, slots = self.ctx, self.group, self.shape.top_k
        with seen():
            layout = lay_out(self.routed[ctx.rank], self.shape.experts, ctx.size, group)
            rows = copies(self.everybodys[ctx.rank], layout.order, slots)
            arrived = exchange(rows, layout.sent, layout.received, group)[layout.grouped]
            home = exchange(arrived[inverse(layout.grouped)], layout.received, layout.sent, group)
            totals = torch.tensor([sum(layout.sent), len(arrived)], device=ctx.device)
            dist.all_reduce(totals, group=group)
        return Left(_named(arrived, returned(home, layout.order, slots), totals), None)

    def other(self) -> RoundTrip:
        """The same with tokens from back to front."""
        other = copy(self)
        other.everybodys = [rows.flip(-1) for rows in self.everybodys]
        return other

    def reference(self, dtype: torch.dtype) -> Named:
        """Where every token must be: no row is lost or duplicated."""
        own = self.everybodys[self.ctx.rank].unsqueeze(1).expand(-1, self.shape.top_k, -1)
        rows = torch.tensor([sum(map(sum, self.sent))] * 2, device=self.ctx.device)
        at_experts = expected_at_experts(self.ctx, self.routed, self.everybodys, self.shape.experts)
        return _named(at_experts, own, rows)

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """Both exchanges."""
        rows = rows_of(self.sent, self.ctx.rank)
        return [Form(round_trip(self.shape.experts, self.shape.hidden, rows), self.variant, self.group)]

    def peak(self, dtype: torch.dtype) -> int:
        """For the rows of this rank."""
        went, came = sum(self.sent[self.ctx.rank]), sum(column(self.sent, self.ctx.rank))
        return held.round_trip(self.shape.hidden, went, came)


def _named(at_experts: Tensor, at_home: Tensor, totals: Tensor) -> dict[str, Tensor]:
    return {"tokens at experts": at_experts, "tokens at home": at_home, "rows sent and received": totals}


def rows_of(sent: list[list[int]], rank: int) -> int:
    """Rows that a rank puts into both exchanges: its own there, the others' back."""
    return sum(sent[rank]) + sum(column(sent, rank))


def expected_at_experts(
    ctx: Context,
    routing: list[Tensor],
    everybodys: list[Tensor],
    experts: int,
    sources: Sequence[int] | None = None,
) -> Tensor:
    """The closed form of what this rank's experts get: expert by expert, source by source, token by token.

    Sources are in ascending order, or as in `sources`.
    """
    local = experts // ctx.size
    return torch.cat(
        [
            everybodys[source][(routing[source] == expert).any(1)]
            for expert in range(ctx.rank * local, (ctx.rank + 1) * local)
            for source in (range(len(routing)) if sources is None else sources)
        ]
    )


def enlarged(ctx: Context, rows: list[list[int]], words: int) -> list[list[int]]:
    """The bf16 between two ranks for `words` words a row, multiplied to a size that suits the device."""
    there = scaled(rows, words * (WORD_BYTES // TRAINED_BYTES))
    return scaled(there, enlargement(ctx, even_items(there) * TRAINED_BYTES))


def even_items(there: list[list[int]]) -> int:
    """Items of an even all_to_all of as many ranks that puts no less on any link than this one."""
    return len(there) * max(map(max, there))


def exact(
    ctx: Context, there: list[list[int]], what: str = "expert", among: Among | None = None
) -> dict[str, Any]:
    """Send every payload by the splits of dispatch and combine: `there` are the bf16 from each rank to each.

    Of n ranks the most that one sends another is p bytes. An even all_to_all of n p bytes sends p from each
    to each, so the uneven one puts no more on any link: its limit is that of the even one.
    """

    def both(dtype: str) -> list[_Way]:
        times = format_of(dtype).item_bytes // TRAINED_BYTES
        items = [[-(-count // times) for count in row] for row in there]  # as many bytes
        return [(f"{what} dispatch", items, dtype), (f"{what} combine", transposed(items), dtype)]

    return _carried(ctx, [both(dtype) for dtype in PAYLOADS], what, among)


def exact_fp8(ctx: Context, rows: list[list[int]], hidden: int) -> dict[str, Any]:
    """The same through a dispatch in fp8, by its bytes, and a combine in bf16."""
    row_bytes = fp8_bytes(hidden)
    times = enlargement(ctx, even_items(rows) * row_bytes)
    there, back = scaled(rows, times * row_bytes), scaled(transposed(rows), times * hidden)
    return _carried(ctx, [[("expert dispatch", there, "uint8"), ("expert combine", back, "bf16")]], "expert")


def _carried(
    ctx: Context, forms: Sequence[list[_Way]], what: str, among: Among | None = None
) -> dict[str, Any]:
    """Send each form of a layer's ways there and back as often as timing needs, and time the last."""
    sizes = [even_items(items) * format_of(dtype).item_bytes for _, items, dtype in forms[-1]]
    count = layers(ctx, sum(sizes))
    patterns = [
        Pattern([Dealt(ctx, way, items, among=among, dtype=dtype) for way, items, dtype in form * count])
        for form in forms
    ]
    found = last_timed(ctx, patterns, what)
    even = [Move("all_to_all", size, among) for size in sizes] * count
    return {"wrong": found.wrong, **moved(ctx, even, found.seconds, what)}
