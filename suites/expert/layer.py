"""An expert-parallel layer: router, dropless dispatch by an uneven all-to-all, experts, combine.

Rows (a token for one of its k experts) are sorted by expert, so that what goes to a rank is contiguous;
counts are sent first. Rows are only permuted until the k results of a token are adjacent, so nothing is
added up in an order that could change, and a second run has the same bits on any device.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fixtures.ranks.study.models import Mlp
from suites.expert.fp8 import by_rule, packed, unpacked
from suites.expert.routing import Shape, counts, top_k
from suites.tensor.regions import met

Group = Any  # a process group; None is the default one


@dataclass(frozen=True)
class Layout:
    """The order of the rows of one dispatch.

    `order[i]` is the (token, slot) of sent row i; `grouped[j]` the received row that is row j by expert.
    """

    order: Tensor
    sent: list[int]
    received: list[int]
    grouped: Tensor
    per_expert: list[int]


def lay_out(chosen: Tensor, experts: int, ranks: int, group: Group = None) -> Layout:
    """Sort the rows of a routing table by expert, and tell every rank how many each of its experts gets."""
    own = counts(chosen, experts)
    others = torch.empty_like(own)
    dist.all_to_all_single(others, own, group=group)
    arriving = others.view(ranks, -1)
    local = arriving.shape[1]
    expert = torch.arange(local, device=chosen.device).repeat(ranks).repeat_interleave(arriving.flatten())
    return Layout(
        order=chosen.flatten().argsort(stable=True),
        sent=own.view(ranks, -1).sum(1).tolist(),
        received=arriving.sum(1).tolist(),
        grouped=expert.argsort(stable=True),
        per_expert=arriving.sum(0).tolist(),
    )


def exchange(
    rows: Tensor, sent: list[int], received: list[int], group: Group = None, fp8: bool = False
) -> Tensor:
    """One uneven all-to-all of rows."""
    if fp8:
        return unpacked(exchange(packed(rows), sent, received, group), rows.dtype)
    output = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(output, rows.contiguous(), received, sent, group=group)
    return output


def exchanged(  # noqa: PLR0917 - an exchange, and which of its two ways are in fp8
    rows: Tensor,
    sent: list[int],
    received: list[int],
    group: Group = None,
    fp8: bool = False,
    fp8_back: bool = False,
) -> Tensor:
    """`exchange` with a gradient, which goes back the same way."""
    return met(
        rows,
        lambda given: exchange(given, sent, received, group, fp8),
        lambda grad: exchange(grad, received, sent, group, fp8_back),
    )


def inverse(order: Tensor) -> Tensor:
    """The permutation that undoes another."""
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    return back


def copies(tokens: Tensor, order: Tensor, slots: int) -> Tensor:
    """Every token once per expert, in the order in which rows are sent."""
    wide = tokens.unsqueeze(1).expand(-1, slots, *tokens.shape[1:])
    return wide.reshape(-1, *tokens.shape[1:])[order]


def returned(rows: Tensor, order: Tensor, slots: int) -> Tensor:
    """Rows that came back, the k of a token side by side; zeros for those that were not sent."""
    if missing := len(order) - len(rows):
        rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    return rows[inverse(order)].view(-1, slots, *rows.shape[1:])


def worked(experts: nn.ModuleList, rows: Tensor, grouped: Tensor, per_expert: list[int]) -> Tensor:
    """Run every expert on all its rows at once, which `grouped` sorts; results are in the rows' order."""
    parts = zip(experts, torch.split(rows[grouped], per_expert), strict=True)
    return torch.cat([expert(part) for expert, part in parts])[inverse(grouped)]


