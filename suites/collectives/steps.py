"""What the ranks run for the collectives suite.

Rank r's buffer of iteration t is P(r, t), known to every rank in closed form (`payload` and `reductions` of
`fixtures.ranks.exact`); G(t) is the reduction of all of them. n ranks, chunk c of a buffer X is X[c]:

    all_reduce      every rank ends with G              broadcast  every rank ends with P(root)
    reduce_scatter  rank r ends with G[r]               scatter    rank r ends with P(root)[r]
    all_gather      every rank: P(0), P(1), ...         gather     the root: P(0), P(1), ...
    all_to_all(_v)  rank r: P(0)[r], P(1)[r], ...       reduce     the root: G
    send_recv       rank r ends with P(r-1)             barrier    nobody leaves before all have entered
    bisection       rank r ends with P(r-n//2)

The root of iteration t is rank t mod n; ranks are counted mod n.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fixtures.ranks import timing
from fixtures.ranks.collectives.barriers import Exchange, check_timed, refuse_alone
from fixtures.ranks.collectives.collectives import Collective, exchange
from fixtures.ranks.collectives.shapes import count_for
from fixtures.ranks.exact.compare import keep
from fixtures.ranks.exact.dtypes import format_of
from fixtures.ranks.steps import Context, step
from fixtures.ranks.study.dealt import Dealt
from fixtures.wire.collectives import COLLECTIVES
from suites.collectives import link_probe
from suites.collectives import transport as ports

_TRANSPORT_DTYPE = "int32"
_WORD_BYTES = 8
Round = Sequence[Sequence[str]]  # the two nodes of each pair


@step
def exact(
    ctx: Context,
    *,
    collective: str,
    dtype: str,
    op: str = "sum",
    elements: list[int],
    iterations: int,
    issue: str = "",
) -> dict[str, Any]:
    """Run `iterations` of each buffer length with a new payload every time, and compare every one of them.

    `issue`: the form of the call (`ISSUED` in `fixtures.ranks.collectives.calls`), if not the usual.
    """
    wrong: list[dict[str, Any]] = []
    compared = 0
    for count in elements:
        work = exchange(ctx, collective, dtype, op, count, fresh=True, issue=issue)
        ctx.progress.phase(f"exact {count} elements")
        for i in range(iterations):
            compared += work.compared(i)
            _checked(ctx, work, i, wrong)
    return {"iterations": len(elements) * iterations, "elements": compared, "wrong": wrong}


@step
def sweep(
    ctx: Context,
    *,
    collective: str,
    dtype: str,
    op: str = "sum",
    sizes: list[int],
    iterations: int,
    budget_s: float,
    copy: bool,
    judged: Sequence[int] = (),
    judged_iterations: int = 0,
    fewest: int = timing.FEWEST,
) -> dict[str, Any]:
    """Time `iterations` of each size (or `judged_iterations`) one by one, then compare what they left.

    What is left of `budget_s` is shared evenly among the sizes that are left, so small sizes leave theirs to
    large ones; each has its `fewest` iterations. `copy` measures this rank's memory copy rate as well.
    """
    refuse_alone(ctx, collective)
    counts = _counts(collective, ctx.size, dtype, sizes)
    _connect(ctx, collective)
    measured: list[dict[str, Any]] = []
    wrong: list[dict[str, Any]] = []
    began = time.perf_counter()
    for number, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        spent_s = timing.agree(ctx, time.perf_counter() - began)
        share_s = (budget_s - spent_s) / (len(sizes) - number)
        work = exchange(ctx, collective, dtype, op, count, size_bytes=size)
        repeats = judged_iterations if size in judged else iterations
        samples = timing.measure(ctx, work, repeats, share_s, str(size), fewest)
        ctx.progress.phase(f"check {size}")
        for one in check_timed(work, samples.last):
            keep(wrong, one)
        told = {"seconds": samples.seconds, "warmup": samples.warmup, "waited": samples.waited}
        measured.append({"size_bytes": size, **told})
        del work  # its buffers go before the next are made
    rate = timing.copy_rate(ctx) if copy else None
    return {"sizes": measured, "wrong": wrong, "copy_gigabytes_per_s": rate}


@step
def identity(ctx: Context, *, dtype: str, elements: list[int], iterations: int) -> dict[str, Any]:
    """all_gather(reduce_scatter(X)) == all_reduce(X): both are compared with G, bit for bit.

    `elements` are lengths of one rank's chunk; X has n of them.
    """
    wrong: list[dict[str, Any]] = []
    for count in elements:
        scattered = Collective(ctx, "reduce_scatter", dtype, "sum", count, fresh=True)
        whole = Collective(ctx, "all_reduce", dtype, "sum", ctx.size * count, fresh=True)
        joined = Collective(ctx, "all_gather", dtype, "sum", count)
        ctx.progress.phase(f"identity {count} elements")
        for i in range(iterations):
            _checked(ctx, whole, i, wrong)
            _checked(ctx, scattered, i, wrong)
            joined.prepare(i)
            joined.input(i).copy_(scattered.output(i))
            joined.run(i)
            timing.complete(ctx)
            whole.output(i).copy_(joined.output(i))  # which it must equal
            found = whole.check(i)
            keep(wrong, found and {**found, "collective": "reduce_scatter + all_gather"})
    total = sum(elements) * ctx.size * iterations
    return {"iterations": len(elements) * iterations, "elements": total, "wrong": wrong}


@step
def transport(ctx: Context, *, size_bytes: int) -> dict[str, Any]:
    """Run a checked all_reduce, all_gather and send_recv between two readings of the ports' byte counters.

    As in a ring, a rank sends 2(n-1)/n + (n-1)/n + 1 times `size_bytes`.
    """
    wrong: list[dict[str, Any]] = []
    form = format_of(_TRANSPORT_DTYPE)
    works = []
    for name in ("all_reduce", "all_gather", "send_recv"):
        count = count_for(name, size_bytes, ctx.size, form)
        works.append(Collective(ctx, name, form.name, "sum", count, size_bytes=size_bytes))
    ctx.progress.phase("transport")
    timing.barrier(ctx)
    idle = ports.background() if ctx.backend == "nccl" else {}
    timing.barrier(ctx)  # no rank begins while another still reads idle traffic
    start, before = time.monotonic(), ports.read_counters()
    for number, work in enumerate(works, 1):
        work.prepare(0)
        work.run(0)
        timing.complete(ctx)
        ctx.progress.done(number)
    timing.barrier(ctx)  # the counters are the node's: its other ranks must have finished too
    sent = size_bytes * (3 * (ctx.size - 1) + ctx.size) // ctx.size
    after = ports.settled_counters(before, sent)
    after = ports.without(idle, before, after, time.monotonic() - start)
    for work in works:
        keep(wrong, work.check(0))
    used = ports.describe(ctx.backend, before, after, sent, ranks=ctx.size, nodes=len(set(ctx.hosts)))
    return {"transport": used, "wrong": wrong}


@step
def pairs(
    ctx: Context, *, size_bytes: int, rounds: Sequence[Round], iterations: int, budget_s: float
) -> dict[str, Any]:
    """Exchange `size_bytes` each way between ranks of one local index, in all pairs of a round at once.

    In an all_reduce every node waits for the slowest, and nothing shows which that is. Here a slow node is
    slow in every round, and each of its partners is slow in one. One without a partner waits for the others.
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
        for one in check_timed(work, samples.last):
            keep(wrong, one)
        if ctx.rank in partners:
            found.append({"with": ctx.hosts[partners[ctx.rank]], "seconds": samples.seconds})
        del work  # its buffers go before the next are made
    return {"pairs": found, "wrong": wrong}


