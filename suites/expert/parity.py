"""One forward and backward of an expert-parallel layer and of the unsharded one, on the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.at_size import drawn as large
from fixtures.ranks.study.at_size import made
from fixtures.ranks.study.driver import EXACT, Entries, Form, Left, Named, Run, Seen, Technique
from fixtures.ranks.study.fitting import fit
from fixtures.ranks.study.models import gradient_of, seeded
from suites.expert import held, issued
from suites.expert.layer import Sharded, Unsharded, UnshardedFp8
from suites.expert.routing import LEARNED, Shape, column, counts, matrix, preference, top_k, uniform
from suites.expert.tokens import rows_of

_TOKENS, _TARGETS, _WEIGHTS = 710, 711, 712
WEIGHTS = "weights of experts"
DECIDES = 1e3  # more than any logit
PIECES = 8  # in which the unsharded model takes all tokens at the size of training, at most


@dataclass(frozen=True)
class Layer:
    """The same problem on every rank: all ranks' tokens, the gradients of their outputs, preferences.

    `learned`: the logits decide. They are fp64 products of numbers that every dtype holds, and so the same.
    """

    shape: Shape
    tokens: list[Tensor]
    targets: list[Tensor]
    wanted: list[Tensor]
    learned: bool = False

    def other(self) -> Layer:
        """The same with tokens and gradients from back to front."""
        tokens, targets = ([one.flip(-1) for one in lists] for lists in (self.tokens, self.targets))
        return replace(self, tokens=tokens, targets=targets)


def layer(ctx: Context, routing: str, shape: Shape) -> Layer:
    """Draw the problem; bf16 can represent it all, so that every dtype starts from the same numbers."""
    ranks, learned = range(ctx.size), routing == LEARNED
    rows = [issued.tokens_on(routing, rank, shape.tokens) for rank in ranks]
    preferred = (preference(routing, ctx.seed, rank, shape) for rank in ranks)
    return Layer(
        shape,
        [drawn(ctx, _TOKENS, rank, (count, shape.hidden)) for rank, count in enumerate(rows)],
        [drawn(ctx, _TARGETS, rank, (count, shape.hidden)) for rank, count in enumerate(rows)],
        [(one if learned else decided(one)).to(ctx.device) for one in preferred],
        learned,
    )


def fit_layer(ctx: Context, shape: Shape) -> None:
    """Refuse a layer that does not fit.

    A weight takes 16 bytes: 4 each for itself, its gradient and the compared copy in the unsharded run in
    fp32, and 4 for what it is compared with. A row takes 4 numbers of the hidden width and 6 of the experts'
    width, in fp32, in a piece. Both unsharded runs take 6 operations per row and weight of its expert.
    """
    weights, rows = 3 * shape.hidden * shape.inner, shape.tokens * shape.top_k
    piece = 4 * rows * ranks_of_piece(ctx) * (4 * shape.hidden + 6 * shape.inner)
    held = piece + 24 * shape.tokens * ctx.size * shape.hidden
    fit(ctx, 16 * weights * shape.experts + held, 12 * rows * ctx.size * weights)


def ranks_of_piece(ctx: Context) -> int:
    """How many ranks' tokens the unsharded model takes at once at the size of training.

    Each piece visits every expert, so that one per rank would cost the square of the world.
    """
    return -(-ctx.size // PIECES)


def decided(preferred: Tensor) -> Tensor:
    """The same order of preference, in steps so large that no logit comes between two of them."""
    return DECIDES * torch.argsort(torch.argsort(preferred, dim=-1), dim=-1).double()


@dataclass
class Experts(Technique[Sharded]):
    """An expert-parallel layer, forward and backward; the part of the model on this rank is kept."""

    ctx: Context
    made: Layer
    once = (WEIGHTS,)
    alone: ClassVar[type[Unsharded]] = Unsharded

    def __post_init__(self) -> None:
        self.deal()

    def deal(self) -> None:
        """Write down which rows go where."""
        self.routed = self.tables()
        self.count(self.routed)

    def tables(self) -> list[Tensor]:
        """The experts of every rank's tokens, best first."""
        made, scores = self.made, self.made.wanted
        if made.learned:
            router = self.whole(EXACT).router.weight.detach().cpu()
            both = zip(made.tokens, made.wanted, strict=True)
            scores = [tokens.cpu() @ router.T + wanted.cpu() for tokens, wanted in both]
        return [top_k(one, made.shape.top_k) for one in scores]

    def count(self, rows: list[Tensor]) -> None:
        """Count the rows between ranks, and those of the busiest expert."""
        experts = self.made.shape.experts
        self.sent = matrix(rows, experts)
        self.busiest = int(counts(torch.cat([one.flatten() for one in rows]), experts).max())

    def other(self) -> Experts:
        """The same with other tokens, and with the same weights."""
        other = copy(self)
        other.made = self.made.other()
        other.deal()
        return other

    def chosen(self) -> Tensor:
        """Where this rank's tokens must be sent."""
        return self.routed[self.ctx.rank]

    def whole(self, dtype: torch.dtype) -> Unsharded:
        """The unsharded model: experts in `dtype`, the router at least in fp32."""
        seed, wanted = key(self.ctx.seed, _WEIGHTS), torch.cat(self.made.wanted)
        if self.ctx.at_size:
            model = made(lambda: self.alone(self.made.shape, wanted), seed, self.ctx.device, dtype)
        else:
            with seeded(seed >> 1):
                model = self.alone(self.made.shape, wanted)
            model = model.to(torch.bfloat16).to(self.ctx.device, dtype)
        model.router.to(torch.promote_types(dtype, torch.float32))
        return model

    def sharded(self, dtype: torch.dtype) -> Sharded:
        """This rank's part of it."""
        rank = self.ctx.rank
        return Sharded(self.whole(dtype), self.made.wanted[rank], rank, self.ctx.size)

    def backward(self, out: Tensor, target: Tensor, model: Sharded | Unsharded) -> None:
        """Go backward from the outputs."""
        torch.autograd.backward(out, target)

    def results(self, out: Tensor, x: Tensor, model: Sharded | Unsharded) -> Named:
        """What is compared: the output, the weights of the experts, and every gradient."""
        router, experts = model.router, model.experts
        return {
            "forward": out.detach(),
            WEIGHTS: model.weights,
            "grad:x": gradient_of(x),
            "grad:router": torch.cat([gradient_of(one).flatten() for one in router.parameters()]),
            "grad:experts": torch.cat([gradient_of(one).flatten() for one in experts.parameters()]),
        }

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[Sharded]:
        """Run this rank's tokens through all ranks' experts."""
        rank, model = self.ctx.rank, self.sharded(dtype)
        x = self.made.tokens[rank].to(dtype).detach().requires_grad_()
        with seen():
            out = model(x)
            self.backward(out, self.made.targets[rank].to(dtype), model)
            model.synchronise()
        return Left(self.results(out, x, model), model)

    def reference(self, dtype: torch.dtype) -> Named:
        """Run all tokens through all experts; at the size of training piece by piece."""
        model, outputs, weights = self.whole(dtype), list[Tensor](), list[Tensor]()
        x = torch.cat(self.made.tokens).to(dtype).detach().requires_grad_()
        ranks, rows = self.ctx.size, [len(one) for one in self.made.tokens]
        each = ranks_of_piece(self.ctx) if self.ctx.at_size else ranks
        sizes = [sum(rows[first : first + each]) for first in range(0, ranks, each)]
        whole = x, torch.cat(self.made.targets).to(dtype), model.wanted
        for tokens, target, wanted in zip(*(torch.split(one, sizes) for one in whole), strict=True):
            model.wanted = wanted
            out = model(tokens)
            self.backward(out, target, model)
            outputs.append(out.detach())
            weights.append(model.weights)
        model.weights = torch.cat(weights)
        return self.results(torch.cat(outputs), x, model)

    def part(self, whole: Named, kept: Sharded) -> Named:
        """This rank's tokens and experts; the router is the same on all ranks."""
        rank, counts = self.ctx.rank, [len(rows) for rows in self.made.tokens]
        return {
            "forward": torch.split(whole["forward"], counts)[rank],
            WEIGHTS: torch.split(whole[WEIGHTS], counts)[rank],
            "grad:x": torch.split(whole["grad:x"], counts)[rank],
            "grad:router": whole["grad:router"],
            "grad:experts": whole["grad:experts"].chunk(self.ctx.size)[rank],
        }

    def summands(self, what: str) -> int:
        """All ranks add up the router's gradient."""
        return self.ctx.size if what == "grad:router" else 2

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """For the rows of this rank."""
        shape, rows = self.made.shape, rows_of(self.sent, self.ctx.rank)
        return [Form(issued.layer(shape.experts, shape.hidden, dtype.itemsize, rows))]

    def sizes(self, dtype: torch.dtype) -> held.Layer:
        """The sizes that the closed forms of memory depend on."""
        shape = self.made.shape
        return held.Layer(
            shape.experts, self.ctx.size, shape.hidden, shape.inner, shape.top_k, dtype.itemsize
        )

    def beside(self, dtype: torch.dtype, run: Run[Sharded]) -> Entries:
        """Compare the experts of this rank's tokens."""
        found = run.kept.chosen
        return [parity.local(parity.equal("experts that are chosen", found, self.chosen().to(found.device)))]

    def memory(self, dtype: torch.dtype, run: Run[Sharded]) -> Entries:
        """Bytes of the router, the experts, and their gradients."""
        found = {"params": memory.parameter_bytes(run.kept), "grads": memory.gradient_bytes(run.kept)}
        return memory.entries(found, self.sizes(dtype).states)

    def peak(self, dtype: torch.dtype) -> int | None:
        """For the rows of this rank."""
        rank = self.ctx.rank
        went, came = sum(self.sent[rank]), sum(column(self.sent, rank))
        return self.sizes(dtype).most(len(self.made.tokens[rank]), went, came, self.busiest)


