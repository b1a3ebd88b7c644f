"""Group-limited dispatch: a token is sent to each of at most M nodes once, and distributed inside it.

Hop 1 goes to the rank of the same local index on every node that has one of the token's experts, hop 2 from
there to the experts; results are added up on the way back, in the node first. Everything is integers modulo
2^64, so that sums are exact in any order (DeepSeek-V3, arXiv:2412.19437, sections 2.1.2 and 3.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fixtures.ranks.steps import Context
from suites.expert.issued import stand_ins
from suites.expert.layer import exchange, inverse, lay_out


@dataclass(frozen=True)
class Nodes:
    """Consecutive ranks that share a node, the same number on each."""

    count: int
    ranks: int  # on each

    def of(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.ranks

    def peer(self, node: int, rank: int) -> int:
        """The rank of the same local index on another node."""
        return node * self.ranks + rank % self.ranks

    def forwarded(self) -> list[int]:
        """All ranks in the order in which a node forwards their rows: by local index, then by node."""
        return [node * self.ranks + local for local in range(self.ranks) for node in range(self.count)]


@dataclass(frozen=True)
class TwoHops:
    """Rows that a rank received in hop 1 and hop 2, and what came back for its tokens."""

    forwarded: Tensor
    arrived: Tensor
    home: Tensor


def nodes_of(ctx: Context, most: int) -> Nodes:
    """The real nodes where there are several; on one node, at most `most` groups of ranks in their place."""
    if len(set(ctx.hosts)) == 1:
        count = stand_ins(ctx.size, most)
        return Nodes(count, ctx.size // count)
    count = len(set(ctx.hosts))
    ranks = ctx.size // count
    if any(len(set(ctx.hosts[n * ranks : (n + 1) * ranks])) != 1 for n in range(count)):
        raise ValueError(f"node-limited routing needs the same number of ranks on every node: {ctx.hosts}")
    return Nodes(count, ranks)


def visited(chosen: Tensor, experts: int, nodes: Nodes) -> Tensor:
    """Which nodes (columns) every token goes to."""
    found = torch.zeros(chosen.shape[0], nodes.count, dtype=torch.bool, device=chosen.device)
    return found.scatter_(1, chosen * nodes.count // experts, value=True)


def two_hops(ctx: Context, nodes: Nodes, chosen: Tensor, rows: Tensor, experts: int) -> TwoHops:
    """Send every token to its experts, let expert e multiply it by e + 1, and add up."""
    width, first = rows.shape[1], _Hop(ctx, nodes, visited(chosen, experts, nodes))
    forwarded = exchange(torch.cat([rows, chosen], dim=1)[first.token], first.sent, first.received)
    row, slot = torch.where(forwarded[:, width:] * nodes.count // experts == nodes.of(ctx.rank))
    inner = lay_out(forwarded[row, width + slot], experts, ctx.size)
    arrived = exchange(forwarded[row[inner.order], :width], inner.sent, inner.received)
    local = torch.arange(len(inner.per_expert), device=ctx.device) + ctx.rank * len(inner.per_expert) + 1
    factor = local.repeat_interleave(torch.tensor(inner.per_expert, device=ctx.device))
    done = (arrived[inner.grouped] * factor.unsqueeze(1))[inverse(inner.grouped)]
    back = exchange(done, inner.received, inner.sent)
    summed = torch.zeros_like(forwarded[:, :width]).index_add_(0, row[inner.order], back)
    outer = exchange(summed, first.received, first.sent)
    home = torch.zeros_like(rows).index_add_(0, first.token, outer)
    return TwoHops(forwarded, arrived[inner.grouped], home)


class _Hop:
    """Which token goes where in hop 1, node by node, and how many rows come from every rank."""

    def __init__(self, ctx: Context, nodes: Nodes, goes: Tensor) -> None:
        node, self.token = torch.where(goes.T)
        counts = torch.zeros(ctx.size, dtype=torch.int64, device=ctx.device)
        peers = [nodes.peer(n, ctx.rank) for n in range(nodes.count)]
        counts[peers] = torch.bincount(node, minlength=nodes.count)
        others = torch.empty_like(counts)
        dist.all_to_all_single(others, counts)
        self.sent: list[int] = counts.tolist()
        self.received: list[int] = others.tolist()
