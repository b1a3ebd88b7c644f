"""A technique's own pattern of collectives: sent with payloads that name themselves, compared, and timed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fixtures.ranks import timing
from fixtures.ranks.collectives.calls import renamed
from fixtures.ranks.collectives.collectives import Collective
from fixtures.ranks.collectives.shapes import count_for
from fixtures.ranks.exact.compare import MOST_REPORTED, examine
from fixtures.ranks.exact.dtypes import FORMATS, Format, format_of
from fixtures.ranks.exact.expected import Suspect
from fixtures.ranks.exact.payload import key, poison, words
from fixtures.ranks.steps import Context

PAYLOADS = ("int64", "bf16")  # the width of the exact runs, and the training dtype
ITERATIONS = 10
BUDGET_S = 0.1
LARGEST_BYTES = {"cpu": 1, "cuda": 64 << 20}
_STREAM = 300
_WORD = FORMATS["int64"]


class Pattern:
    """Collectives one after the other, as (name, bytes in nccl-tests' meaning), to repeat and to compare."""

    host_clock = False
    lockstep = False

    def __init__(self, ctx: Context, calls: Sequence[tuple[str, int]], dtype: str) -> None:
        self.size_bytes = sum(size for _, size in calls)
        form = format_of(dtype)
        self.collectives = [
            Collective(ctx, name, dtype, "sum", count_for(name, size, ctx.size, form), size_bytes=size)
            for name, size in calls
        ]

    def prepare(self, i: int) -> None:
        """Restore all inputs."""
        for collective in self.collectives:
            collective.prepare(i)

    def run(self, i: int) -> None:
        """Issue all of them."""
        for collective in self.collectives:
            collective.run(i)

    def check(self, i: int) -> list[dict[str, Any]]:
        """Compare all outputs."""
        found = (collective.check(i) for collective in self.collectives)
        return [corruption for corruption in found if corruption is not None]


def sent(ctx: Context, calls: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Send the pattern in each payload dtype and compare every element; bandwidth: bytes over the median.

    On a GPU it is enlarged as a whole: the model's own few KB would never take the ways that training takes.
    """
    factor = enlargement(ctx, max(size for _, size in calls))
    calls = [(name, factor * size) for name, size in calls]
    wrong: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    for dtype in PAYLOADS:
        pattern = Pattern(ctx, calls, dtype)
        samples = timing.measure(ctx, pattern, ITERATIONS, BUDGET_S, dtype)
        wrong += pattern.check(samples.last)
        figures["bandwidth"] = pattern.size_bytes / statistics.median(samples.seconds) / 1e9
    return {"wrong": wrong[:MOST_REPORTED], "figures": figures}


def enlargement(ctx: Context, largest_bytes: int) -> int:
    """How many times as large a pattern is sent, so that its largest call is what this device deserves."""
    return max(-(-LARGEST_BYTES[ctx.device.type] // largest_bytes), 1)


@dataclass(frozen=True)
class Known:
    """An expectation that is written down as a whole: sums of words modulo 2^64, exact in any order."""

    right: torch.Tensor
    ranks: int
    ulps: int = 0

    @property
    def form(self) -> Format:
        """Words of 64 bits."""
        return _WORD

    @property
    def count(self) -> int:
        """All of it."""
        return self.right.numel()

    def window(self, start: int, count: int) -> torch.Tensor:
        """Cut it out."""
        return self.right[start : start + count]

    def origin(self, element: int) -> tuple[int | None, int]:
        """Everybody's."""
        return None, self.count

    def contributors(self, element: int) -> set[int]:
        """Everybody."""
        return set(range(self.ranks))

    def suspects(self, start: int, count: int) -> Iterator[Suspect]:
        """None."""
        return iter(())


class Hops:
    """An all-reduce in three hops: reduce-scatter along `shard`, all-reduce along `replicate`, all-gather."""

    host_clock = False
    lockstep = False

    def __init__(self, ctx: Context, mesh: DeviceMesh, size_bytes: int) -> None:
        self.ctx, self.size_bytes = ctx, size_bytes
        self.across, self.along = mesh.get_group("replicate"), mesh.get_group("shard")
        self.given = self._payload(ctx.rank)
        self.part = self.given.new_empty(self.given.numel() // mesh.size(1))
        self.joined = torch.empty_like(self.given)

    def prepare(self, i: int) -> None:
        """Poison the output."""
        poison(self.joined)

    def run(self, i: int) -> None:
        """Make the three hops."""
        renamed("reduce_scatter_single", "reduce_scatter_tensor")(self.part, self.given, group=self.along)
        dist.all_reduce(self.part, group=self.across)
        renamed("all_gather_single", "all_gather_into_tensor")(self.joined, self.part, group=self.along)

    def check(self) -> dict[str, Any] | None:
        """Compare with the sum of everybody's words."""
        right = torch.zeros_like(self.given)
        for rank in range(self.ctx.size):
            right += self._payload(rank)
        pattern = "reduce_scatter + all_reduce + all_gather"
        about = {"rank": self.ctx.rank, "collective": pattern, "dtype": _WORD.name, "iteration": 0}
        return examine(self.joined, Known(right, self.ctx.size), {**about, "size_bytes": self.size_bytes})

    def _payload(self, rank: int) -> torch.Tensor:
        count = self.size_bytes // _WORD.item_bytes
        return words([key(self.ctx.seed, _STREAM, rank)], 0, count, self.ctx.device)[0].contiguous()


def sent_on_mesh(ctx: Context, mesh: DeviceMesh, size_bytes: int) -> dict[str, Any]:
    """Send, compare and time the three hops: bytes of the whole over the median."""
    size_bytes *= enlargement(ctx, size_bytes)
    hops = Hops(ctx, mesh, size_bytes)
    samples = timing.measure(ctx, hops, ITERATIONS, BUDGET_S, _WORD.name)
    found = hops.check()
    rate = size_bytes / statistics.median(samples.seconds) / 1e9
    return {"wrong": [] if found is None else [found], "figures": {"bandwidth": rate}}
