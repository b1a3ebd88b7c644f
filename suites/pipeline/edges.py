"""The edges of a pipeline by themselves: an exact payload between real neighbours, compared and timed.

All edges at once are what training does, and there a slow one makes its neighbours slow. So each is also
timed with the edges beside it at rest: every second edge at a time, one direction at a time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks import timing
from fixtures.ranks.exact.compare import MOST_REPORTED, examine
from fixtures.ranks.exact.dtypes import Format, format_of
from fixtures.ranks.exact.expected import Moved, Run, moved
from fixtures.ranks.exact.payload import poison
from fixtures.ranks.steps import Context
from fixtures.ranks.study.traffic import count_traffic
from suites.pipeline.run import ranks_of

_SLOTS = 2  # payloads that iterations take in turn
_ACTIVATION, _GRADIENT = 0, 1


@dataclass(frozen=True)
class _Edge:
    """One direction: what this rank sends to `target`, and what it receives from `source` (None: nobody)."""

    name: str
    stream: int
    target: int | None
    source: int | None
    slots: list[torch.Tensor]
    output: torch.Tensor

    def tag(self, i: int) -> int:
        """Which payload an iteration has; the two directions never have the same."""
        return 2 * i + self.stream


class Edges:
    """Both directions as something to repeat. With `fresh` every iteration has a payload of its own."""

    host_clock = False
    lockstep = False

    def __init__(self, ctx: Context, form: Format, count: int, stride: int, fresh: bool = False) -> None:
        self.ctx, self.form, self.count, self.fresh = ctx, form, count, fresh
        after = ctx.rank + stride if ctx.rank + stride < ctx.size else None
        before = ctx.rank - stride if ctx.rank >= stride else None
        self.edges = [
            self._edge("activations", _ACTIVATION, after, before),
            self._edge("gradients", _GRADIENT, before, after),
        ]
        for slot in range(_SLOTS):
            self._fill(slot)

    def _edge(self, name: str, stream: int, target: int | None, source: int | None) -> _Edge:
        slots = [self._empty() for _ in range(_SLOTS)]
        return _Edge(name, stream, target, source, slots, self._empty())

    def _empty(self) -> torch.Tensor:
        return torch.empty(self.count, dtype=self.form.dtype, device=self.ctx.device)

    def _fill(self, i: int) -> None:
        """Write what this rank sends in iteration i: bits that name rank, direction and iteration."""
        rank = range(self.ctx.rank, self.ctx.rank + 1)
        for edge in self.edges:
            bits = moved(
                self.form, self.ctx.seed, rank, edge.tag(i), start=0, count=self.count, device=self.ctx.device
            )
            edge.slots[i % _SLOTS].view(self.form.bits).copy_(bits[0])

    def prepare(self, i: int) -> None:
        """Poison what will be received."""
        if self.fresh:
            self._fill(i)
        for edge in self.edges:
            poison(edge.output)

    def run(self, i: int) -> None:
        """Send and receive both ways in one batch, as the steady state of 1F1B does."""
        ops = []
        for edge in self.edges:
            if edge.target is not None:
                ops.append(dist.P2POp(dist.isend, edge.slots[i % _SLOTS], edge.target))
            if edge.source is not None:
                ops.append(dist.P2POp(dist.irecv, edge.output, edge.source))
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def check(self, i: int) -> list[dict[str, Any]]:
        """Compare every element that was received."""
        found = [self._check(edge, i) for edge in self.edges if edge.source is not None]
        return [corruption for corruption in found if corruption is not None]

    def _check(self, edge: _Edge, i: int) -> dict[str, Any] | None:
        source = edge.source if edge.source is not None else -1
        tags = [edge.tag(j if self.fresh else j % _SLOTS) for j in (i, max(i - 1, 0))]
        run = Run(range(source, source + 1), 0, self.count)
        earlier = ((i - 1, tags[1]),) if i else ()
        expected = Moved(
            self.form, self.ctx.seed, self.ctx.size, tags[0], (run,), self.ctx.device, earlier=earlier
        )
        about = {
            "rank": self.ctx.rank,
            "collective": _name(edge),
            "dtype": self.form.name,
            "size_bytes": self.count * self.form.item_bytes,
            "iteration": i,
        }
        return examine(edge.output.view(self.form.bits), expected, about)


class Alone:
    """One direction of those edges whose lower end is at an even place of its pipeline, or at an odd one."""

    host_clock = False
    lockstep = False

    def __init__(self, edge: _Edge, place: int, parity: int) -> None:
        # Activations go to the next place, gradients to the one before.
        with_next, with_last = place % 2 == parity, (place - 1) % 2 == parity
        forth = edge.stream == _ACTIVATION
        self.edge = edge
        self.source = edge.source if (with_last if forth else with_next) else None
        self.target = edge.target if (with_next if forth else with_last) else None

    def prepare(self, i: int) -> None:
        """Nothing to restore: what is received is compared elsewhere."""

    def run(self, i: int) -> None:
        """Send or receive; a rank whose edge has no turn does nothing."""
        if self.target is not None:
            dist.send(self.edge.slots[0], self.target)
        if self.source is not None:
            dist.recv(self.edge.output, self.source)


def run(
    ctx: Context,
    *,
    dtype: str,
    size_bytes: Mapping[str, int],
    alone_bytes: int,
    elements: list[int],
    iterations: int,
    budget_s: float,
    most: int,
) -> dict[str, Any]:
    """Compare fresh payloads of several lengths, time one size and compare its last, then edge by edge."""
    if ctx.size < 2:
        raise ValueError("a pipeline has edges from 2 ranks on")
    form, stride = format_of(dtype), ctx.size // ranks_of(ctx.size, most)
    wrong: list[dict[str, Any]] = []
    for count in elements:
        ctx.progress.phase(f"exact {count} elements")
        _exact(ctx, Edges(ctx, form, count, stride, fresh=True), iterations, wrong)
    edges = Edges(ctx, form, size_bytes[ctx.device.type] // form.item_bytes, stride)
    with count_traffic() as seen:
        edges.run(0)
    ends = sum(edge.target is not None for edge in edges.edges)
    samples = timing.measure(ctx, edges, iterations, budget_s, f"{edges.count} elements")
    wrong += edges.check(samples.last)
    expected = ends, ends * edges.count * form.item_bytes
    seconds = statistics.median(samples.seconds)
    return {
        "traffic": seen.table({"send": expected, "recv": expected}, "pp"),
        "parity": [_right(edge, wrong) for edge in edges.edges if edge.source is not None],
        "figures": {"edge": edges.count * form.item_bytes / seconds / 1e9},
        "samples": len(samples.seconds),
        "edges": _each(ctx, Edges(ctx, form, alone_bytes // form.item_bytes, stride), stride, budget_s),
        "wrong": wrong[:MOST_REPORTED],
    }


def _each(ctx: Context, edges: Edges, stride: int, budget_s: float) -> list[dict[str, Any]]:
    """Time what this rank receives over each of its edges while the edges beside them are at rest."""
    size_bytes, found = edges.count * edges.form.item_bytes, []
    for edge in edges.edges:
        for parity in range(2):
            alone = Alone(edge, ctx.rank // stride, parity)
            label = f"{edge.name} alone {parity}"
            seconds = timing.measure(ctx, alone, timing.FEWEST, budget_s / 4, label).seconds
            if alone.source is not None:
                rate = size_bytes / statistics.median(seconds) / 1e9
                found.append(
                    {"what": edge.name, "from": alone.source, "to": ctx.rank, "gigabytes_per_s": rate}
                )
    return found


def _exact(ctx: Context, edges: Edges, iterations: int, wrong: list[dict[str, Any]]) -> None:
    for i in range(iterations):
        edges.prepare(i)
        edges.run(i)
        timing.complete(ctx)
        wrong += edges.check(i)
        ctx.progress.done(i + 1)


def _right(edge: _Edge, wrong: list[dict[str, Any]]) -> dict[str, Any]:
    """Say how many elements of one direction were not what they had to be."""
    count = sum(one["count"] for one in wrong if one["collective"] == _name(edge))
    return {"what": edge.name, "error": float(count), "tolerance": 0.0}


def _name(edge: _Edge) -> str:
    return f"pipeline {edge.name}"