class ExpertsFp8(Experts):
    """The same with a dispatch in fp8. Blocks of a row differ in magnitude, so each has its own scale."""

    alone = UnshardedFp8

    def __post_init__(self) -> None:
        made, hidden = self.made, torch.arange(self.made.shape.hidden, device=self.ctx.device)
        sizes = 2.0 ** -(hidden // issued.BLOCK % 4)
        lists = [[rows * sizes for rows in one] for one in (made.tokens, made.targets)]
        self.made = replace(made, tokens=lists[0], targets=lists[1])
        super().__post_init__()

    def sharded(self, dtype: torch.dtype) -> Sharded:
        """This rank's part of it."""
        model = super().sharded(dtype)
        model.fp8 = True
        return model

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """For the rows that it receives and returns, and those that it sends in fp8."""
        shape, rank = self.made.shape, self.ctx.rank
        rows = sum(column(self.sent, rank)), sum(self.sent[rank])
        return [Form(issued.layer(shape.experts, shape.hidden, dtype.itemsize, *rows))]

    def peak(self, dtype: torch.dtype) -> None:
        """Unknown: what rounds to fp8 is many of torch's operations here, and one kernel where one trains."""


def drawn(ctx: Context, kind: int, rank: int, shape: tuple[int, int]) -> Tensor:
    """Numbers that bf16 can represent: from [-1, 1] in fp64, at the size of training in bf16 itself."""
    if ctx.at_size:
        return large(key(ctx.seed, kind, rank), shape, ctx.device)
    return (uniform(ctx.seed, kind, rank, shape=shape) * 2 - 1).bfloat16().double().to(ctx.device)
