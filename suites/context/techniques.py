"""The techniques of context parallelism: each rank has a part of the sequence and attends over all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import torch

from fixtures.ranks.collectives.calls import Call
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, overlap
from fixtures.ranks.study.calibrated import Pace
from fixtures.ranks.study.driver import EXACT, TRAINED, Entries, Run
from fixtures.ranks.study.overlap import Action, in_turn, stage_for, uneven
from fixtures.ranks.study.pattern import Move
from suites.context import layout as context_layout
from suites.context.issued import Shape, repeats
from suites.context.layout import Layout
from suites.context.moves import to_heads, to_sequence, whole_sequence
from suites.context.ring_attention import (
    GRADIENTS,
    KEYS,
    Buffers,
    Pass,
    Tally,
    block_attention,
    ring_attention,
    visits,
)
from suites.context.technique import ALONE, ContextParallel
from suites.tensor.regions import Group

# Tokens and channels of the block that is passed on while another is computed: enough to exceed latency.
BLOCKS = {"cpu": (128, 32), "cuda": (4096, 128)}


class AllGatherKV(ContextParallel):
    """Every rank gathers all keys and values, and attends with its own queries."""

    name = "all_gather_kv"

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tally: Tally) -> torch.Tensor:
        """Gather K and V, then attend."""
        whole = torch.arange(self.shape.length)
        blocks = self.places if self.fused else (whole,)
        queries = self.span(self.places[self.ctx.rank])
        layout = Layout(queries, (*map(self.span, blocks),), self.shape.causal)
        gathered = whole_sequence(torch.stack((k, v)), self.group)
        return block_attention(q, gathered, self.kernel(layout, tally))


class Ring(ContextParallel):
    """Keys and values pass from rank to rank, each rank holding one block at a time."""

    name = "ring"

    @cached_property
    def layout(self) -> Layout:
        """Every rank's block; made once, because positions are copied to the device."""
        spans = tuple(self.span(places) for places in self.places)
        return Layout(spans[self.ctx.rank], spans, self.shape.causal)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tally: Tally) -> torch.Tensor:
        """Attend while the blocks go round once."""
        return ring_attention(q, torch.stack((k, v)), self.kernel(self.layout, tally), self.group)

    def memory(self, dtype: torch.dtype, run: Run[Tally]) -> Entries:
        """Add other ranks' K and V held at a time: the block in use and the next one."""
        right, live = self.holds(dtype), "live unsharded"
        return [*super().memory(dtype, run), memory.entry(live, run.kept.buffer_bytes(), right[live])]

    def moves(self) -> list[Move]:
        """One round of keys and one of gradients, as the ring passes them on."""
        size_bytes = self.sizes(EXACT).kv
        return [Move("send_recv", size_bytes, call=passing(what)) for what in (KEYS, GRADIENTS)]

    def figures(self, tally: Tally) -> Mapping[str, float]:
        """This rank's work over the mean (all wait for the busiest rank), and what is hidden."""
        mean = context_layout.contiguous_pairs(self.shape.length, 1, 0, self.shape.causal) / self.ctx.size
        tokens, dim = BLOCKS[self.ctx.device.type]
        block = torch.zeros((2, 1, self.shape.kv_heads, tokens, dim), dtype=TRAINED, device=self.ctx.device)
        return {"imbalance": tally.work() / mean, **hiding(self.ctx, block)}


def hiding(ctx: Context, block: torch.Tensor) -> dict[str, float]:
    """Pass a block on w-1 times while computing for known times, after some that hides nothing."""
    group, pace = Group(ctx.rank, ctx.size), Pace(ctx.device)
    ctx.progress.phase("overlap")
    around: Action = lambda: list(visits(block, group))  # noqa: E731 - a name for a thing to time
    around()
    first, *lengths = uneven(ctx.rank, ctx.size + 1, stage_for(ctx, around, ctx.size - 1))

    def compute() -> None:
        for seconds in (first, *lengths):
            pace.spend(seconds)

    def one_by_one() -> None:
        buffers = Buffers(block)
        pace.spend(first)
        for number, seconds in enumerate(lengths):
            if number < ctx.size - 1:
                Pass(block, buffers.next(), group, KEYS).arrived()
            pace.spend(seconds)

    def both() -> None:
        pace.spend(first)
        for seconds, _ in zip(lengths, visits(block, group), strict=True):
            pace.spend(seconds)

    return in_turn(ctx, (compute, one_by_one, both), overlap.ROUNDS, one_by_one=True)


def passing(what: int) -> Callable[[Call], None]:
    """One round of the ring, as `send_recv`."""

    def call(round_: Call) -> None:
        Pass(round_.sent, round_.received, Group(round_.rank, round_.size), what).arrived()

    return call


class ZigZag(Ring):
    """The ring, with a piece from the front and one from the back of the sequence on every rank."""

    name = "zigzag"

    def cut(self, length: int, size: int) -> list[torch.Tensor]:
        """Two chunks for each rank."""
        return context_layout.zigzag(length, size)

    def pairs(self) -> int:
        """The same on every rank."""
        return context_layout.zigzag_pairs(self.shape.length, self.ctx.size)


class Ulysses(ContextParallel):
    """All-to-all from parts of the sequence to parts of the heads, and back for the output.

    Fewer key heads than ranks are repeated until each rank has one (Jacobs et al.: DeepSpeed Ulysses, 2023).
    """

    name = "ulysses"

    def __init__(self, ctx: Context, shape: Shape, dtype: torch.dtype = EXACT) -> None:
        super().__init__(ctx, shape, dtype)
        self.repeats = _repeats(shape, ctx.size)
        self.kv_heads = shape.kv_heads * self.repeats
        if self.repeats > 1:  # autograd adds up the gradients of repeated heads as they come, in 16 bits
            self.once = ("forward", "grad:q", ALONE)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tally: Tally) -> torch.Tensor:
        """Attend over the whole sequence with 1/w of the heads."""
        size, whole = self.ctx.size, self.span(torch.arange(self.shape.length))
        heads, keys, values = (to_heads(part, size) for part in (q, self._repeated(k), self._repeated(v)))
        layout = Layout(whole, (whole,), self.shape.causal)
        out = block_attention(heads, torch.stack((keys, values)), self.kernel(layout, tally))
        return to_sequence(out, size)

    def _repeated(self, part: torch.Tensor) -> torch.Tensor:
        return part.repeat_interleave(self.repeats, 1)

    def pairs(self) -> int:
        """The whole sequence, per head; each rank has the same number of heads."""
        return context_layout.contiguous_pairs(self.shape.length, 1, 0, self.shape.causal)


def _repeats(shape: Shape, size: int) -> int:
    """How often key heads are repeated so that they divide over the ranks; an error names all faults."""
    refused = []
    if shape.heads % size:
        refused.append(f"{shape.heads} query heads do not divide over {size} ranks")
    if shape.kv_heads % size and size % shape.kv_heads:
        refused.append(f"{shape.kv_heads} key heads neither divide over {size} ranks nor repeat to {size}")
    if refused:
        raise ValueError("; ".join(refused))
    return repeats(shape.kv_heads, size)
