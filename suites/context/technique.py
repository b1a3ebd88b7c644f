"""A technique of context parallelism on this rank, compared with torch's attention on the whole sequence."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.at_size import drawn
from fixtures.ranks.study.driver import EXACT, TRAINED, Entries, Form, Left, Named, Run, Seen, Technique
from fixtures.ranks.study.pattern import Move
from fixtures.wire.held import PEAK, Weighed
from suites.context import layout as context_layout
from suites.context.fused import Fused, refuse_without_kernel
from suites.context.issued import BACKWARD, FORMS, FORWARD, Both, Part, Shape
from suites.context.layout import Layout, Span
from suites.context.ring_attention import Kernel, Tally, WrittenOut, block_attention, wide
from suites.tensor.regions import Group

NAMES = ("forward", "grad:q", "grad:k", "grad:v")
ALONE = "forward of one head on this rank alone"


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
    studied: Sequence[torch.dtype] = (EXACT, TRAINED)
    local = (ALONE,)
    once: Collection[str] = (*NAMES, ALONE)

    def __init__(self, ctx: Context, shape: Shape, dtype: torch.dtype = EXACT) -> None:
        if ctx.size < 2:
            raise ValueError("context parallelism needs at least 2 ranks; this world has 1")
        self.ctx, self.shape, self.dtypes = ctx, shape, (dtype,)
        self.group, self.fused = Group(ctx.rank, ctx.size), ctx.at_size
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

    def peak(self, dtype: torch.dtype) -> int | str:
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
