"""How much of DDP's exchange hides behind backward, on blocks whose backward takes a known time.

Of L equal buckets only the last is exposed: an overlap (`fixtures.ranks.study.overlap`) of 1 - 1/L if an
exchange takes less than the backward it hides behind. One bucket is ready when backward is over: 0 (Li et
al., "PyTorch Distributed", arXiv:2006.15704, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fixtures.ranks.exact.payload import key, words
from fixtures.ranks.steps import Context
from fixtures.ranks.study import overlap, parity
from fixtures.ranks.study.calibrated import Pace
from fixtures.ranks.study.deliveries import digest_of
from fixtures.ranks.study.models import gradient_of
from fixtures.ranks.study.overlap import in_turn, stage_for, uneven
from fixtures.ranks.study.traffic import Traffic, count_traffic

_WARM_UP = 3  # DDP rebuilds its buckets after the first iteration
_MEBI = 1 << 20
_STREAM = 301


class _Paced(torch.autograd.Function):
    """x + <weight, direction>: the weight's gradient is the direction, and backward takes a given time."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own
        x: torch.Tensor,
        weight: torch.Tensor,
        direction: torch.Tensor,
        spend: Callable[[], None],
    ) -> torch.Tensor:
        ctx.save_for_backward(direction)
        ctx.spend = spend
        return x + (weight * direction).sum()

    @staticmethod
    def backward(  # the pace's time, then the gradients
        ctx: Any,  # noqa: ANN401 - torch's own
        grad: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        ctx.spend()
        return grad, grad * ctx.saved_tensors[0], None, None


class PacedStack(nn.Module):
    """Blocks of one weight each; this rank's gradient of each weight is a known direction."""

    def __init__(self, ctx: Context, layers: int, elements: int) -> None:
        super().__init__()
        self.pace = Pace(ctx.device)
        self.lengths = [0.0] * layers  # of the backward of each block, from the last block to the first
        zeros = torch.zeros(elements, dtype=torch.float64, device=ctx.device)
        self.weights = nn.ParameterList([nn.Parameter(zeros.clone()) for _ in range(layers)])
        self.directions = [direction(ctx, ctx.rank, layer, elements) for layer in range(layers)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pass x through all blocks."""
        blocks = zip(self.weights, self.directions, reversed(self.lengths), strict=True)
        for weight, known, seconds in blocks:
            x = _Paced.apply(x, weight, known, partial(self.pace.spend, seconds))  # type: ignore[no-untyped-call]
        return x


def direction(ctx: Context, rank: int, layer: int, elements: int) -> torch.Tensor:
    """Give a rank's gradient of a layer's weight: integers that depend on the rank, exact in fp64 sums."""
    drawn = words([key(ctx.seed, _STREAM, rank, layer)], 0, elements, ctx.device)[0]
    return (drawn % (1 << 20)).to(torch.float64)


class Backward:
    """DDP around a paced stack with buckets of `bucket_bytes`, to be timed."""

    def __init__(self, ctx: Context, layers: int, elements: int, bucket_bytes: int) -> None:
        self.ctx = ctx
        self.stack = PacedStack(ctx, layers, elements)
        self.wrapped = DistributedDataParallel(self.stack, bucket_cap_mb=bucket_bytes / _MEBI)
        self.seen_bits: list[torch.Tensor] = []
        for _ in range(_WARM_UP):
            self.run()

    def run(self, exchange: bool = True) -> None:
        """Forward and backward, with or without the exchange."""
        self.stack.zero_grad()
        with nullcontext() if exchange else self.wrapped.no_sync():
            x = torch.zeros((), dtype=torch.float64, device=self.ctx.device)
            self.wrapped(x).backward()

    def seen(self) -> Traffic:
        """Run once and count."""
        with count_traffic() as traffic:
            self.run()
        return traffic

    def parity(self, label: str) -> list[dict[str, Any]]:
        """Compare the gradients with the mean of all ranks' directions."""
        entries = []
        for layer, weight in enumerate(self.stack.weights):
            ranks = range(self.ctx.size)
            total = sum(direction(self.ctx, rank, layer, weight.numel()) for rank in ranks)
            mean = torch.as_tensor(total) / self.ctx.size
            entries.append(parity.entry(f"grad:{layer} ({label})", gradient_of(weight), mean))
        return entries

    def repeat(self, label: str) -> list[dict[str, Any]]:
        """Run again, and compare the bits of both runs and of every timed run."""
        before = [gradient_of(weight).clone() for weight in self.stack.weights]
        self.run()
        right = self.bits()
        return [
            parity.equal(f"grad:{layer} ({label})", gradient_of(weight), before[layer])
            for layer, weight in enumerate(self.stack.weights)
        ] + [
            parity.equal(f"grads of timed run {number} ({label})", bits, right)
            for number, bits in enumerate(self.seen_bits, 1)
        ]

    def bits(self) -> torch.Tensor:
        """A digest of every gradient."""
        return torch.stack([digest_of(gradient_of(weight)) for weight in self.stack.weights])

    def buffers(self) -> list[torch.Tensor]:
        """Buffers as many and as large as the buckets that a run exchanges."""
        sizes = [call.bytes for call in self.seen().calls if call.op == "all_reduce"]
        return [torch.zeros(size // 8, dtype=torch.float64, device=self.ctx.device) for size in sizes]

    def figures(self, stage_s: float) -> dict[str, float]:
        """Time backward alone, each of its stages with its exchange after it, and DDP, in turn."""
        stack, buffers = self.stack, self.buffers()
        stack.lengths = uneven(self.ctx.rank, len(stack.lengths), stage_s)

        def one_by_one() -> None:
            # With other buckets than requested, the traffic is red, and the time is measured all the same.
            for seconds, buffer in zip_longest(stack.lengths, buffers):
                if seconds is not None:
                    stack.pace.spend(seconds)
                if buffer is not None:
                    dist.all_reduce(buffer)

        runs = partial(self.run, exchange=False), one_by_one, self.run
        return in_turn(self.ctx, runs, overlap.ROUNDS, self._keep, one_by_one=True)

    def figures_at_the_end(self, stage_s: float) -> dict[str, float]:
        """Time backward alone, the exchange of the same buckets alone, and DDP, in turn."""
        self.stack.lengths = [stage_s] * len(self.stack.lengths)
        runs = partial(self.run, exchange=False), partial(_exchange, self.buffers()), self.run
        return in_turn(self.ctx, runs, overlap.ROUNDS, self._keep)

    def stage_s(self) -> float:
        """Give the seconds of a stage that one bucket hides behind, the same on every rank."""
        buffers = self.buffers()
        return stage_for(self.ctx, partial(_exchange, buffers), len(buffers))

    def _keep(self) -> None:
        self.seen_bits.append(self.bits())


def _exchange(buffers: list[torch.Tensor]) -> None:
    pending = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
    for work in pending:
        if work is not None:
            work.wait()
