"""Exchanges between pairs of nodes, all pairs at once: the bandwidth of each node with several partners.

In an all_reduce every node waits for the slowest, and nothing shows which that is. Here a slow node is slow
in every round, and each of its partners is slow in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fixtures.ranks import timing
from fixtures.ranks.exact.compare import keep
from fixtures.ranks.steps import Context
from fixtures.ranks.study.dealt import Dealt

_WORD_BYTES = 8
Round = Sequence[Sequence[str]]  # the two nodes of each pair


def measured(
    ctx: Context, size_bytes: int, rounds: Sequence[Round], iterations: int, budget_s: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Exchange `size_bytes` each way between ranks of one local index: seconds by partner, and wrong data.

    A node without a partner in a round waits for the others.
    """
    found, wrong = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, pairs in enumerate(rounds, 1):
        partners = _partners(ctx, pairs)
        words = [
            [size_bytes // _WORD_BYTES * (partners.get(source) == target) for target in range(ctx.size)]
            for source in range(ctx.size)
        ]
        work = Dealt(ctx, f"pairs of round {number}", words, pairs=True)
        samples = timing.measure(ctx, work, iterations, budget_s / len(rounds), f"round {number}")
        keep(wrong, work.check(samples.last))
        if ctx.rank in partners:
            found.append({"with": ctx.hosts[partners[ctx.rank]], "seconds": samples.seconds})
        del work  # its buffers go before the next are made
    return found, wrong


def _partners(ctx: Context, pairs: Round) -> dict[int, int]:
    """The partner of each rank: that of its local index on the other node, where there is one."""
    seats = {seat: rank for rank, seat in enumerate(zip(ctx.hosts, ctx.local_ranks, strict=True))}
    others = {one: other for pair in pairs for one, other in (pair, pair[::-1])}
    likes = {rank: (others.get(host, ""), local) for (host, local), rank in seats.items()}
    return {rank: seats[like] for rank, like in likes.items() if like in seats}
