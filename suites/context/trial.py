"""One run of a technique: parity, repeat, traffic and memory, as entries for the controller to judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from fixtures.ranks.collectives.calls import renamed
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.deliveries import Deliveries, record_deliveries
from fixtures.ranks.study.traffic import Traffic, count_traffic
from suites.context.layout import Layout, Span
from suites.context.ring_attention import BlockAttention, Tally, apply, wide
from suites.context.techniques import Ring, Shape, Technique, Tensors

EXACT, TRAINED = torch.float64, torch.bfloat16
NAMES = ("forward", "grad:q", "grad:k", "grad:v")
Entries = list[dict[str, Any]]


@dataclass(frozen=True)
class Found:
    """Output and gradients of one forward and backward, and what they issued, computed and were sent."""

    results: tuple[torch.Tensor, ...]
    forward: Traffic
    backward: Traffic
    tally: Tally
    delivered: Deliveries


def drawn(ctx: Context, shape: Shape, dtype: torch.dtype) -> Tensors:
    """The whole sequence, the same on every rank."""
    generator = torch.Generator().manual_seed(ctx.seed)
    heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
    sizes = [(shape.batch, count, shape.length, shape.dim) for count in heads]
    values = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    return Tensors(*(value.to(dtype).to(ctx.device) for value in values))


def unsharded(whole: Tensors, shape: Shape) -> tuple[torch.Tensor, ...]:
    """Output and gradients of torch's own attention over the whole sequence, on this rank alone.

    Head by head: in a large world all scores at once would not fit, and nothing is left to do about groups.
    """
    kept = wide(whole.q.dtype)
    found = [torch.empty_like(whole.q), torch.empty_like(whole.q)]
    shared = [torch.zeros_like(whole.k, dtype=kept), torch.zeros_like(whole.v, dtype=kept)]
    for head in range(shape.heads):
        key = head * shape.kv_heads // shape.heads
        one = Tensors(whole.q[:, head], whole.k[:, key], whole.v[:, key], whole.gradient[:, head])
        results = _one_head(one, shape.causal)
        for place, result in zip(found, results[:2], strict=True):
            place[:, head] = result
        for total, result in zip(shared, results[2:], strict=True):
            total[:, key] += result
    return *found, *(total.to(whole.k.dtype) for total in shared)


def _one_head(one: Tensors, causal: bool) -> tuple[torch.Tensor, ...]:
    leaves = _leaves(one)
    out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    return out.detach(), *torch.autograd.grad(out, leaves, one.gradient)


def passed(technique: Technique, part: Tensors) -> Found:
    """Forward and backward with this rank's part."""
    leaves, tally = _leaves(part), Tally()
    with record_deliveries() as delivered:
        with count_traffic() as forward:
            out = technique.attend(*leaves, tally)
        with count_traffic() as backward:
            gradients = torch.autograd.grad(out, leaves, part.gradient)
    return Found((out.detach(), *gradients), forward, backward, tally, delivered)


