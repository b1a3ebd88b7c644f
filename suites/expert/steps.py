"""What the ranks run for expert parallelism: E experts over n ranks, E / n on each, top-k, nothing dropped.

T_r are the tokens of rank r, R_r the rows (a token for one of its experts) that come to rank r, W the bytes
of a row. An uneven all-to-all counts as the bytes that a rank puts in.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from fixtures.ranks.steps import Context, step
from fixtures.ranks.study.at_size import at_size
from fixtures.ranks.study.driver import answer, study
from suites.expert.capacity import CappedExperts
from suites.expert.deepep import opened
from suites.expert.disaggregated.model import problem
from suites.expert.disaggregated.passes import sides
from suites.expert.disaggregated.speed import pattern_speed
from suites.expert.disaggregated.trial import disaggregated_trial
from suites.expert.engine import Carried, Carrying, load, paces
from suites.expert.groups import Limited, nodes_of
from suites.expert.issued import attention_ranks, capacity_of, sizes_in
from suites.expert.parity import Experts, ExpertsFp8, fit_layer, layer
from suites.expert.parts import divided, in_part
from suites.expert.routing import Shape, imbalance
from suites.expert.speed import Traffic, TrafficFp8, even_traffic
from suites.expert.tokens import RoundTrip, enlarged, exact, exact_fp8


@step
def dispatch_combine(ctx: Context, *, routing: str, words: int, **sizes: int) -> dict[str, Any]:
    """Every token goes to its k experts and comes back to its place, bit for bit.

    all_to_all: E counts, then k T_r rows there, then R_r rows back: 8 E + W (k T_r + R_r) bytes in 3 calls.
    One all_reduce of 2 counts: the rows that all ranks sent are those that all ranks received, k sum(T).
    """
    return _held(ctx, RoundTrip(ctx, routing, Shape.dealt(ctx.size, hidden=words, **sizes)), words)


@step
def parity(ctx: Context, *, routing: str, fp8: bool = False, **sizes: int) -> dict[str, Any]:
    """A mixture of experts, forward and backward, compared with the unsharded one with all ranks' tokens.

    all_to_all: E counts; rows there and back; their gradients there and back: 8 E + 2 W (k T_r + R_r) bytes
    in 5 calls. all_reduce: the router's gradient, hidden x E, in fp32 at least; an expert's is whole where
    the expert is. With `fp8` what goes to experts has hidden (1 + 4 / 128) bytes a row in place of W, and is
    rounded like that in the unsharded model (`fp8`, with sources).
    """
    shape = Shape.dealt(ctx.size, **sizes)
    fit_layer(ctx, shape)
    made = (ExpertsFp8 if fp8 else Experts)(ctx, layer(ctx, routing, shape))
    if ctx.at_size:
        told = at_size(ctx, made)
        return {**told, "figures": {**told["figures"], "imbalance": imbalance(made.sent)}}
    return _held(ctx, made, shape.hidden)


@step
def capacity(ctx: Context, *, routing: str, factor: float, **sizes: int) -> dict[str, Any]:
    """`parity` where an expert takes `factor` times its share of a rank's rows, with a load-balance loss.

    Which rows are dropped, how many for each expert, and the loss over the tokens of all ranks are held to
    rules written out (`capacity`, with sources). Rows that are dropped are not sent. all_reduce: beside the
    router's gradient E + 1 loads, E drops and the loss, of 8 bytes each.
    """
    shape = Shape.dealt(ctx.size, **sizes)
    most = capacity_of(factor, shape.tokens, shape.top_k, shape.experts)
    made = CappedExperts(ctx, layer(ctx, routing, shape), most)
    rows = sum(chosen.numel() for chosen in made.routed)
    return _held(ctx, made, shape.hidden, dropped=float(made.dropped.sum()) / rows)


@step
def group_limited(ctx: Context, *, words: int, most_nodes: int, groups: int, **sizes: int) -> dict[str, Any]:
    """Every token goes to at most `most_nodes` nodes, to each once, and is distributed inside it.

    H1_r rows of W + 8 k bytes leave rank r in hop 1 (one for each node that a token goes to), H2_r rows of
    W bytes in hop 2; the ways back carry as many rows as came, of W bytes. With 8 n + 8 E bytes of counts
    that is 6 calls of all_to_all. Row by row, every (token, expert) pair on another node would be sent alone.
    """
    shape = Shape.dealt(ctx.size, hidden=words, **sizes)
    made = Limited(ctx, shape, nodes_of(ctx, groups), most_nodes)
    found = study(ctx, made)
    saved, line = made.crossings(found.runs[torch.int64].kept)
    told = answer(found)
    hops = {"expert across": made.first, "expert inside": made.second}
    sent = [exact(ctx, enlarged(ctx, hop, words), what) for what, hop in hops.items()]
    return {
        **told,
        "traffic": [*told["traffic"], line],
        "figures": saved,
        **{part: [entry for one in sent for entry in one[part]] for part in ("wrong", "moved")},
    }


@step
def throughput(
    ctx: Context,
    *,
    sizes: dict[str, list[int]],
    experts_per_rank: int,
    iterations: int,
    budget_s: float,
    fp8: bool = False,
) -> dict[str, Any]:
    """Bandwidth and latency of dispatch and combine; `sizes` has tokens, hidden and top-k by kind of device.

    A rank receives a token once, however many of its experts it has (DeepEP's recv_x): bytes are those rows x
    hidden x 2 (bf16), the rank's own included; an iteration took as long as its slowest rank. With `fp8` what
    is dispatched has hidden (1 + 4 / 128) bytes a row, and what is combined hidden x 2.
    """
    count, hidden, top_k = sizes[ctx.device.type]
    shape = Shape(count, hidden, 1, experts_per_rank * ctx.size, top_k)
    shape.refuse(ctx.size)
    work = (TrafficFp8 if fp8 else Traffic)(ctx, even_traffic(ctx.seed, ctx.size, shape), hidden)
    told, timed = answer(study(ctx, work)), work.timed(ctx, iterations, budget_s)
    sent = exact_fp8(ctx, work.matrix, hidden) if fp8 else exact(ctx, work.exact())
    return {**told, **timed, "parity": told["parity"] + timed["parity"], **sent}


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

    Of `group_sizes`, by kind of device, those count that divide a larger world; if none does, the world is
    the only group. In a group of s with E experts: E counts, k T_r rows there and R_r back, then D_r rows
    there and C_r back of W' bytes: 8 E + W (k T_r + R_r) + W' (D_r + C_r) in 5 calls of all_to_all.
    """
    kind, parts = ctx.device.type, []
    world = sizes_in(ctx.size, group_sizes[kind])
    for size in world:
        with divided(ctx, size) as among:
            followed, work = in_part(ctx, among, sizes[kind], experts_per_rank)
            part = answer(study(ctx, followed), study(ctx, work))
            timed = work.timed(ctx, iterations, budget_s / len(world), f"_ep{size}")
            sent = exact(ctx, work.exact(), f"EP {size}", among)
            parts.append({**part, **timed, "parity": part["parity"] + timed["parity"], **sent})
    joined = ("parity", "repeat", "traffic", "memory", "wrong", "moved")
    return {
        **{name: [entry for part in parts for entry in part.get(name, [])] for name in joined},
        "figures": {name: value for part in parts for name, value in part["figures"].items()},
        "samples": min(part["samples"] for part in parts),
    }


@step
def deepep(
    ctx: Context,
    *,
    routing: str,
    sizes: dict[str, list[int]],
    iterations: int,
    budget_s: float,
    module: str = "deep_ep",
    **small: int,
) -> dict[str, Any]:
    """The same tokens and the same layer through DeepEP's Buffer; n/a where no node has it.

    A token goes once to every rank that has one of its experts, so D_r rows of bf16 come to rank r (DeepEP's
    recv_x), and one row for each of its ranks is added up at home. torch cannot count what its kernels send;
    it counts the router's gradient, and carries the exact payloads.
    """
    shape = Shape.dealt(ctx.size, **small)
    count, width, slots = sizes[ctx.device.type]
    with opened(ctx, module, max(shape.hidden, width)) as made:
        tokens = Carried(ctx, made, load(ctx, routing, shape))
        whole = Carrying(ctx, layer(ctx, routing, shape), made)
        told = answer(study(ctx, tokens), study(ctx, whole))
        large = Shape(count, width, 1, shape.experts, slots)
        timed = paces(ctx, made, load(ctx, "even", large), iterations, budget_s)
    sent = exact(ctx, enlarged(ctx, whole.sent, shape.hidden))
    return {**told, **timed, "parity": told["parity"] + timed["parity"], **sent}


@step
def m2n(
    ctx: Context,
    *,
    routing: str,
    tokens_per_batch: int,
    layers: int,
    micro_batches: int,
    stage_ms: float,
    share: tuple[int, int] = (1, 1),
    **sizes: int,
) -> dict[str, Any]:
    """Attention on the first M ranks, experts on the other N, alternating micro-batches; `share` is M to N.

    Per layer and micro-batch an attention rank sends N headers (8 E bytes together) and its k T rows, to each
    expert rank its own, and gets k T rows back; an expert rank the other way round. MegaScale-Infer,
    arXiv:2504.02263. A stage lasts at least `stage_ms`, standing for the work of a larger model.
    """
    attention = attention_ranks(ctx.size, share)
    shape = Shape.dealt(ctx.size - attention, tokens_per_rank=tokens_per_batch, **sizes)
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


def _held(ctx: Context, technique: RoundTrip | Experts, words: int, **figures: float) -> dict[str, Any]:
    """Study a technique; then send every exact payload as it sends its rows, of `words` words."""
    fp8, sent = isinstance(technique, ExpertsFp8), technique.sent
    return {
        **answer(study(ctx, technique)),
        "figures": {"imbalance": imbalance(sent), **figures},
        **(exact_fp8(ctx, sent, words) if fp8 else exact(ctx, enlarged(ctx, sent, words))),
    }