@step
def link(
    ctx: Context, *, size_bytes: int, iterations: int, lead: int, round_trips: int, laps: int = 1
) -> dict[str, Any]:
    """Try both directions between two nodes in turn, every rank with its partner on the other node."""
    return link_probe.probe(ctx, size_bytes, iterations, lead, round_trips=round_trips, laps=laps)


def _connect(ctx: Context, collective: str) -> None:
    """Let every rank send to every other once, where roots take turns that exchange with each rank.

    NCCL connects two ranks by their first message: in a gather and a scatter each new root would be timed
    while it connects to all others.
    """
    row = COLLECTIVES.get(collective)  # a barrier has none
    if row is None or not (row.rooted and row.sharded):
        return
    ctx.progress.phase("connect")
    first = Collective(ctx, "all_to_all", "int32", "sum", 4)
    first.prepare(0)
    first.run(0)
    timing.complete(ctx)


def _partners(ctx: Context, pairs: Round) -> dict[int, int]:
    """The partner of each rank: that of its local index on the other node, where there is one."""
    seats = {seat: rank for rank, seat in enumerate(zip(ctx.hosts, ctx.local_ranks, strict=True))}
    others = {one: other for pair in pairs for one, other in (pair, pair[::-1])}
    likes = {rank: (others.get(host, ""), local) for (host, local), rank in seats.items()}
    return {rank: seats[like] for rank, like in likes.items() if like in seats}


def _counts(collective: str, ranks: int, dtype: str, sizes: list[int]) -> list[int]:
    """Elements for each size; an error names all sizes that are impossible."""
    form = format_of(dtype)
    counts, refused = [], []
    for size in sizes if collective != "barrier" else ():
        try:
            counts.append(count_for(collective, size, ranks, form))
        except ValueError as error:
            refused.append(str(error))
    if refused:
        raise ValueError("; ".join(refused))
    return counts or [0] * len(sizes)


def _checked(ctx: Context, work: Exchange, i: int, wrong: list[dict[str, Any]]) -> None:
    work.prepare(i)
    work.run(i)
    timing.complete(ctx)
    keep(wrong, work.check(i))
    ctx.progress.done(i + 1)