def _leaves(tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = (tensor.detach().requires_grad_() for tensor in (tensors.q, tensors.k, tensors.v))
    return q, k, v


def trial(ctx: Context, technique: Technique) -> dict[str, list[dict[str, Any]]]:
    """Run in fp64 and in bf16, each twice and beside the unsharded run."""
    shape = technique.shape
    whole = drawn(ctx, shape, EXACT)
    right, part = unsharded(whole, shape), whole.each(technique.mine)
    ctx.progress.phase("fp64")
    first, again = passed(technique, part), passed(technique, part)
    ctx.progress.phase("bf16")
    trained, bf16, repeated = _trained(ctx, technique)
    pairs = list(zip(NAMES, first.results, right, strict=True))
    return {
        "parity": [
            parity.local(_alone(ctx, whole, shape, right[0])),
            *(parity.entry(name, found, technique.mine(wanted)) for name, found, wanted in pairs),
            *bf16,
            same("balance: work against its closed form", first.tally.work(), technique.pairs()),
        ],
        "repeat": _same(first, again, "", " in fp64") + repeated,
        "traffic": traffic(technique, first, EXACT) + traffic(technique, trained, TRAINED),
        "memory": held(technique, part, first.tally),
    }


def _alone(ctx: Context, whole: Tensors, shape: Shape, right: torch.Tensor) -> dict[str, Any]:
    """This rank's own kernel on one head of the whole sequence: wrong here, no peer had a part in it."""
    span = Span.of(torch.arange(shape.length), ctx.device)
    layout = Layout(0, span, (span,), shape.causal)
    head = torch.stack((whole.k[:, :1], whole.v[:, :1]))
    out = apply(BlockAttention, whole.q[:, :1], head, layout, Tally())
    return parity.entry("forward of one head on this rank alone", out, right[:, :1])


def _same(found: Found, again: Found, word: str, label: str) -> Entries:
    """Compare two runs from the same state, bit for bit: results, and what every exchange brought."""
    pairs = zip(NAMES, found.results, again.results, strict=True)
    results = [parity.equal(f"{word}{name}", other, one) for name, one, other in pairs]
    return results + found.delivered.entries(again.delivered, label)


def _trained(ctx: Context, technique: Technique) -> tuple[Found, Entries, Entries]:
    """bf16 against fp64 of the same numbers, by what the unsharded bf16 run is off; and against itself."""
    whole = drawn(ctx, technique.shape, TRAINED)
    right = unsharded(whole.each(lambda tensor: tensor.to(EXACT)), technique.shape)
    rounded = unsharded(whole, technique.shape)
    part = whole.each(technique.mine)
    found, again = passed(technique, part), passed(technique, part)
    entries = [
        parity.bf16_entry(name, one, technique.mine(two), technique.mine(three))
        for name, one, two, three in zip(NAMES, found.results, rounded, right, strict=True)
    ]
    return found, entries, _same(found, again, "bf16:", " in bf16")


def same(what: str, found: int, wanted: int) -> dict[str, Any]:
    """Two counts that must be equal, as an entry of "parity"."""
    return {"what": what, "error": float(abs(found - wanted)), "tolerance": 0.0}


def traffic(technique: Technique, seen: Found, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Forward and backward beside their closed forms."""
    word = "fp64" if dtype is EXACT else "bf16"
    forward = seen.forward.table(technique.forward_traffic(dtype), f"cp {word} forward")
    return forward + seen.backward.table(technique.backward_traffic(dtype), f"cp {word} backward")


def held(technique: Technique, part: Tensors, tally: Tally) -> list[dict[str, Any]]:
    """What forward keeps for backward, and what a ring has of other ranks' keys and values at a time."""
    leaves = _leaves(part)
    saved = memory.saved_activation_bytes(lambda: technique.attend(*leaves, Tally()))
    entries = [memory.entry("activations", saved, technique.saved_bytes(part.q.dtype))]
    if isinstance(technique, Ring):
        blocks = technique.buffer_bytes(part.q.dtype)
        entries.append(memory.entry("live unsharded", tally.buffer_bytes(), blocks))
    return entries


def works(ctx: Context, technique: Technique) -> list[int]:
    """The work that every rank really does in forward."""
    tally = Tally()
    part = drawn(ctx, technique.shape, EXACT).each(technique.mine)
    with torch.no_grad():
        technique.attend(part.q, part.k, part.v, tally)
    own = torch.tensor([tally.work()], device=ctx.device)
    everyone = own.new_empty(ctx.size)
    renamed("all_gather_single", "all_gather_into_tensor")(everyone, own)
    return [int(count) for count in everyone.tolist()]


def imbalance(counts: Sequence[int]) -> float:
    """The busiest rank's work over the mean: how much longer than needed everybody waits."""
    return max(counts) * len(counts) / sum(counts)
