"""How fast a technique's own pattern is, and how much of it hides behind the computation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fixtures.ranks import timing
from fixtures.ranks.steps import Context
from fixtures.ranks.study.overlap import hidden_share
from suites.context.ring_attention import Tally
from suites.context.techniques import Ring, Shape, Technique, Tensors

ITERATIONS = 10
BUDGET_S = 0.1
_FULL = 64  # ranks up to which a rank's part is as large as the device deserves
_TILE = 64  # tokens


@dataclass(frozen=True)
class Scale:
    """The part of one rank that is timed: long enough that blocks are more than their latency."""

    tokens: int
    dim: int
    dtype: torch.dtype


SCALES = {"cpu": Scale(128, 32, torch.float32), "cuda": Scale(4096, 128, torch.bfloat16)}


def figures(ctx: Context, make: Callable[[Context, Shape], Technique], shape: Shape) -> dict[str, float]:
    """Pattern: GB/s that a rank sends in forward, over the median time; a ring's overlap as well."""
    scale = SCALES[ctx.device.type]
    scale = replace(scale, tokens=tokens_of(scale, ctx.size))
    technique = make(ctx, replace(shape, batch=1, length=scale.tokens * ctx.size, dim=scale.dim))
    part = _part(technique, scale)
    moving_s = median_seconds(ctx, lambda: technique.move(part), "pattern")
    found = {"pattern": technique.sent_bytes(scale.dtype) / moving_s / 1e9}
    if isinstance(technique, Ring):
        computing_s = median_seconds(ctx, lambda: technique.compute(part), "computation")
        both_s = median_seconds(ctx, lambda: technique.attend(part.q, part.k, part.v, Tally()), "both")
        found["overlap"] = hidden_share(computing_s, moving_s, both_s)
    return found


def tokens_of(scale: Scale, ranks: int) -> int:
    """Tokens of a rank, fewer in a long ring: n blocks of t x t scores cost no more than _FULL blocks do."""
    fewer = scale.tokens * math.sqrt(min(_FULL / ranks, 1.0))
    return max(int(fewer) // _TILE * _TILE, _TILE)


def _part(technique: Technique, scale: Scale) -> Tensors:
    shape = technique.shape

    def drawn(heads: int) -> torch.Tensor:
        size = (1, heads, scale.tokens, scale.dim)
        return torch.randn(size, dtype=scale.dtype, device=technique.ctx.device)

    return Tensors(drawn(shape.heads), drawn(shape.kv_heads), drawn(shape.kv_heads), drawn(shape.heads))


def median_seconds(ctx: Context, action: Callable[[], object], label: str) -> float:
    """The median iteration, on the slowest rank."""
    with torch.no_grad():
        samples = timing.measure(ctx, _Repeated(action), ITERATIONS, BUDGET_S, label)
    return timing.agree(ctx, statistics.median(samples.seconds))


class _Repeated:
    """An action as something to time."""

    host_clock = False
    lockstep = False

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def prepare(self, i: int) -> None:
        """Nothing to restore."""

    def run(self, i: int) -> None:
        """Do it once."""
        self._action()
