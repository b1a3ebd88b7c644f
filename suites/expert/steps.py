"""What the ranks run for expert parallelism: E experts over n ranks, E / n on each, top-k, nothing dropped.

T_r are the tokens of rank r, R_r the rows (a token for one of its experts) that come to rank r, W the bytes
of a row. An uneven all-to-all counts as the bytes that a rank puts in.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from fixtures.ranks.steps import Context, step
from fixtures.ranks.study import parity as near
from fixtures.ranks.study.traffic import count_traffic
from suites.expert.deepep import opened
from suites.expert.disaggregated.model import problem
from suites.expert.disaggregated.passes import attention_ranks, sides
from suites.expert.disaggregated.speed import pattern_speed
from suites.expert.disaggregated.trial import disaggregated_trial
from suites.expert.engine import Pace, layer_trial, load, tokens_trial
from suites.expert.groups import nodes_of, two_hops
from suites.expert.limited import crossings, limited
from suites.expert.parity import (
    compared,
    compared_bf16,
    layer,
    memory_table,
    repeated,
    run_recorded,
    run_unsharded,
)
from suites.expert.parts import every_size
from suites.expert.payload import scaled, through_all_to_all
from suites.expert.routing import Shape, column, imbalance, matrix, tables, transposed
from suites.expert.speed import Traffic, even_traffic
from suites.expert.tokens import TAGS, compared_tokens, round_trip, tokens
from suites.expert.worlds import sizes_in

_INT64_BYTES = 8
_FP64_BYTES = 8
_DISPATCH, _COMBINE = 800, 900  # payload tags of the exchanges


@step
def dispatch_combine(
    ctx: Context, *, routing: str, tokens_per_rank: int, experts_per_rank: int, top_k: int, words: int
) -> dict[str, Any]:
    """Every token goes to its k experts and comes back to its place, bit for bit.

    all_to_all: E counts, then k T_r rows there, then R_r rows back: 8 E + W (k T_r + R_r) bytes in 3 calls.
    One all_reduce of 2 counts: the rows that all ranks sent are those that all ranks received, k sum(T).
    """
    shape = Shape(tokens_per_rank, words, 1, experts_per_rank * ctx.size, top_k)
    shape.refuse(ctx.size)
    routed = [chosen.to(ctx.device) for chosen in tables(routing, ctx.seed, ctx.size, shape)]
    everybodys = [tokens(ctx, r, len(chosen), TAGS + words) for r, chosen in enumerate(routed)]
    sent = matrix(routed, shape.experts)
    ctx.progress.phase("tokens")
    with count_traffic() as seen:
        trip = round_trip(ctx, routed[ctx.rank], everybodys[ctx.rank], shape.experts)
    again = round_trip(ctx, routed[ctx.rank], everybodys[ctx.rank], shape.experts)
    sizes = _INT64_BYTES * (shape.experts + (TAGS + words) * _rows(sent, ctx.rank))
    return {
        "parity": compared_tokens(ctx, trip, routed, everybodys, shape.experts),
        "repeat": [
            near.equal("tokens at experts", again.arrived, trip.arrived),
            near.equal("tokens at home", again.home, trip.home),
        ],
        "traffic": seen.table({"all_to_all": (3, sizes), "all_reduce": (1, 2 * _INT64_BYTES)}),
        "figures": {"imbalance": imbalance(sent)},
        "wrong": _exact(ctx, scaled(sent, words)),
    }


@step
def parity(
    ctx: Context,
    *,
    routing: str,
    tokens_per_rank: int,
    hidden: int,
    inner: int,
    experts_per_rank: int,
    top_k: int,
) -> dict[str, Any]:
    """A mixture of experts, forward and backward, against the unsharded one with everybody's tokens.

    all_to_all: E counts; rows there and back; their gradients there and back: 8 E + 2 W (k T_r + R_r) bytes
    in 5 calls. all_reduce: the router's gradient, hidden x E; an expert's is whole where the expert is.
    """
    shape = Shape(tokens_per_rank, hidden, inner, experts_per_rank * ctx.size, top_k)
    shape.refuse(ctx.size)
    made = layer(ctx, routing, shape)
    right = run_unsharded(ctx, made, torch.float64)
    ctx.progress.phase("sharded")
    with count_traffic() as seen:
        found, model, deliveries = run_recorded(ctx, made, torch.float64)
    half, _, of_half = run_recorded(ctx, made, torch.bfloat16)
    unsharded_half = run_unsharded(ctx, made, torch.bfloat16)
    sent = matrix(tables(routing, ctx.seed, ctx.size, shape), shape.experts)
    sizes = _INT64_BYTES * shape.experts + 2 * _rows(sent, ctx.rank) * hidden * _FP64_BYTES
    gate_bytes = hidden * shape.experts * _FP64_BYTES
    return {
        "parity": compared(found, right) + compared_bf16(half, unsharded_half, right, ctx.size),
        "repeat": [
            *repeated(ctx, made, torch.float64, found, deliveries),
            *repeated(ctx, made, torch.bfloat16, half, of_half),
        ],
        "traffic": seen.table({"all_to_all": (5, sizes), "all_reduce": (1, gate_bytes)}),
        "memory": memory_table(model, shape, ctx.size),
        "figures": {"imbalance": imbalance(sent)},
        "wrong": _exact(ctx, scaled(sent, hidden)),
    }


@step
def group_limited(
    ctx: Context,
    *,
    tokens_per_rank: int,
    experts_per_rank: int,
    top_k: int,
    words: int,
    most_nodes: int,
    groups: int,
) -> dict[str, Any]:
    """Every token goes to at most `most_nodes` nodes, crosses to each once, and is spread inside it.

    H1_r rows of W + 8 k bytes leave rank r in hop 1 (one for each node that a token goes to), H2_r rows of
    W bytes in hop 2; the ways back carry as many rows as came, of W bytes. With 8 n + 8 E bytes of counts
    that is 6 calls of all_to_all. Row by row, every (token, expert) pair on another node would cross alone.
    """
    nodes = nodes_of(ctx, groups)
    shape = Shape(tokens_per_rank, words, 1, experts_per_rank * ctx.size, top_k)
    shape.refuse(ctx.size)
    made = limited(ctx, shape, nodes, most_nodes)
    ctx.progress.phase("two hops")
    with count_traffic() as seen:
        trip = two_hops(ctx, nodes, made.chosen, made.own, shape.experts)
    again = two_hops(ctx, nodes, made.chosen, made.own, shape.experts)
    saved, line = crossings(ctx, made, trip)
    across, inside = scaled(made.first, words), scaled(made.second, words)
    return {
        "parity": made.compared(ctx, trip),
        "repeat": [
            near.equal("tokens at experts", again.arrived, trip.arrived),
            near.equal("sums at home", again.home, trip.home),
        ],
        "traffic": [*seen.table({"all_to_all": (6, made.bytes_sent(ctx.rank))}), line],
        "figures": saved,
        "wrong": [*_exact(ctx, across, "across"), *_exact(ctx, inside, "inside")],
    }


@step
def throughput(
    ctx: Context, *, sizes: dict[str, list[int]], experts_per_rank: int, iterations: int, budget_s: float
) -> dict[str, Any]:
    """Bandwidth and latency of dispatch and combine; `sizes` has tokens, hidden and top-k by kind of device.

    A rank receives a token once, however many of its experts it has (DeepEP's recv_x): bytes are those rows x
    hidden x 2 (bf16), the rank's own included; an iteration took as long as its slowest rank.
    """
    count, hidden, top_k = sizes[ctx.device.type]
    shape = Shape(count, hidden, 1, experts_per_rank * ctx.size, top_k)
    shape.refuse(ctx.size)
    goes = even_traffic(ctx.seed, ctx.size, shape)
    work = Traffic(ctx, goes, hidden)
    with count_traffic() as seen:
        work.dispatch()
        work.combine()
    timed = work.timed(ctx, iterations, budget_s)
    return {
        **timed,
        "parity": work.parity(),
        "traffic": seen.table({"all_to_all": (2, work.traffic_bytes())}),
        "wrong": _exact(ctx, work.exact(goes)),
    }


@step
def groups(
    ctx: Context,
    *,
    group_sizes: dict[str, list[int]],
    sizes: dict[str, list[int]],
    experts_per_rank: int,
    iterations: int,
    budget_s: float,
) -> dict[str, Any]:
    """Expert parallelism in groups of s consecutive ranks, all groups at work at once, for every size s.

    `group_sizes` are asked for by kind of device; those count that divide a larger world, and where none does
    the world is the one group. In a group of s with E experts: E counts, k T_r rows there and R_r back, then
    D_r rows there and C_r back of W' bytes: 8 E + W (k T_r + R_r) + W' (D_r + C_r) in 5 calls of all_to_all.
    """
    count, hidden, top_k = sizes[ctx.device.type]
    return every_size(
        ctx,
        sizes_in(ctx.size, group_sizes[ctx.device.type]),
        (count, hidden, top_k),
        experts_per_rank=experts_per_rank,
        iterations=iterations,
        budget_s=budget_s,
    )


@step
def deepep(
    ctx: Context,
    *,
    routing: str,
    tokens_per_rank: int,
    hidden: int,
    inner: int,
    experts_per_rank: int,
    top_k: int,
    sizes: dict[str, list[int]],
    iterations: int,
    budget_s: float,
    module: str = "deep_ep",
) -> dict[str, Any]:
    """The same tokens and the same layer through DeepEP's Buffer; n/a where no node has it.

    A token goes once to every rank that has one of its experts, so D_r rows of bf16 come to rank r (DeepEP's
    recv_x), and one row for each of its ranks is added up at home. torch cannot count what its kernels send.
    """
    shape = Shape(tokens_per_rank, hidden, inner, experts_per_rank * ctx.size, top_k)
    shape.refuse(ctx.size)
    count, width, slots = sizes[ctx.device.type]
    with opened(ctx, module, max(hidden, width)) as made:
        kept, kept_again = tokens_trial(ctx, made, load(ctx, routing, shape))
        close, same = layer_trial(ctx, layer(ctx, routing, shape), made)
        large = Shape(count, width, 1, experts_per_rank * ctx.size, slots)
        paced = Pace(ctx, made, load(ctx, "even", large)).measure(iterations, budget_s)
    return {**paced, "parity": [*kept, *close, *paced["parity"]], "repeat": [*kept_again, *same]}


@step
def m2n(
    ctx: Context,
    *,
    routing: str,
    tokens_per_batch: int,
    hidden: int,
    inner: int,
    experts_per_rank: int,
    top_k: int,
    layers: int,
    micro_batches: int,
    stage_ms: float,
    share: tuple[int, int] = (1, 1),
) -> dict[str, Any]:
    """Attention on the first M ranks, experts on the other N, micro-batches taking turns; `share` is M to N.

    Per layer and micro-batch an attention rank sends N headers (8 E bytes together) and its k T rows, to each
    expert rank its own, and gets k T rows back; an expert rank the other way round. MegaScale-Infer,
    arXiv:2504.02263. A stage lasts at least `stage_ms`, standing for the work of a larger model.
    """
    attention = attention_ranks(ctx.size, share)
    shape = Shape(tokens_per_batch, hidden, inner, experts_per_rank * (ctx.size - attention), top_k)
    shape.refuse(ctx.size - attention)
    draw = partial(problem, ctx, routing, shape, layers=layers, micro_batches=micro_batches, ranks=attention)
    return disaggregated_trial(ctx, attention, draw, stage_ms / 1e3)


@step
def m2n_speed(
    ctx: Context,
    *,
    sizes: dict[str, list[int]],
    iterations: int,
    budget_s: float,
    share: tuple[int, int] = (1, 1),
) -> dict[str, Any]:
    """The M-to-N pattern alone, by isend and irecv and by one all_to_all, fixed sizes from each to each.

    `sizes` are bytes from every attention rank to every expert rank, by kind of device: an attention rank
    sends N of them, an expert rank receives M. GB/s are the bytes that an expert rank receives over the time
    of the slowest rank.
    """
    with sides(ctx, attention_ranks(ctx.size, share)) as roles:
        return pattern_speed(ctx, roles, sizes[ctx.device.type], iterations, budget_s)


def _rows(sent: list[list[int]], rank: int) -> int:
    """Rows that a rank puts into both exchanges: its own there, the others' back."""
    return sum(sent[rank]) + sum(column(sent, rank))


def _exact(ctx: Context, sent: list[list[int]], where: str = "") -> list[dict[str, Any]]:
    """Integers through the splits of dispatch and combine."""
    there = through_all_to_all(ctx, f"expert dispatch {where}".strip(), sent, 3, _DISPATCH)
    return there + through_all_to_all(ctx, f"expert combine {where}".strip(), transposed(sent), 3, _COMBINE)