def route(logits: Tensor, wanted: Tensor, slots: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weights (softmax over all experts, normalised over the chosen ones) and experts of every token.

    `wanted` affects the choice and not the weights, like the bias of auxiliary-loss-free balancing
    (arXiv:2408.15664).
    """
    chosen = top_k(logits.detach() + wanted, slots)
    shares = logits.softmax(dim=1).gather(1, chosen)
    return (shares / shares.sum(dim=1, keepdim=True)).to(dtype), chosen


class Unsharded(nn.Module):
    """The whole layer on one rank: no row is sorted, sent or permuted.

    Logits are fp64 in every dtype, so that rounding changes no choice.
    """

    def __init__(self, shape: Shape, wanted: Tensor) -> None:
        super().__init__()
        self.top_k, self.wanted = shape.top_k, wanted
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = nn.ModuleList(Mlp(shape.hidden, shape.inner) for _ in range(shape.experts))

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose with a preference: weights and expert numbers, (tokens, top_k) each, for x (tokens, d)."""
        logits = x.double() @ self.router.weight.double().T
        weights, chosen = route(logits, self.wanted, self.top_k, x.dtype)
        self.weights = weights.detach()
        return weights, chosen

    def forward(self, x: Tensor) -> Tensor:
        """Send every token to its experts and add up their outputs."""
        flat = x.flatten(0, -2)
        weights, chosen = self.route(flat)
        out = torch.zeros_like(flat)
        # Of thousands few are chosen; with gradients the others take part too, as theirs are zero.
        every = torch.arange(len(self.experts), device=x.device)
        for number in (every if torch.is_grad_enabled() else torch.unique(chosen)).tolist():
            token, slot = torch.nonzero(chosen == number, as_tuple=True)
            out = out.index_add(0, token, self.work(number, flat[token]) * weights[token, slot, None])
        return out.view_as(x)

    def work(self, number: int, rows: Tensor) -> Tensor:
        """The output of an expert for its rows."""
        found: Tensor = self.experts[number](rows)
        return found


class UnshardedFp8(Unsharded):
    """Experts' inputs, and the gradients of their outputs, are rounded as by a dispatch in fp8."""

    def work(self, number: int, rows: Tensor) -> Tensor:
        """Round an expert's inputs, and the gradients of its outputs."""
        given = met(rows, by_rule, lambda grad: grad)
        return met(super().work(number, given), lambda done: done.view_as(done), by_rule)


class Sharded(nn.Module):
    """This rank's part of a layer: the router, and the experts of this rank. `rank` counts in `group`.

    With `fp8`, rows go to experts in fp8, as do gradients of their results; combined rows are unchanged.
    """

    fp8 = False

    def __init__(self, whole: Unsharded, wanted: Tensor, rank: int, ranks: int, group: Group = None) -> None:
        super().__init__()
        local = len(whole.experts) // ranks
        self.router = copy.deepcopy(whole.router)
        self.experts = copy.deepcopy(whole.experts[rank * local : (rank + 1) * local])
        self.wanted, self.top_k, self.ranks, self.group = wanted, whole.top_k, ranks, group

    def forward(self, x: Tensor) -> Tensor:
        """Dispatch, let the experts work, combine."""
        weights, chosen = self.choose(x)
        self.weights, self.chosen = weights.detach(), chosen
        layout = lay_out(chosen, self.wanted.shape[1], self.ranks, self.group)
        rows = copies(x, layout.order, self.top_k)[: sum(layout.sent)]
        arrived = exchanged(rows, layout.sent, layout.received, self.group, fp8=self.fp8)
        done = worked(self.experts, arrived, layout.grouped, layout.per_expert)
        home = exchanged(done, layout.received, layout.sent, self.group, fp8_back=self.fp8)
        back = returned(home, layout.order, self.top_k)
        return (back * weights.unsqueeze(-1)).sum(1)

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and experts of every token."""
        return route(x.double() @ self.router.weight.double().T, self.wanted, self.top_k, x.dtype)

    def synchronise(self) -> None:
        """Add up the router's gradient; an expert's is whole, because all its tokens came to it."""
        dist.all_reduce(self.router.weight.grad)
