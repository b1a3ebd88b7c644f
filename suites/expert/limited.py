"""What group-limited dispatch must send and deliver, also between nodes, from the routing tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fixtures.ranks.steps import Context
from fixtures.ranks.study import parity
from fixtures.ranks.study.driver import Entries, Form, Left, Named, Run, Seen, Technique
from suites.expert import issued
from suites.expert.groups import Nodes, TwoHops, two_hops, visited
from suites.expert.issued import ACROSS, OTHERS, TAGS, WORD_BYTES
from suites.expert.routing import Shape, column, limited_top_k, matrix, preference
from suites.expert.tokens import expected_at_experts, rows_of, tokens


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

    def reference(self, dtype: torch.dtype) -> Named:
        """What must arrive at the experts, and what every token must come back as."""
        right = expected_at_experts(
            self.ctx, self.routed, self.everybodys, self.shape.experts, self.nodes.forwarded()
        )
        home = self.own * (self.chosen + 1).sum(1, keepdim=True)
        return {"tokens at experts": right, "sums at home": home}

    def beside(self, dtype: torch.dtype, run: Run[TwoHops]) -> Entries:
        """Compare a token's number of nodes with the most, and its experts with those of the rule."""
        widest = visited(self.chosen, self.shape.experts, self.nodes).sum(1).max()
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
