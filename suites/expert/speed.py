"""Dispatch and combine, timed by DeepEP's definition of bytes.

deepseek-ai/DeepEP tests/test_intranode.py: GB/s = bytes of `recv_x` / time, a token being received once by
a rank however many of its experts live there, the rank's own tokens included. Gathering the rows is part of
the time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from fixtures.ranks.steps import Context
from fixtures.ranks.study.driver import TRAINED, Entries, Form, Left, Run, Seen, Technique
from fixtures.ranks.study.parity import bits, equal
from fixtures.ranks.study.pattern import Pattern, timed
from suites.expert import held
from suites.expert.fp8 import packed, pattern, unpacked
from suites.expert.issued import there_and_back
from suites.expert.layer import Group
from suites.expert.routing import Shape, column, even_tables, scaled, visited
from suites.expert.tokens import stream

# Payloads that are timed in turn: an odd number, because libraries take two buffers in turn, and what is
# still there of two calls before must not be right.
TURNS = 3
_ROWS = 730
_FINITE = 0x3FFF  # of a bf16 number's bits


def even_traffic(seed: int, ranks: int, shape: Shape) -> list[Tensor]:
    """Which ranks (columns) every token of every rank goes to, where they go everywhere evenly."""
    return [visited(chosen, shape.experts, ranks) for chosen in even_tables(seed, ranks, shape)]


@dataclass
class Traffic(Technique[None]):
    """The buffers of one rank: its tokens (bf16 patterns), what it receives, and what that must be.

    Ranks are those of a group (None: the world), as `ctx` counts them; `goes` is as in `even_traffic`, and
    `turn` says which tokens they are.
    """

    ctx: Context
    goes: list[Tensor]
    hidden: int
    group: Group = None
    variant: str = ""
    turn: int = 0
    dtypes = (TRAINED,)

    def __post_init__(self) -> None:
        own = self.goes[self.ctx.rank].to(self.ctx.device)
        self.matrix = [one.sum(0).tolist() for one in self.goes]
        self.sent, self.received = self.matrix[self.ctx.rank], column(self.matrix, self.ctx.rank)
        self.token = torch.where(own.T)[1]
        self.rows = self.token.argsort(stable=True)
        each = own.sum(1)
        self.first_row = each.cumsum(0) - each
        self.given = self.x = self.right_of(self.ctx.rank)
        here = [one[:, self.ctx.rank].to(self.ctx.device) for one in self.goes]
        self.right = torch.cat([self.right_of(rank)[comes] for rank, comes in enumerate(here)])
        self.arrived = torch.empty_like(self.right)
        self.back = self.x.new_empty(sum(self.sent), self.hidden)

    @cached_property
    def others(self) -> list[Traffic]:
        """The same with other tokens, in the same buffers: all take turns while it is timed."""
        others = [replace(self, turn=turn) for turn in range(1, TURNS)]
        for one in others:
            one.arrived, one.back = self.arrived, self.back
        return others

    def other(self) -> Traffic:
        """The same with other tokens."""
        return self.others[0]

    def right_of(self, rank: int) -> Tensor:
        """Compute any rank's tokens as they must arrive: a finite pattern in every element."""
        return (self.words_of(rank) & _FINITE).view(torch.bfloat16)

    def words_of(self, rank: int) -> Tensor:
        """Draw 16 bits for each element of any rank's tokens."""
        count = len(self.goes[rank])
        words = stream(self.ctx, rank, _ROWS + self.turn, count * self.hidden // 4).view(torch.int16)
        return words.view(count, self.hidden)

    def dispatch(self) -> Tensor:
        """Gather and send."""
        rows = self.given[self.token]
        dist.all_to_all_single(self.arrived, rows, self.received, self.sent, group=self.group)
        return self.arrived

    def work(self, rows: Tensor) -> None:
        """The experts return their inputs."""
        self.worked = rows

    def combine(self) -> Tensor:
        """Send back and add up, in the dtype of the tokens; give what came back."""
        dist.all_to_all_single(self.back, self.worked, self.sent, self.received, group=self.group)
        self.summed()
        return self.back

    def summed(self) -> Tensor:
        """Add up each token's rows in the order of the ranks, without atomics, which would be timed too."""
        found: Tensor = functional.embedding_bag(self.rows, self.back, self.first_row, mode="sum")
        return found

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[None]:
        """Dispatch and combine."""
        with seen():
            arrived = self.dispatch().clone()
        self.work(self.arrived)
        with seen():
            back = self.combine().clone()
        return Left({}, None, {"tokens at experts": arrived, "tokens at home": back})

    def close(self, kept: None) -> None:
        """Forget what the experts returned."""
        del self.worked

    def beside(self, dtype: torch.dtype, run: Run[None]) -> Entries:
        """Compare every token, at experts and back, bit for bit."""
        rights = {"tokens at experts": self.right, "tokens at home": self.x[self.token]}
        return [equal(what, run.left.moved[what], right) for what, right in rights.items()]

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """Rows sent, and rows returned."""
        rows = sum(self.sent) + sum(self.received)
        return [Form(there_and_back(self.hidden, rows), self.variant, self.group)]

    def peak(self, dtype: torch.dtype) -> int:
        """For the rows of this rank."""
        rows: int = sum(self.received) + max(sum(self.sent), len(self.x))
        return held.there_and_back(self.hidden, rows, dtype.itemsize)

    def exact(self) -> list[list[int]]:
        """The bf16 from every rank to every rank: those of the tokens."""
        return scaled(self.matrix, self.hidden)

    def timed(self, ctx: Context, iterations: int, budget_s: float, name: str = "") -> dict[str, Any]:
        """Time dispatch and then combine; `ctx` has all ranks that take part in an iteration."""
        turns = self, *self.others
        for one in turns:
            one.work(one.right)
        there = Watched(*((one.dispatch, one.right) for one in turns))
        back = Watched(*((one.combine, one.x[one.token]) for one in turns))
        ways = {
            f"dispatch{name}": (there, self.right.nbytes),
            f"combine{name}": (back, self.worked.nbytes),
        }
        return paced(ctx, ways, iterations, budget_s)


class TrafficFp8(Traffic):
    """The same with a dispatch in fp8, of tokens whose quantised bytes are known in closed form.

    DeepEP's own benchmark also starts with tokens in fp8, so quantising is not timed.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.x = unpacked(self.given, TRAINED)
        self.given = packed(self.x)
        self.back = self.x.new_empty(len(self.token), self.hidden)

    def right_of(self, rank: int) -> Tensor:
        """Compute the bytes of any rank's tokens."""
        return pattern(self.words_of(rank))

    def work(self, rows: Tensor) -> None:
        """The experts return their inputs' values, in bf16."""
        self.worked = unpacked(rows, TRAINED)

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """Rows sent in fp8, and rows returned in bf16."""
        return [Form(there_and_back(self.hidden, sum(self.received), sum(self.sent)))]

    def peak(self, dtype: torch.dtype) -> int:
        """Copies of the rows that arrived, their values, and copies of the rows that came back, or sums."""
        rows: int = sum(self.received) + max(sum(self.sent), len(self.x))
        return self.right.nbytes + rows * self.hidden * dtype.itemsize


class Watched:
    """Calls that take turns, each with its right result, as an `Exchange`; all ranks enter it together.

    Every iteration's result is compared, and wrong ones are counted. It is then zeroed, so that no iteration
    passes with the result of the one before: memory that is freed and allocated again could still hold that.
    What a backend has kept of it is found where the next iteration has other data.
    """

    host_clock = False
    lockstep = True
    kept = 1

    def __init__(self, *turns: tuple[Callable[[], Tensor], Tensor]) -> None:
        self.turns, (_, self.right) = turns, turns[0]
        self.left = self.right.clone()
        self.wrong = torch.zeros(1, dtype=torch.int64, device=self.right.device)

    def prepare(self, i: int) -> None:
        """Compare the result of the iteration before, and zero it."""
        self.check(i)
        self.left.zero_()

    def run(self, i: int) -> None:
        """Do it once."""
        call, self.right = self.turns[i % len(self.turns)]
        self.left = call()

    def check(self, i: int) -> dict[str, Any] | None:
        """Count a wrong result, without waiting for the GPU."""
        self.wrong += (bits(self.left) != bits(self.right)).any()
        return None

    def compared(self, i: int) -> int:
        """Elements of a result."""
        return self.right.numel()

    def overwritten(self) -> list[dict[str, Any]]:
        """Nothing beside the count: each result was compared before it was zeroed."""
        return []

    def entry(self, name: str) -> dict[str, Any]:
        """How many iterations gave a wrong result."""
        return equal(f"{name}: iterations that went wrong", self.wrong, torch.zeros_like(self.wrong))


def paced(
    ctx: Context, ways: Mapping[str, tuple[Watched, int]], iterations: int, budget_s: float
) -> dict[str, Any]:
    """Time each way: parity of all its iterations, samples, and figures for its bytes."""
    found: dict[str, Any] = {"parity": [], "samples": iterations, "figures": {}}
    for name, (way, size_bytes) in ways.items():
        seconds = timed_together(ctx, way, name, iterations, budget_s / len(ways))
        found["parity"].append(way.entry(name))
        found["samples"] = min(len(seconds), found["samples"])
        found["figures"] |= figures(name, seconds, size_bytes)
    return found


def timed_together(ctx: Context, way: Watched, name: str, iterations: int, budget_s: float) -> list[float]:
    """Seconds of each iteration, on its slowest rank."""
    seconds = timed(ctx, Pattern([way]), name, iterations=iterations, budget_s=budget_s).seconds
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
