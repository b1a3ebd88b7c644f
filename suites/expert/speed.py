"""Dispatch and combine as something to time, by DeepEP's definition of bytes.

deepseek-ai/DeepEP tests/test_intranode.py: GB/s = bytes of `recv_x` / time, a token being received once by
a rank however many of its experts live there, the rank's own tokens included. Gathering the rows is part of
the time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from fixtures.ranks import timing
from fixtures.ranks.steps import Context
from fixtures.ranks.study.parity import bits, equal
from suites.expert.layer import Group
from suites.expert.payload import stream
from suites.expert.routing import Shape, column, even_tables

_ROWS = 730


def rank_tables(routing: list[Tensor], experts: int) -> list[Tensor]:
    """Which ranks (columns) every token of every rank goes to."""
    ranks = len(routing)
    return [
        torch.zeros(len(chosen), ranks, dtype=torch.bool).scatter_(1, chosen * ranks // experts, value=True)
        for chosen in routing
    ]


def even_traffic(seed: int, ranks: int, shape: Shape) -> list[Tensor]:
    """The same for tokens that go everywhere evenly."""
    return rank_tables(even_tables(seed, ranks, shape), shape.experts)


class Traffic:
    """The buffers of one rank: its tokens (bf16 patterns), what it is sent, and what that must be."""

    def __init__(self, ctx: Context, goes: list[Tensor], hidden: int, group: Group = None) -> None:
        self.ctx, self.hidden, self.group = ctx, hidden, group
        matrix = [one.sum(0).tolist() for one in goes]
        self.sent, self.received = matrix[ctx.rank], column(matrix, ctx.rank)
        self.token = torch.where(goes[ctx.rank].T)[1].to(ctx.device)
        self.rows = self.token.argsort(stable=True)
        each = goes[ctx.rank].sum(1).to(ctx.device)
        self.first_row = each.cumsum(0) - each
        self.x = self.tokens_of(ctx.rank, goes[ctx.rank].shape[0])
        self.arrived = self.x.new_empty(sum(self.received), hidden)
        self.back = self.x.new_empty(sum(self.sent), hidden)
        self.right, self.right_back = self.expected(goes), self.x[self.token]
        self.wrong = torch.zeros(2, dtype=torch.int64, device=ctx.device)  # dispatches, combines

    def tokens_of(self, rank: int, count: int) -> Tensor:
        """Write down any rank's tokens: a finite pattern in every element."""
        words = stream(self.ctx, rank, _ROWS, 0, count * self.hidden // 4).view(torch.int16)
        return (words & 0x3FFF).view(torch.bfloat16).view(count, self.hidden)

    def dispatch(self) -> None:
        """Gather and send."""
        dist.all_to_all_single(self.arrived, self.x[self.token], self.received, self.sent, group=self.group)

    def combine(self) -> None:
        """Send back and add up, in the dtype of the tokens."""
        dist.all_to_all_single(self.back, self.arrived, self.sent, self.received, group=self.group)
        self.summed()

    def summed(self) -> Tensor:
        """Each token's rows, added up in the order of the ranks: a sum by atomics would be timed with it."""
        found: Tensor = functional.embedding_bag(self.rows, self.back, self.first_row, mode="sum")
        return found

    def look(self) -> None:
        """Note whether the last dispatch and combine left what they must."""
        pairs = ((self.arrived, self.right), (self.back, self.right_back))
        self.wrong += torch.stack([(bits(found) != bits(right)).any() for found, right in pairs])

    def parity(self) -> list[dict[str, Any]]:
        """What the last exchanges left, and how many before them were wrong."""
        return [
            equal("tokens at experts", self.arrived, self.right),
            equal("tokens at home", self.back, self.right_back),
            equal("dispatches and combines that went wrong", self.wrong, torch.zeros_like(self.wrong)),
        ]

    def traffic_bytes(self) -> int:
        """Bytes that this rank puts into a dispatch and a combine together."""
        rows: int = sum(self.sent) + sum(self.received)
        return rows * self.hidden * self.x.element_size()

    def timed(self, ctx: Context, iterations: int, budget_s: float, name: str = "") -> dict[str, Any]:
        """Time dispatch and then combine; `ctx` is that of everybody who takes part in an iteration."""
        there = Repeated(self.dispatch, self.look, self.arrived.zero_)
        back = Repeated(self.combine, self.look, self.back.zero_)
        dispatches = timed(ctx, there, iterations, budget_s / 2, f"dispatch{name}")
        combines = timed(ctx, back, iterations, budget_s / 2, f"combine{name}")
        both = {"dispatch": dispatches, "combine": combines}
        found = [figures(f"{which}{name}", seconds, self.received_bytes()) for which, seconds in both.items()]
        return {"samples": min(len(dispatches), len(combines)), "figures": {**found[0], **found[1]}}

    def expected(self, goes: list[Tensor]) -> Tensor:
        """What must have arrived: every rank's tokens that come here, in their order."""
        here = [one[:, self.ctx.rank].to(self.ctx.device) for one in goes]
        return torch.cat([self.tokens_of(rank, len(one))[one] for rank, one in enumerate(here)])

    def exact(self, goes: list[Tensor]) -> list[list[int]]:
        """Words from every rank to every rank: as many bytes as the tokens have."""
        return [[rows * self.hidden // 4 for rows in one.sum(0).tolist()] for one in goes]

    def received_bytes(self) -> int:
        """DeepEP's recv_x."""
        return self.arrived.numel() * self.arrived.element_size()


@dataclass
class Repeated:
    """A call as something to repeat; all ranks enter it together.

    `look` compares what the last one left and `clear` takes that away, both outside the clock: so every
    iteration is looked at, and none can live on what the one before it brought.
    """

    call: Callable[[], None]
    look: Callable[[], None]
    clear: Callable[[], object]
    host_clock: bool = False
    lockstep: bool = True

    def prepare(self, i: int) -> None:
        """Look at what the one before left; the same rows go again."""
        self.look()
        self.clear()

    def run(self, i: int) -> None:
        """Do it once."""
        self.call()


def timed(ctx: Context, work: Repeated, iterations: int, budget_s: float, name: str) -> list[float]:
    """Seconds per iteration, of the slowest rank each. What it brings must be there when it begins."""
    seconds = timing.measure(ctx, work, iterations, budget_s, name).seconds
    work.look()
    slowest = torch.tensor(seconds, dtype=torch.float64, device=ctx.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return [float(value) for value in slowest.tolist()]


def figures(name: str, seconds: Sequence[float], received_bytes: int) -> dict[str, float]:
    """GB/s of this rank from the median iteration, latency median and tail."""
    median = statistics.median(seconds)
    tail = sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))]
    return {
        name: received_bytes / median / 1e9,
        f"{name}_us": median * 1e6,
        f"{name}_p99_us": tail * 1e6,
    }
