"""DeepEP, checked like torch's own dispatch and combine: conservation, parity, repetition; and timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fixtures.ranks.steps import Context
from fixtures.ranks.study import parity
from fixtures.ranks.study.driver import TRAINED, Entries, Form, Left, Named, Run, Seen, Technique
from suites.expert import issued
from suites.expert.deepep import Arrived, Engine, combined, dispatched
from suites.expert.layer import Sharded, route
from suites.expert.parity import Experts, Layer
from suites.expert.routing import Shape, counts, tables, uniform, visited
from suites.expert.speed import TURNS, Watched, paced
from suites.expert.tokens import stream

_ROWS, _WEIGHTS = 770, 771
_DIGIT_BITS = 14  # of a row's number in one finite bf16 pattern
_PATTERN = (1 << _DIGIT_BITS) - 1
_SMALL = 15  # sums of so small integers over 16 ranks are exact in bf16


@dataclass(frozen=True)
class Load:
    """All ranks' tokens, weights and experts, the same on every rank. A row begins with its number."""

    rows: list[Tensor]
    weights: list[Tensor]
    chosen: list[Tensor]
    experts: int

    def at(self, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        """What a rank must receive, by number: rows, their experts there (-1: elsewhere), and weights."""
        local = self.experts // len(self.rows)
        here = [torch.where(one // local == rank, one - rank * local, -1) for one in self.chosen]
        some = [(one >= 0).any(1) for one in here]
        weights = [torch.where(one >= 0, two, 0.0) for one, two in zip(here, self.weights, strict=True)]
        parts = [
            [one[keep] for one, keep in zip(kind, some, strict=True)] for kind in (self.rows, here, weights)
        ]
        return torch.cat(parts[0]), torch.cat(parts[1]), torch.cat(parts[2])

    def visited(self, rank: int) -> Tensor:
        """How many ranks each token of a rank goes to."""
        goes = visited(self.chosen[rank], self.experts, len(self.chosen))
        return goes.sum(1, keepdim=True).to(self.rows[rank])


def load(ctx: Context, routing: str, shape: Shape) -> Load:
    """Draw the load."""
    chosen = [one.to(ctx.device) for one in tables(routing, ctx.seed, ctx.size, shape)]
    weights = [uniform(ctx.seed, _WEIGHTS, r, shape=tuple(one.shape)) for r, one in enumerate(chosen)]
    rows = [_rows(ctx, r, len(one), shape) for r, one in enumerate(chosen)]
    return Load(rows, [one.float().to(ctx.device) for one in weights], chosen, shape.experts)


def _rows(ctx: Context, rank: int, count: int, shape: Shape) -> Tensor:
    """A finite pattern in every element, except the number of the row in the first two."""
    words = stream(ctx, rank, _ROWS, count * shape.hidden // 4).view(torch.int16) & _PATTERN
    rows = words.view(count, shape.hidden)
    number = torch.arange(count, device=ctx.device) + rank * shape.tokens
    rows[:, 0], rows[:, 1] = number >> _DIGIT_BITS, number & _PATTERN
    return rows.view(torch.bfloat16)


def _by_number(rows: Tensor) -> Tensor:
    """The order that sorts rows by their numbers: the order in which they arrive is not defined."""
    digits = rows[:, :2].contiguous().view(torch.int16).to(torch.int64)
    return (digits[:, 0] << _DIGIT_BITS | digits[:, 1]).argsort(stable=True)


@dataclass
class Carried(Technique[tuple[Arrived, Tensor]]):
    """Every token, its experts and its weights arrive; integers come back, added up once for each rank."""

    ctx: Context
    made: Engine
    given: Load
    dtypes = (TRAINED,)
    buffered = True

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[tuple[Arrived, Tensor]]:
        """Dispatch tokens; dispatch small integers the same way and combine them."""
        given, own = self.given, self.ctx.rank
        found = self.made.dispatch(given.rows[own], given.weights[own], given.chosen[own], given.experts)
        came = self.made.again(_small(given.rows[own]), found.handle)
        home, _ = self.made.combine(came, found.handle)
        brought = _numbered("tokens", [found.rows, found.experts, _weights(found), came, home])
        return Left({}, (found, home), brought)

    def beside(self, dtype: torch.dtype, run: Run[tuple[Arrived, Tensor]]) -> Entries:
        """Compare bit for bit."""
        found, home = run.kept
        right = small_sums(self.given, self.ctx.rank)
        return [*arrival(self.given, found, self.ctx.rank), parity.equal("tokens at home", home, right)]

    def other(self) -> Carried:
        """The same with rows from back to front, but for their numbers."""
        rows = [torch.cat([one[:, :2], one[:, 2:].flip(-1)], dim=1) for one in self.given.rows]
        return replace(self, given=replace(self.given, rows=rows))

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """None: torch cannot count what the engine's kernels send."""
        return []


def arrival(given: Load, found: Arrived, rank: int) -> Entries:
    """Compare what a dispatch brought with what it must."""
    order = _by_number(found.rows)
    rows, experts, weights = given.at(rank)
    local = given.experts // len(given.rows)
    right = counts(torch.cat(given.chosen), given.experts)[rank * local : (rank + 1) * local]
    return [
        parity.equal("tokens at experts", found.rows[order], rows),
        parity.equal("experts of the tokens", found.experts[order], experts),
        parity.equal("weights of the tokens", _weights(found)[order], weights),
        parity.equal("tokens of each expert", torch.tensor(found.per_expert), right.cpu()),
    ]


def small_sums(given: Load, rank: int) -> Tensor:
    """What a rank's small integers must come back as."""
    return _small(given.rows[rank]) * given.visited(rank)


def _weights(found: Arrived) -> Tensor:
    """The weights that arrived; 0 for experts of other ranks."""
    return torch.where(found.experts >= 0, found.weights, 0.0)


def _small(rows: Tensor) -> Tensor:
    return (rows.view(torch.int16) & _SMALL).to(torch.bfloat16)


class Carrying(Experts):
    """The layer by means of the engine, which carries only bf16."""

    dtypes = (TRAINED,)
    buffered = True

    def __init__(self, ctx: Context, made: Layer, by: Engine) -> None:
        super().__init__(ctx, made)
        self.by = by

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[Sharded]:
        """One forward and backward, and everything that the engine brought."""
        made, rank = self.made, self.ctx.rank
        model = self.sharded(dtype)
        x = made.tokens[rank].to(dtype).detach().requires_grad_()
        logits = x.double() @ model.router.weight.double().T
        weights, chosen = route(logits, model.wanted, model.top_k, torch.float32)
        model.weights, model.chosen = weights.detach(), chosen
        kept: list[Any] = []
        rows, shares, found = dispatched(x, weights, chosen, made.shape.experts, self.by, kept)
        done = torch.zeros_like(rows)
        for number, expert in enumerate(model.experts):
            row, slot = torch.where(found.experts == number)
            done = done.index_add(0, row, expert(rows[row]) * shares[row, slot, None].to(rows.dtype))
        out = combined(done, found.handle, self.by, kept)
        torch.autograd.backward(out, made.targets[rank].to(dtype))
        with seen():
            model.synchronise()
        brought = _numbered("layer", [found.rows.detach(), _weights(found).detach(), *kept[1:]])
        return Left(self.results(out, x, model), model, brought)

    def peak(self, dtype: torch.dtype) -> None:
        """Unknown: the engine's buffers are its own."""

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """The router's gradient."""
        return [Form(issued.engine(self.made.shape.experts, self.made.shape.hidden, dtype.itemsize))]


def _numbered(what: str, brought: list[Tensor]) -> Named:
    return {f"{what}: delivery {number}": tensor for number, tensor in enumerate(brought, 1)}


def paces(ctx: Context, made: Engine, given: Load, iterations: int, budget_s: float) -> dict[str, Any]:
    """Time dispatch by a known layout, and combine; an iteration took as long as its slowest rank.

    What goes in turns a column further with each iteration, and so must what comes out.
    """
    own = given.rows[ctx.rank]
    found = made.dispatch(own, given.weights[ctx.rank], given.chosen[ctx.rank], given.experts)
    right, small = found.rows.clone(), made.again(_small(own), found.handle)
    sums = small_sums(given, ctx.rank)
    there = [(partial(made.again, own.roll(n, 1), found.handle), right.roll(n, 1)) for n in range(TURNS)]
    back = [(partial(_home, made, small.roll(n, 1), found.handle), sums.roll(n, 1)) for n in range(TURNS)]
    ways = {
        "dispatch": (Watched(*there), right.nbytes),
        "combine": (Watched(*back), right.nbytes),
    }
    timed = paced(ctx, ways, iterations, budget_s)
    return {**timed, "parity": [*arrival(given, found, ctx.rank), *timed["parity"]]}


def _home(made: Engine, rows: Tensor, handle: Any) -> Tensor:  # noqa: ANN401 - the engine's own
    """Combine, without weights."""
    return made.combine(rows, handle)[0]
