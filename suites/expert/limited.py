"""What group-limited dispatch must send, cross and deliver, written down from the routing tables alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fixtures.ranks.steps import Context
from fixtures.ranks.study import parity
from suites.expert.groups import Nodes, TwoHops, visited
from suites.expert.routing import Shape, column, limited_top_k, matrix, preference
from suites.expert.tokens import TAGS, expected_at_experts, tokens

_INT64_BYTES = 8


@dataclass(frozen=True)
class Limited:
    """Everybody's tables and tokens, and the rows from every rank to every rank in both hops."""

    shape: Shape
    nodes: Nodes
    most: int
    routed: list[Tensor]
    everybodys: list[Tensor]
    chosen: Tensor
    own: Tensor
    first: list[list[int]]
    second: list[list[int]]

    @property
    def row_words(self) -> int:
        """Words of a row in hop 1: tags, payload, and which experts the token has."""
        return TAGS + self.shape.hidden + self.shape.top_k

    def bytes_sent(self, rank: int) -> int:
        """Counts for n ranks and E experts, rows of both hops, and as many rows back without the experts."""
        back = sum(column(self.first, rank)) + sum(column(self.second, rank))
        plain = (TAGS + self.shape.hidden) * (sum(self.second[rank]) + back)
        headers = len(self.first) + self.shape.experts
        return _INT64_BYTES * (headers + self.row_words * sum(self.first[rank]) + plain)

    def compared(self, ctx: Context, trip: TwoHops) -> list[dict[str, Any]]:
        """Every token is where it must be, came home added up, and went to few enough nodes."""
        widest = visited(self.chosen, self.shape.experts, self.nodes).sum(1).max()
        sources = self.nodes.forwarded()
        right = expected_at_experts(ctx, self.routed, self.everybodys, self.shape.experts, sources)
        return [
            parity.equal("tokens at experts", trip.arrived, right),
            parity.equal("sums at home", trip.home, self.own * (self.chosen + 1).sum(1, keepdim=True)),
            parity.equal("nodes of a token", widest.clamp(min=self.most), torch.full_like(widest, self.most)),
        ]


def limited(ctx: Context, shape: Shape, nodes: Nodes, most_nodes: int) -> Limited:
    """Draw the tables, the same on every rank."""
    most = min(most_nodes, nodes.count)
    routed = [one.to(ctx.device) for one in limited_tables(ctx.seed, ctx.size, shape, nodes, most)]
    everybodys = [tokens(ctx, r, len(chosen), TAGS + shape.hidden) for r, chosen in enumerate(routed)]
    first, second = hop_matrices(routed, shape.experts, nodes)
    return Limited(
        shape, nodes, most, routed, everybodys, routed[ctx.rank], everybodys[ctx.rank], first, second
    )


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
    for source, chosen in enumerate(routing):
        for node, rows in enumerate(visited(chosen, experts, nodes).sum(0).tolist()):
            first[source][nodes.peer(node, source)] += rows
        for target, rows in enumerate(
            torch.bincount(chosen.flatten() * ranks // experts, minlength=ranks).tolist()
        ):
            second[nodes.peer(nodes.of(target), source)][target] += rows
    return first, second


def crossing(sent: list[list[int]], rank: int, nodes: Nodes) -> int:
    """Rows that a rank receives from other nodes."""
    return sum(row[rank] for source, row in enumerate(sent) if nodes.of(source) != nodes.of(rank))


def crossings(ctx: Context, made: Limited, trip: TwoHops) -> tuple[dict[str, float], dict[str, Any]]:
    """Bytes that came from other nodes, counted on the rows themselves, and those of sending row by row."""
    nodes, row_bytes = made.nodes, _INT64_BYTES * made.row_words
    found = int((trip.forwarded[:, 0] // nodes.ranks != nodes.of(ctx.rank)).sum())
    expected = crossing(made.first, ctx.rank, nodes)
    pairs = crossing(matrix(made.routed, made.shape.experts), ctx.rank, nodes)
    by_row = pairs * _INT64_BYTES * (TAGS + made.shape.hidden)
    saved = 1 - found * row_bytes / by_row if by_row else 0.0
    line = {
        "op": "rows",
        "group": "other nodes",
        "count": found,
        "bytes": found * row_bytes,
        "expected_count": expected,
        "expected_bytes": expected * row_bytes,
    }
    return {
        "internode_bytes": float(found * row_bytes),
        "internode_bytes_row_by_row": float(by_row),
        "internode_saved": saved,
    }, line
