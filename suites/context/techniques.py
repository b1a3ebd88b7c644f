"""The techniques of context parallelism: each rank has a part of the sequence and attends over all of it.

Each is compared with torch's attention on the whole sequence.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F

from fixtures.ranks.collectives.calls import Call
from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, overlap, parity
from fixtures.ranks.study.at_size import drawn
from fixtures.ranks.study.calibrated import Pace
from fixtures.ranks.study.driver import EXACT, TRAINED, Entries, Form, Left, Named, Run, Seen, Technique
from fixtures.ranks.study.overlap import Action, in_turn, stage_for, uneven
from fixtures.ranks.study.pattern import Move
from fixtures.wire.held import PEAK, Weighed
from suites.context import layout as context_layout
from suites.context.fused import Fused, refuse_without_kernel
from suites.context.issued import BACKWARD, FORMS, FORWARD, Both, Part, Shape, repeats
from suites.context.layout import Layout, Span
from suites.context.moves import to_heads, to_sequence, whole_sequence
from suites.context.ring_attention import (
    GRADIENTS,
    KEYS,
    Buffers,
    Kernel,
    Pass,
    Tally,
    WrittenOut,
    block_attention,
    ring_attention,
    visits,
    wide,
)
from suites.tensor.regions import Group

NAMES = ("forward", "grad:q", "grad:k", "grad:v")
ALONE = "forward of one head on this rank alone"
# Tokens and channels of the block that is passed on while another is computed: enough to exceed latency.
BLOCKS = {"cpu": (128, 32), "cuda": (4096, 128)}


@dataclass(frozen=True)
class Tensors:
    """Queries, keys, values, and the gradient of the output: (batch, heads, positions, dim)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    gradient: torch.Tensor

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        """The same four, changed."""
        return Tensors(*(change(tensor) for tensor in (self.q, self.k, self.v, self.gradient)))

    def leaves(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values as leaves that require gradients."""
        q, k, v = (tensor.detach().requires_grad_() for tensor in (self.q, self.k, self.v))
        return q, k, v


class ContextParallel(Technique[Tally]):
    """One technique of context parallelism. `places` are the positions of every rank's part of the sequence.

    Inputs are drawn in the dtype that is studied: an fp64 run that rounds its blocks to bf16 on the wire
    would not be seen with inputs that bf16 can represent.
    """

    name: ClassVar[str]  # of its step, in the table of closed forms
    fuses: ClassVar[bool] = False  # at every size, and not only at that of training
    studied: Sequence[torch.dtype] = (EXACT, TRAINED)
    local = (ALONE,)
    once: Collection[str] = (*NAMES, ALONE)

    def __init__(self, ctx: Context, shape: Shape, dtype: torch.dtype = EXACT) -> None:
        if ctx.size < 2:
            raise ValueError("context parallelism needs at least 2 ranks; this world has 1")
        self.ctx, self.shape, self.dtypes = ctx, shape, (dtype,)
        self.group, self.fused = Group(ctx.rank, ctx.size), self.fuses or ctx.at_size
        if self.fused:
            refuse_without_kernel(ctx.device)
        self.places = self.cut(shape.length, ctx.size)

    def cut(self, length: int, size: int) -> list[torch.Tensor]:
        """Divide the positions among the ranks."""
        return context_layout.contiguous(length, size)

    @abstractmethod
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tally: Tally) -> torch.Tensor:
        """Attend with this rank's parts; can be differentiated."""

    def issued(self, dtype: torch.dtype) -> Both:
        """The closed forms of what forward and backward issue."""
        return FORMS[self.name][0](self.sizes(dtype))

    def holds(self, dtype: torch.dtype) -> Weighed:
        """The closed form of this rank's memory."""
        return FORMS[self.name][1](self.sizes(dtype))

    def sizes(self, dtype: torch.dtype) -> Part:
        """The sizes that the closed forms depend on."""
        return Part(self.shape, self.ctx.size, dtype.itemsize, self.fused)

    def pairs(self) -> int:
        """The closed form of this rank's work: visible (query, key) pairs per head that it computes."""
        shape, ctx = self.shape, self.ctx
        return context_layout.contiguous_pairs(shape.length, ctx.size, ctx.rank, shape.causal)

    def moves(self) -> list[Move]:
        """What is sent with exact payloads: each collective that it issues."""
        forward, backward = self.issued(EXACT)
        forms = {**forward, **backward}.items()
        return [Move(kind, size // count) for kind, (count, size) in forms for _ in range(count)]

    def figures(self, tally: Tally) -> Mapping[str, float]:
        """Measure figures that only this technique has."""
        return {}

    # the driver's interface

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[Tally]:
        """Forward and backward with this rank's part; the kernel alone on one head of the whole sequence."""
        whole, tally = self.drawn(dtype), Tally()
        part, alone = whole.each(self.mine), self._alone(whole)
        del whole  # which no rank has in real training
        leaves = part.leaves()
        with seen("forward"):
            out = self.attend(*leaves, tally)
        with seen("backward"):
            gradients = torch.autograd.grad(out, leaves, part.gradient)
        found = dict(zip(NAMES, (out.detach(), *gradients), strict=True))
        return Left({**found, ALONE: alone}, tally)

    def other(self) -> ContextParallel:
        """The same with another sequence."""
        other = copy(self)
        other.ctx = replace(self.ctx, seed=key(self.ctx.seed) >> 1)
        return other

    def reference(self, dtype: torch.dtype) -> Named:
        """Output and gradients of torch's own attention over the whole sequence."""
        found = dict(zip(NAMES, unsharded(self.drawn(dtype), self.shape), strict=True))
        return {**found, ALONE: found["forward"][:, :1]}

    def part(self, whole: Named, kept: Tally) -> Named:
        """This rank's positions; all positions of what it computed alone."""
        return {name: one if name == ALONE else self.mine(one) for name, one in whole.items()}

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """What forward and backward issue, among all ranks."""
        forward, backward = self.issued(dtype)
        return [Form(forward, FORWARD, phase="forward"), Form(backward, BACKWARD, phase="backward")]

    def memory(self, dtype: torch.dtype, run: Run[Tally]) -> Entries:
        """What forward saves for backward."""
        leaves = self.drawn(dtype).each(self.mine).leaves()
        found = memory.saved_activation_bytes(lambda: self.attend(*leaves, Tally()))
        return [memory.entry("activations", found, self.holds(dtype)["activations"])]

    def peak(self, dtype: torch.dtype) -> int:
        """The ceiling of its closed form."""
        return self.holds(dtype)[PEAK]

    def beside(self, dtype: torch.dtype, run: Run[Tally]) -> Entries:
        """Compare the work that was done with its closed form."""
        found, right = (torch.tensor(count) for count in (run.kept.work(), self.pairs()))
        return [parity.equal("balance: work against its closed form", found, right)]

    # parts

    def drawn(self, dtype: torch.dtype) -> Tensors:
        """The whole sequence, the same on every rank."""
        shape, generator = self.shape, torch.Generator().manual_seed(self.ctx.seed)
        heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
        sizes = [(shape.batch, count, shape.length, shape.dim) for count in heads]
        if self.ctx.at_size:
            device = self.ctx.device
            parts = [drawn(key(self.ctx.seed, number), size, device) for number, size in enumerate(sizes)]
            return Tensors(*(part.to(dtype) for part in parts))
        values = [torch.randn(size, generator=generator, dtype=EXACT) for size in sizes]
        return Tensors(*(value.to(self.dtypes[0]).to(self.ctx.device, dtype) for value in values))

    def mine(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole sequence."""
        return whole.index_select(2, self.places[self.ctx.rank].to(whole.device)).contiguous()

    def span(self, positions: torch.Tensor) -> Span:
        """Positions, on the tensors' device."""
        return Span.of(positions, self.ctx.device)

    def _alone(self, whole: Tensors) -> torch.Tensor:
        """Attention of one head, in which no peer takes part."""
        span = self.span(torch.arange(self.shape.length))
        layout = Layout(span, (span,), self.shape.causal)
        head = torch.stack((whole.k[:, :1], whole.v[:, :1]))
        return block_attention(whole.q[:, :1], head, self.kernel(layout, Tally()))

    def kernel(self, layout: Layout, tally: Tally) -> Kernel:
        """The kernel: torch's fused one at the size of training, otherwise the formulas."""
        return (Fused if self.fused else WrittenOut)(layout, tally)


def unsharded(whole: Tensors, shape: Shape) -> tuple[torch.Tensor, ...]:
    """Output and gradients of torch's own attention over the whole sequence, on this rank alone.

    Head by head: in a large world all scores at once would not fit, and groups need no special case.
    """
    kept = wide(whole.q.dtype)
    found = [torch.empty_like(whole.q), torch.empty_like(whole.q)]
    shared = [torch.zeros_like(whole.k, dtype=kept), torch.zeros_like(whole.v, dtype=kept)]
    for head in range(shape.heads):
        kv = head * shape.kv_heads // shape.heads
        ours, theirs = slice(head, head + 1), slice(kv, kv + 1)
        one = Tensors(whole.q[:, ours], whole.k[:, theirs], whole.v[:, theirs], whole.gradient[:, ours])
        leaves = one.leaves()
        out = F.scaled_dot_product_attention(*leaves, is_causal=shape.causal)
        results = (out.detach(), *torch.autograd.grad(out, leaves, one.gradient))
        for place, result in zip(found, results[:2], strict=True):
            place[:, ours] = result
        for total, result in zip(shared, results[2:], strict=True):
            total[:, theirs] += result
    return *found, *(total.to(whole.k.dtype) for total in shared)


class AllGatherKV(ContextParallel):
    """Every rank gathers all keys and values, and attends with its own queries."""

    name = "all_gather_kv"

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tally: Tally) -> torch.Tensor:
        """Gather K and V, then attend."""
        whole, own = torch.arange(self.shape.length), self.places[self.ctx.rank]
        # Before the queries, at their positions, after them: few calls of the kernel in any world.
        cuts = whole.tensor_split([int(own[0]), int(own[-1]) + 1]) if self.fused else [whole]
        blocks = [block for block in cuts if block.numel()]
        queries = self.span(own)
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
