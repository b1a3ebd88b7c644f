"""Group-limited dispatch: a token is sent to each of at most M nodes once, and distributed inside it.

Hop 1 goes to the rank of the same local index on every node that has one of the token's experts, hop 2 from
there to the experts; results are added up on the way back, in the node first. Everything is integers modulo
2^64, so that sums are exact in any order (DeepSeek-V3, arXiv:2412.19437, sections 2.1.2 and 3.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fixtures.ranks.steps import Context, Unsupported
from fixtures.ranks.study import parity
from fixtures.ranks.study.driver import Entries, Form, Left, Named, Run, Seen, Technique
from suites.expert import issued
from suites.expert.issued import ACROSS, OTHERS, TAGS, WORD_BYTES, stand_ins
from suites.expert.layer import exchange, inverse, lay_out
from suites.expert.routing import Shape, column, limited_top_k, matrix, preference, visited
from suites.expert.tokens import expected_at_experts, rows_of, tokens


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
        raise Unsupported(f"node-limited routing needs the same number of ranks on every node: {ctx.hosts}")
    return Nodes(count, ranks)


def two_hops(ctx: Context, nodes: Nodes, chosen: Tensor, rows: Tensor, experts: int) -> TwoHops:
    """Send every token to its experts, let expert e multiply it by e + 1, and add up."""
    width, first = rows.shape[1], _Hop(ctx, nodes, visited(chosen, experts, nodes.count))
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


@dataclass
class Limited(Technique[TwoHops]):
    """All ranks' tables and tokens, the same on every rank, and the rows between ranks in both hops."""

    ctx: Context
    shape: Shape
    nodes: Nodes
    most_nodes: int
    dtypes = (torch.int64,)

    def __post_init__(self) -> None:
        ctx, shape = self.ctx, self.shape
        self.most = min(self.most_nodes, self.nodes.count)
        drawn = limited_tables(ctx.seed, ctx.size, shape, self.nodes, self.most)
        self.routed = [chosen.to(ctx.device) for chosen in drawn]
        self.everybodys = [tokens(ctx, r, len(chosen), TAGS + shape.hidden) for r, chosen in enumerate(drawn)]
        self.chosen, self.own = self.routed[ctx.rank], self.everybodys[ctx.rank]
        self.first, self.second = hop_matrices(drawn, shape.experts, self.nodes)

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[TwoHops]:
        """Send every token by both hops, and back."""
        with seen():
            trip = two_hops(self.ctx, self.nodes, self.chosen, self.own, self.shape.experts)
        return Left({"tokens at experts": trip.arrived, "sums at home": trip.home}, trip)

    def other(self) -> Limited:
        """The same with tokens from back to front."""
        other = copy(self)
        other.everybodys = [rows.flip(-1) for rows in self.everybodys]
        other.own = other.everybodys[self.ctx.rank]
        return other

    def reference(self, dtype: torch.dtype) -> Named:
        """What must arrive at the experts, and what every token must come back as."""
        right = expected_at_experts(
            self.ctx, self.routed, self.everybodys, self.shape.experts, self.nodes.forwarded()
        )
        home = self.own * (self.chosen + 1).sum(1, keepdim=True)
        return {"tokens at experts": right, "sums at home": home}

    def beside(self, dtype: torch.dtype, run: Run[TwoHops]) -> Entries:
        """Compare a token's number of nodes with the most, and its experts with those of the rule."""
        widest = visited(self.chosen, self.shape.experts, self.nodes.count).sum(1).max()
        most = torch.full_like(widest, self.most)
        return [
            parity.equal("nodes of a token", widest.clamp(min=self.most), most),
            parity.local(parity.equal("experts of a token", self.chosen, self.by_rule().to(self.ctx.device))),
        ]

    def by_rule(self) -> Tensor:
        """The experts of this rank's tokens, token by token and without tensors.

        A node is worth the sum of a token's two highest scores among its experts; the best experts of the
        best nodes are chosen (DeepSeek-V3 technical report, arXiv:2412.19437, section 2.1.2).
        """
        each = self.shape.experts // self.nodes.count
        found = []
        for scores in preference("even", self.ctx.seed, self.ctx.rank, self.shape).tolist():
            groups = [range(node * each, (node + 1) * each) for node in range(self.nodes.count)]
            groups.sort(key=lambda group: -sum(sorted((scores[one] for one in group), reverse=True)[:2]))
            allowed = [one for group in groups[: self.most] for one in group]
            found.append(sorted(allowed, key=lambda one: -scores[one])[: self.shape.top_k])
        return torch.tensor(found)

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """Rows of both hops, and as many rows back."""
        rank, shape = self.ctx.rank, self.shape
        rows = sum(self.first[rank]), rows_of(self.second, rank) + sum(column(self.first, rank))
        return [Form(issued.two_hops(self.ctx.size + shape.experts, shape.hidden, shape.top_k, *rows))]

    def crossings(self, trip: TwoHops) -> tuple[dict[str, float], dict[str, Any]]:
        """Bytes that came from other nodes, counted on the rows, and those of sending row by row."""
        nodes, shape = self.nodes, self.shape
        came = int((trip.forwarded[:, 0] // nodes.ranks != nodes.of(self.ctx.rank)).sum())
        both = came, crossing(self.first, self.ctx.rank, nodes)
        found, right = (issued.across(shape.hidden, shape.top_k, rows)[ACROSS] for rows in both)
        pairs = crossing(matrix(self.routed, shape.experts), self.ctx.rank, nodes)
        by_row = pairs * WORD_BYTES * (TAGS + shape.hidden)
        line = {
            "op": ACROSS,
            "group": OTHERS,
            "count": found[0],
            "bytes": found[1],
            "expected_count": right[0],
            "expected_bytes": right[1],
        }
        return {
            "internode_bytes": float(found[1]),
            "internode_bytes_row_by_row": float(by_row),
            "internode_saved": 1 - found[1] / by_row if by_row else 0.0,
        }, line


def limited_tables(seed: int, ranks: int, shape: Shape, nodes: Nodes, most: int) -> list[Tensor]:
    """Every rank's routing table, tokens drawn evenly and kept to `most` nodes."""
    scores = [preference("even", seed, rank, shape) for rank in range(ranks)]
    return [limited_top_k(drawn, shape.top_k, nodes.count, most) for drawn in scores]


def hop_matrices(
    routing: list[Tensor], experts: int, nodes: Nodes
) -> tuple[list[list[int]], list[list[int]]]:
    """Rows from every rank to every rank in hop 1 and in hop 2, from the tables alone."""
    ranks = len(routing)
    first = [[0] * ranks for _ in range(ranks)]
    second = [[0] * ranks for _ in range(ranks)]
    for source, (chosen, direct) in enumerate(zip(routing, matrix(routing, experts), strict=True)):
        for node, rows in enumerate(visited(chosen, experts, nodes.count).sum(0).tolist()):
            first[source][nodes.peer(node, source)] += rows
        for target, rows in enumerate(direct):
            second[nodes.peer(nodes.of(target), source)][target] += rows
    return first, second


def crossing(sent: list[list[int]], rank: int, nodes: Nodes) -> int:
    """Rows that a rank receives from other nodes."""
    return sum(row[rank] for source, row in enumerate(sent) if nodes.of(source) != nodes.of(rank))
