"""How much of DDP's exchange hides behind backward, on blocks whose backward takes a known time.

L equal buckets leave the last one exposed: an overlap (`fixtures.ranks.study.overlap`) of 1 - 1/L when an
exchange takes less than the backward it hides behind. One bucket is ready when backward is over: 0 (Li et
al., "PyTorch Distributed", arXiv:2006.15704, section 3.2).

So a stage is made to last longer than a bucket takes on the links of the day, which is measured first.
"""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fixtures.ranks.exact.payload import key, words
from fixtures.ranks.steps import Context
from fixtures.ranks.study import parity
from fixtures.ranks.study.calibrated import calibrated_work
from fixtures.ranks.study.deliveries import digest_of
from fixtures.ranks.study.models import gradient_of
from fixtures.ranks.study.overlap import in_turn, seconds_of
from fixtures.ranks.study.traffic import Traffic, count_traffic

_WARM_UP = 3  # DDP lays its buckets out anew after the first iteration
_PROBE_CYCLES = 10_000_000
_PROBES = 5
_MEBI = 1 << 20
_STREAM = 301
_SLACK = 1.5  # a stage lasts so much longer than a bucket takes
_LONGEST_STAGE_S = 0.25


class Pace:
    """A kernel of a known length that leaves the processor free: a spin on a GPU, calibrated work else."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self._device = device
        self._cycles_per_s = self._calibrate() if device.type == "cuda" else 0.0

    def spend(self) -> None:
        """Take that long."""
        if self._cycles_per_s:
            torch.cuda._sleep(int(self.seconds * self._cycles_per_s))  # type: ignore[no-untyped-call]
        elif self.seconds:
            calibrated_work(time.perf_counter() + self.seconds)

    def _calibrate(self) -> float:
        """Cycles per second of the device's spin, by the last of a few: clocks rise from idle."""
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(_PROBES + 1)]  # type: ignore[no-untyped-call]
        for end in ends[:-1]:
            end.record()
            torch.cuda._sleep(_PROBE_CYCLES)  # type: ignore[no-untyped-call]
        ends[-1].record()
        torch.cuda.synchronize(self._device)
        spent_s = float(ends[-2].elapsed_time(ends[-1])) / 1e3
        return _PROBE_CYCLES / spent_s


class _Paced(torch.autograd.Function):
    """x + <weight, direction>: the weight's gradient is the direction, and backward takes the pace's time."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own
        x: torch.Tensor,
        weight: torch.Tensor,
        direction: torch.Tensor,
        pace: Pace,
    ) -> torch.Tensor:
        ctx.save_for_backward(direction)
        ctx.pace = pace
        return x + (weight * direction).sum()

    @staticmethod
    def backward(  # the pace's time, then the gradients
        ctx: Any,  # noqa: ANN401 - torch's own
        grad: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        ctx.pace.spend()
        return grad, grad * ctx.saved_tensors[0], None, None


class PacedStack(nn.Module):
    """Blocks of one weight each; this rank's gradient of each weight is a known direction."""

    def __init__(self, ctx: Context, layers: int, elements: int) -> None:
        super().__init__()
        self.pace = Pace(ctx.device)
        zeros = torch.zeros(elements, dtype=torch.float64, device=ctx.device)
        self.weights = nn.ParameterList([nn.Parameter(zeros.clone()) for _ in range(layers)])
        self.directions = [direction(ctx, ctx.rank, layer, elements) for layer in range(layers)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pass x through all blocks."""
        for weight, known in zip(self.weights, self.directions, strict=True):
            x = _Paced.apply(x, weight, known, self.pace)  # type: ignore[no-untyped-call]
        return x


def direction(ctx: Context, rank: int, layer: int, elements: int) -> torch.Tensor:
    """Give a rank's gradient of a layer's weight: integers that say whose they are, exact in fp64 sums."""
    drawn = words([key(ctx.seed, _STREAM, rank, layer)], 0, elements, ctx.device)[0]
    return (drawn % (1 << 20)).to(torch.float64)


class Backward:
    """DDP around a paced stack with buckets of `bucket_bytes`, as something to time."""

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
        """Hold the gradients against the mean of everybody's directions."""
        entries = []
        for layer, weight in enumerate(self.stack.weights):
            ranks = range(self.ctx.size)
            total = sum(direction(self.ctx, rank, layer, weight.numel()) for rank in ranks)
            mean = torch.as_tensor(total) / self.ctx.size
            entries.append(parity.entry(f"grad:{layer} ({label})", gradient_of(weight), mean))
        return entries

    def repeat(self, label: str) -> list[dict[str, Any]]:
        """Run again: the same bits, and so had every run that was timed."""
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
        """As many and as large as the buckets that a run exchanges."""
        sizes = [call.bytes for call in self.seen().calls if call.op == "all_reduce"]
        return [torch.zeros(size // 8, dtype=torch.float64, device=self.ctx.device) for size in sizes]

    def figures(self, stage_s: float, repeats: int) -> dict[str, float]:
        """Time compute alone, the exchange of the same buckets alone, and both, in turn."""
        self.stack.pace.seconds = stage_s
        buffers = self.buffers()
        runs = partial(self.run, exchange=False), partial(_exchange, buffers), self.run
        return in_turn(self.ctx, runs, repeats, lambda: self.seen_bits.append(self.bits()))

    def paced_for_the_link(self, stage_s: float, repeats: int) -> float:
        """Give the seconds of a stage that one bucket hides behind, the same on every rank."""
        return min(max(stage_s, _SLACK * self.seconds_of_bucket(repeats)), _LONGEST_STAGE_S)

    def seconds_of_bucket(self, repeats: int) -> float:
        """Time the exchange of all buckets alone, and divide it among them."""
        buffers = self.buffers()
        spent_s = [seconds_of(self.ctx, partial(_exchange, buffers)) for _ in range(repeats)]
        return statistics.median(spent_s) / len(buffers)


def _exchange(buffers: list[torch.Tensor]) -> None:
    pending = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
    for work in pending:
        if work is not None:
            work.wait()
