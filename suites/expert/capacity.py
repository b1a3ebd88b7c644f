"""Experts of a limited capacity, and the loss that keeps their loads alike.

Of the rows that a rank's T tokens have for an expert, it takes the first C = ceil(c k T / E): first choices
before second ones, each in the order of the tokens. The others are dropped: nothing is sent and nothing is
added for them (Lepikhin et al., "GShard", arXiv:2006.16668, algorithm 1, a rank being a group; Fedus et al.,
"Switch Transformers", arXiv:2101.03961, section 2.2).

With n_e rows chosen for expert e, and p_te the router's share of it for token t of all ranks' N tokens,

    L = E sum_e f_e P_e,   f_e = n_e / (k N),   P_e = (sum_t p_te) / N

which is 1 where all experts get the same (Switch, equation 4; over all ranks: Qiu et al., arXiv:2501.11873).
A rank adds WEIGHT times its own tokens' part of L to its loss. The parts of all ranks sum to L, and their
gradients to that of the router. n_e does not depend on the weights, and is all-reduced before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from fixtures.ranks.study import parity
from fixtures.ranks.study.driver import Entries, Form, Named, Run
from suites.expert.issued import capped
from suites.expert.layer import Sharded, Unsharded, route
from suites.expert.parity import Experts
from suites.expert.routing import counts
from suites.expert.tokens import rows_of

WEIGHT = 0.01  # of the loss, as in Switch


class Capped(Sharded):
    """This rank's part of such a layer. A dropped row goes to expert E, which does not exist."""

    def __init__(self, whole: Unsharded, wanted: Tensor, rank: int, ranks: int, capacity: int) -> None:
        super().__init__(whole, wanted, rank, ranks)
        self.capacity = capacity

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts, drop rows, and compute this rank's part of the loss."""
        logits, experts = x.double() @ self.router.weight.double().T, self.wanted.shape[1]
        weights, chosen = route(logits, self.wanted, self.top_k, x.dtype)
        loads = torch.cat([counts(chosen, experts), chosen.new_tensor([len(x)])])
        dist.all_reduce(loads)
        shares = logits.softmax(dim=1).sum(dim=0)
        self.balance = experts * (loads[:-1] * shares).sum() / (self.top_k * loads[-1] ** 2)
        self.kept = taken(chosen, experts, self.capacity)
        self.dropped = counts(chosen[~self.kept], experts)
        dist.all_reduce(self.dropped)
        return weights, chosen.masked_fill(~self.kept, experts)

    def synchronise(self) -> None:
        """Add up the loss of all ranks too."""
        super().synchronise()
        self.balance = self.balance.detach()
        dist.all_reduce(self.balance)


def taken(chosen: Tensor, experts: int, capacity: int) -> Tensor:
    """Which rows of a routing table are within the capacity."""
    rows = functional.one_hot(chosen.T.flatten(), experts)
    places = (rows.cumsum(0) * rows).sum(1)  # of a row among those of its expert, from 1
    return (places <= capacity).view(chosen.shape[1], -1).T


def by_rule(chosen: Tensor, capacity: int) -> Tensor:
    """The same, row by row and without tensors."""
    table, loads = chosen.tolist(), Counter[int]()
    kept = [[False] * chosen.shape[1] for _ in table]
    for slot in range(chosen.shape[1]):
        for token, wanted in enumerate(table):
            kept[token][slot] = loads[wanted[slot]] < capacity
            loads[wanted[slot]] += 1
    return torch.tensor(kept, dtype=torch.bool).view(chosen.shape)


class UnshardedCapped(Unsharded):
    """The whole layer, with rows dropped by the rule, and the loss by its definition."""

    kept: Tensor

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts; E, for dropped rows, does nothing."""
        weights, chosen = super().route(x)
        experts = len(self.experts)
        often = torch.bincount(chosen.flatten(), minlength=experts).double() / chosen.numel()
        shares = (x.double() @ self.router.weight.double().T).softmax(dim=1).mean(dim=0)
        self.balance = experts * (often * shares).sum()
        return weights, torch.where(self.kept, chosen, experts)


@dataclass
class CappedExperts(Experts):
    """The layer, forward and backward, with the load-balance loss besides its outputs."""

    capacity: int
    alone = UnshardedCapped

    def deal(self) -> None:
        """Write down which rows are dropped, and where the others go."""
        self.routed = [chosen.cpu() for chosen in self.tables()]
        self.kept = [by_rule(chosen, self.capacity) for chosen in self.routed]
        self.count([chosen[kept] for chosen, kept in zip(self.routed, self.kept, strict=True)])

    def chosen(self) -> Tensor:
        """Where this rank's tokens must be sent; E, for rows that are dropped."""
        rank = self.ctx.rank
        return self.routed[rank].masked_fill(~self.kept[rank], self.made.shape.experts)

    @property
    def dropped(self) -> Tensor:
        """Rows of all ranks that each expert does not take, by the rule."""
        rows = [chosen[~kept] for chosen, kept in zip(self.routed, self.kept, strict=True)]
        return counts(torch.cat(rows), self.made.shape.experts)

    def whole(self, dtype: torch.dtype) -> Unsharded:
        """The unsharded model, with the rows that it keeps."""
        model: Any = super().whole(dtype)
        model.kept = torch.cat(self.kept).to(self.ctx.device)
        return model  # type: ignore[no-any-return]

    def sharded(self, dtype: torch.dtype) -> Sharded:
        """This rank's part of it."""
        rank = self.ctx.rank
        return Capped(self.whole(dtype), self.made.wanted[rank], rank, self.ctx.size, self.capacity)

    def backward(self, out: Tensor, target: Tensor, model: Any) -> None:  # noqa: ANN401 - one that has the loss
        """Go backward from the outputs and from this rank's part of the loss."""
        torch.autograd.backward([out, WEIGHT * model.balance], [target, None])

    def results(self, out: Tensor, x: Tensor, model: Any) -> Named:  # noqa: ANN401
        """Add the loss of all ranks."""
        return {**super().results(out, x, model), "balance": model.balance.detach()}

    def part(self, whole: Named, kept: Sharded) -> Named:
        """The loss is the same on all ranks."""
        return {**super().part(whole, kept), "balance": whole["balance"]}

    def beside(self, dtype: torch.dtype, run: Run[Sharded]) -> Entries:
        """Which of its rows a rank dropped, and how many all ranks dropped for each expert and in sum."""
        model: Any = run.kept
        right = self.kept[self.ctx.rank].to(model.kept.device), self.dropped.to(model.dropped.device)
        return [
            *super().beside(dtype, run),
            parity.local(parity.equal("rows that are kept", model.kept, right[0])),
            parity.equal("rows dropped for each expert", model.dropped, right[1]),
            parity.equal("rows dropped in sum", model.dropped.sum(), right[1].sum()),
        ]

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """For the rows that are kept."""
        shape, rows = self.made.shape, rows_of(self.sent, self.ctx.rank)
        return [Form(capped(shape.experts, shape.hidden, dtype.itemsize, rows))]

    def peak(self, dtype: torch.dtype) -> int:
        """As without a capacity, and the dropped rows."""
        rank, moving = self.ctx.rank, super().peak(dtype)
        assert isinstance(moving, int)
        dropped = self.routed[rank].numel() - sum(self.sent[rank])
        return self.sizes(dtype).capped_most(len(self.routed[rank]), dropped, moving)
