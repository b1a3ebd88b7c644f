"""Which token goes to which expert: the top-k router, the routings that are tested, and counts of a table.

A routing table is a function of seed and rank alone, so every rank can compute every other rank's. Rank r
holds the experts r * E / n to (r + 1) * E / n - 1 of E.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fixtures.ranks.exact.payload import key
from suites.expert.issued import tokens_on

LEARNED = "learned"
KINDS = ("balanced", "skewed", "one_hot", "zero_tokens", "even", LEARNED)
_ROUTE, _EVEN = 700, 701
_TIE = 2.0**-40  # decides where logits are equal, and changes none that is far from another
_ZIPF = 1.5  # exponent of the skewed routing: expert e is wanted like 1 / (1 + e)^1.5


@dataclass(frozen=True)
class Shape:
    """The sizes of an expert layer: tokens on each rank, their width, the experts' width, and how many."""

    tokens: int
    hidden: int
    inner: int
    experts: int
    top_k: int

    @classmethod
    def dealt(
        cls,
        ranks: int,
        *,
        tokens_per_rank: int,
        experts_per_rank: int,
        top_k: int,
        hidden: int,
        inner: int = 1,
    ) -> Shape:
        """Make it from a step's parameters, with as many experts on each of `ranks`."""
        shape = cls(tokens_per_rank, hidden, inner, experts_per_rank * ranks, top_k)
        shape.refuse(ranks)
        return shape

    def refuse(self, ranks: int) -> None:
        """Raise ValueError, which names all faults at once."""
        faults = []
        if self.experts % ranks:
            faults.append(f"{self.experts} experts do not divide evenly over {ranks} ranks")
        if not 0 < self.top_k <= self.experts:
            faults.append(f"a token cannot have {self.top_k} of {self.experts} experts")
        if min(self.tokens, self.hidden, self.inner) < 1:
            faults.append("tokens, hidden and inner must be at least 1")
        if faults:
            raise ValueError("; ".join(faults))


def uniform(seed: int, *parts: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Draw from [0, 1) in fp64, the same on every rank and device for the same parts."""
    generator = torch.Generator().manual_seed(key(seed, *parts) >> 1)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def preference(kind: str, seed: int, rank: int, shape: Shape) -> torch.Tensor:
    """A rank's scores, one row of `experts` per token, from which the router takes the top k.

    balanced: slot j of token t of rank r gets expert (r * T * k + t * k + j) mod E. skewed: Zipf, drawn by
    the Gumbel-max trick. one_hot: the first k experts take everything. even and zero_tokens: drawn evenly.
    learned: the logits of the router decide, and between equal ones the number of the expert.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown routing {kind!r}; known are {', '.join(KINDS)}")
    tokens, experts = tokens_on(kind, rank, shape.tokens), shape.experts
    if kind == LEARNED:
        return (torch.arange(experts, dtype=torch.float64) * -_TIE).expand(tokens, -1)
    drawn = uniform(seed, _ROUTE, rank, shape=(tokens, experts))
    if kind == "balanced":
        slots = torch.arange(tokens * shape.top_k) + rank * shape.tokens * shape.top_k
        wanted = (slots % experts).view(tokens, shape.top_k)
        return drawn.scatter_add(1, wanted, torch.full(wanted.shape, 2.0, dtype=torch.float64))
    if kind == "skewed":
        gumbel = -torch.log(-torch.log(drawn.clamp(1e-12, 1 - 1e-12)))
        return gumbel - _ZIPF * torch.log1p(torch.arange(experts, dtype=torch.float64))
    if kind == "one_hot":
        return drawn + 2.0 * (torch.arange(experts) < shape.top_k)
    return drawn


def top_k(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The experts of every token, best first."""
    return torch.topk(scores, count, dim=1).indices


def limited_top_k(scores: torch.Tensor, count: int, nodes: int, most: int) -> torch.Tensor:
    """The best experts within the `most` best nodes, a node being worth its two best experts.

    DeepSeek-V3 technical report (arXiv:2412.19437), section 2.1.2, node-limited routing.
    """
    by_node = scores.view(scores.shape[0], nodes, -1)
    worth = by_node.topk(min(2, by_node.shape[2]), dim=2).values.sum(2)
    kept = torch.zeros_like(worth, dtype=torch.bool).scatter_(1, worth.topk(most, dim=1).indices, value=True)
    return top_k(by_node.masked_fill(~kept.unsqueeze(2), -torch.inf).flatten(1), count)


def tables(kind: str, seed: int, ranks: int, shape: Shape) -> list[torch.Tensor]:
    """Every rank's routing table."""
    return [top_k(preference(kind, seed, rank, shape), shape.top_k) for rank in range(ranks)]


def even_tables(seed: int, ranks: int, shape: Shape) -> list[torch.Tensor]:
    """Every rank's routing table, drawn evenly, from k numbers per token where `tables` draws E.

    Floyd's algorithm: for i = E - k ... E - 1 take one of the first i + 1 experts, and i itself where it
    is taken already (Bentley and Floyd, "A Sample of Brilliance", CACM 30(9), 1987).
    """
    found = []
    for rank in range(ranks):
        drawn = uniform(seed, _EVEN, rank, shape=(shape.tokens, shape.top_k))
        chosen = torch.full((shape.tokens, shape.top_k), -1)
        for slot in range(shape.top_k):
            last = shape.experts - shape.top_k + slot
            one = (drawn[:, slot] * (last + 1)).long()
            taken = (chosen == one.unsqueeze(1)).any(1)
            chosen[:, slot] = torch.where(taken, last, one)
        found.append(chosen)
    return found


def counts(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """How many rows of a table go to each expert; numbers beyond the last expert do not count."""
    return torch.bincount(chosen.flatten(), minlength=experts)[:experts]


def matrix(routing: list[torch.Tensor], experts: int) -> list[list[int]]:
    """Rows from every rank (first index) to every rank."""
    ranks = len(routing)
    return [counts(chosen, experts).view(ranks, -1).sum(1).tolist() for chosen in routing]


def visited(chosen: torch.Tensor, experts: int, parts: int) -> torch.Tensor:
    """Which of so many equal parts of the experts (columns) every token goes to: ranks, or nodes."""
    found = torch.zeros(len(chosen), parts, dtype=torch.bool, device=chosen.device)
    return found.scatter_(1, chosen * parts // experts, value=True)


def column(sent: list[list[int]], rank: int) -> list[int]:
    """What a rank receives from every rank."""
    return [row[rank] for row in sent]


def transposed(sent: list[list[int]]) -> list[list[int]]:
    """The rows of the way back."""
    return [list(row) for row in zip(*sent, strict=True)]


def scaled(sent: list[list[int]], words: int) -> list[list[int]]:
    """Words, where each row has `words`."""
    return [[rows * words for rows in row] for row in sent]


def imbalance(sent: list[list[int]]) -> float:
    """Rows of the busiest rank over the mean."""
    loads = [sum(row) for row in transposed(sent)]
    return max(loads) * len(loads) / max(sum(loads), 1)
