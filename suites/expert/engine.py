"""DeepEP held to what torch's own dispatch and combine are: conservation, parity, repetition, and timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fixtures.ranks.steps import Context
from fixtures.ranks.study import parity
from suites.expert.deepep import Arrived, Engine, combined, dispatched
from suites.expert.layer import Sharded, route
from suites.expert.parity import (
    Layer,
    Results,
    compared_bf16,
    gradient,
    results,
    run_unsharded,
    whole,
)
from suites.expert.payload import stream
from suites.expert.routing import Shape, counts, tables, uniform
from suites.expert.speed import Repeated, figures, rank_tables, timed

_ROWS, _WEIGHTS = 770, 771
_DIGIT_BITS = 14  # of a row's number in one finite bf16 pattern
_PATTERN = (1 << _DIGIT_BITS) - 1
_SMALL = 15  # sums of so small integers over 16 ranks are exact in bf16
Entries = list[dict[str, Any]]


@dataclass(frozen=True)
class Load:
    """Everybody's tokens, weights and experts, the same on every rank. A row begins with its number."""

    rows: list[Tensor]
    weights: list[Tensor]
    chosen: list[Tensor]
    experts: int

    def at(self, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        """What a rank must be sent, by number: rows, its experts there (-1: elsewhere), and their weights."""
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
        goes = rank_tables([one.cpu() for one in self.chosen], self.experts)[rank]
        return goes.sum(1, keepdim=True).to(self.rows[rank])


def load(ctx: Context, routing: str, shape: Shape) -> Load:
    """Draw it."""
    chosen = [one.to(ctx.device) for one in tables(routing, ctx.seed, ctx.size, shape)]
    weights = [uniform(ctx.seed, _WEIGHTS, r, shape=tuple(one.shape)) for r, one in enumerate(chosen)]
    rows = [_rows(ctx, r, len(one), shape) for r, one in enumerate(chosen)]
    return Load(rows, [one.float().to(ctx.device) for one in weights], chosen, shape.experts)


def _rows(ctx: Context, rank: int, count: int, shape: Shape) -> Tensor:
    """A finite pattern in every element, but the number of the row in the first two."""
    words = stream(ctx, rank, _ROWS, 0, count * shape.hidden // 4).view(torch.int16) & _PATTERN
    rows = words.view(count, shape.hidden)
    number = torch.arange(count, device=ctx.device) + rank * shape.tokens
    rows[:, 0], rows[:, 1] = number >> _DIGIT_BITS, number & _PATTERN
    return rows.view(torch.bfloat16)


def _by_number(rows: Tensor) -> Tensor:
    """The order in which rows stand by their numbers: nobody promises the order in which they come."""
    digits = rows[:, :2].contiguous().view(torch.int16).to(torch.int64)
    return (digits[:, 0] << _DIGIT_BITS | digits[:, 1]).argsort(stable=True)


def tokens_trial(ctx: Context, made: Engine, given: Load) -> tuple[Entries, Entries]:
    """Compare with what must arrive and come home, and with a second time."""
    entries, delivered = _conservation(ctx, made, given)
    _, again = _conservation(ctx, made, given)
    return entries, _repeated("tokens", again, delivered)


def _conservation(ctx: Context, made: Engine, given: Load) -> tuple[Entries, list[Tensor]]:
    """Every token, its experts and its weights arrive; integers come home added up once for each rank.

    Also what was delivered, for a second time to be compared with.
    """
    own = ctx.rank
    found = made.dispatch(given.rows[own], given.weights[own], given.chosen[own], given.experts)
    came = made.again(_small(given.rows[own]), found.handle)
    home, _ = made.combine(came, found.handle)
    entries = [*arrival(given, found, own), _home(given, home, own)]
    return entries, [found.rows, found.experts, _weights(found), came, home]


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


def _home(given: Load, home: Tensor, rank: int) -> dict[str, Any]:
    return parity.equal("tokens at home", home, _small(given.rows[rank]) * given.visited(rank))


def _weights(found: Arrived) -> Tensor:
    """Weights of experts that live elsewhere are nobody's."""
    return torch.where(found.experts >= 0, found.weights, 0.0)


def _small(rows: Tensor) -> Tensor:
    return (rows.view(torch.int16) & _SMALL).to(torch.bfloat16)


def run_layer(ctx: Context, made: Layer, by: Engine) -> tuple[Results, list[Tensor]]:
    """One forward and backward in bf16 through the engine, and everything that it brought."""
    model = Sharded(whole(ctx, made, torch.bfloat16), made.wanted[ctx.rank], ctx.rank, ctx.size)
    x = made.tokens[ctx.rank].to(torch.bfloat16).detach().requires_grad_()
    logits = x.double() @ model.router.weight.double().T
    weights, chosen = route(logits, model.wanted, model.top_k, torch.float32)
    kept: list[Any] = []
    rows, shares, found = dispatched(x, weights, chosen, made.shape.experts, by, kept)
    done = torch.zeros_like(rows)
    for number, expert in enumerate(model.experts):
        row, slot = torch.where(found.experts == number)
        done = done.index_add(0, row, expert(rows[row]) * shares[row, slot, None].to(rows.dtype))
    out = combined(done, found.handle, by, kept)
    torch.autograd.backward(out, made.targets[ctx.rank].to(torch.bfloat16))
    model.synchronise()
    moved = [found.rows.detach(), _weights(found).detach(), *kept[1:]]
    return results(out, gradient(x), model.router, model.experts), moved


def layer_trial(ctx: Context, made: Layer, by: Engine) -> tuple[Entries, Entries]:
    """Compare with the unsharded layer, and with a second run."""
    right = run_unsharded(ctx, made, torch.float64)
    found, moved = run_layer(ctx, made, by)
    again, moved_again = run_layer(ctx, made, by)
    unsharded = run_unsharded(ctx, made, torch.bfloat16)
    same = [parity.equal(name, again[name], found[name]) for name in found]
    return compared_bf16(found, unsharded, right, ctx.size), [*same, *_repeated("layer", moved_again, moved)]


def _repeated(name: str, again: list[Tensor], found: list[Tensor]) -> Entries:
    """Compare what two runs were brought, bit for bit."""
    pairs = zip(again, found, strict=True)
    return [parity.equal(f"{name}: delivery {number}", *pair) for number, pair in enumerate(pairs, 1)]


class Pace:
    """Dispatch by a known layout, and combine, as something to time."""

    def __init__(self, ctx: Context, made: Engine, given: Load) -> None:
        self.ctx, self.made, self.given = ctx, made, given
        own = given.rows[ctx.rank]
        found = made.dispatch(own, given.weights[ctx.rank], given.chosen[ctx.rank], given.experts)
        self.entries = arrival(given, found, ctx.rank)
        self.handle, self.rows, self.right = found.handle, own, found.rows.clone()
        self.small = made.again(_small(own), found.handle)
        self.right_home = _small(own) * given.visited(ctx.rank)
        self.came, self.home = found.rows, made.combine(self.small, self.handle)[0]
        self.wrong = torch.zeros(2, dtype=torch.int64, device=ctx.device)  # dispatches, combines

    def dispatch(self) -> None:
        """Send all tokens again."""
        self.came = self.made.again(self.rows, self.handle)

    def combine(self) -> None:
        """Add up what every rank sends back."""
        self.home = self.made.combine(self.small, self.handle)[0]

    def look(self) -> None:
        """Note whether the last dispatch and combine left what they must."""
        pairs = ((self.came, self.right), (self.home, self.right_home))
        self.wrong += torch.stack([(parity.bits(one) != parity.bits(right)).any() for one, right in pairs])

    def forget_arrived(self) -> None:
        """Memory that is freed and taken again could still hold what was right."""
        self.came.zero_()

    def forget_home(self) -> None:
        """The same on the way back."""
        self.home.zero_()

    def measure(self, iterations: int, budget_s: float) -> dict[str, Any]:
        """Time both; an iteration took as long as its slowest rank."""
        there = Repeated(self.dispatch, self.look, self.forget_arrived)
        back = Repeated(self.combine, self.look, self.forget_home)
        dispatches = timed(self.ctx, there, iterations, budget_s / 2, "dispatch")
        combines = timed(self.ctx, back, iterations, budget_s / 2, "combine")
        received_bytes = self.right.numel() * self.right.element_size()
        wrong = "dispatches and combines that went wrong"
        return {
            "samples": min(len(dispatches), len(combines)),
            "parity": [*self.entries, parity.equal(wrong, self.wrong, torch.zeros_like(self.wrong))],
            "figures": {
                **figures("dispatch", dispatches, received_bytes),
                **figures("combine", combines, received_bytes),
            },
        }
