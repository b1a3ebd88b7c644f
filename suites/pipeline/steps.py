"""What the ranks run for the pipeline suite.

The model is cut into stages; p ranks have v stages each, and m micro-batches of `rows` rows of `width` go
through them. Over every edge between stages on different ranks go m activations one way and m gradients the
other, rows x width elements each: rank r sends as many tensors as it receives,

    m x (edges of its stages to other ranks)        (an inner rank: 2m with v = 1, 4m looped, 4m in a V)

A schedule (`suites.pipeline.schedules` has the papers) says which rank does what and when. Every step returns
one training step compared with the unsharded model, how long the ranks waited for each other (the bubble:
makespan over busy time, minus 1) with stages of a calibrated length, and the "schedule" of that bubble:
[kind, stage, micro-batch, begin, end] of every operation of this rank.
"""

from __future__ import annotations

from typing import Any

from fixtures.ranks.steps import Context, step
from suites.pipeline import edges as pipeline_edges
from suites.pipeline.technique import run


@step
def gpipe(ctx: Context, **size: int) -> dict[str, Any]:
    """All forward, all backward. In flight: m. Bubble: (p - 1)/m.

    Huang et al., "GPipe", arXiv:1811.06965.
    """
    return run(ctx, "gpipe", **size)


@step
def one_f_one_b(ctx: Context, **size: int) -> dict[str, Any]:
    """p - r forwards, then one backward and one forward in turn. In flight: p - r. Bubble: (p - 1)/m.

    Narayanan et al., arXiv:2006.09503 (PipeDream-Flush).
    """
    return run(ctx, "one_f_one_b", **size)


@step
def interleaved(ctx: Context, **size: int) -> dict[str, Any]:
    """v stages per rank, round-robin. In flight: (v - 1)p + 2(p - 1 - r) + 1. Bubble: (p - 1)/(v m).

    Narayanan et al., arXiv:2104.04473, section 2.2.
    """
    return run(ctx, "interleaved", **size)


@step
def zero_bubble(ctx: Context, **size: int) -> dict[str, Any]:
    """Interleaved, the weights' gradients delayed. In flight: v p. Bubble, with F = I = W: (p - 1)/(3 v m).

    Qi et al., arXiv:2401.10241.
    """
    return run(ctx, "zero_bubble", **size)


@step
def zbv(ctx: Context, **size: int) -> dict[str, Any]:
    """Two stages per rank in a V. In flight: 2p. Bubble, with F = I = W: (p - 1)/(6m).

    Qi et al., arXiv:2401.10241, section 6 (ZB-V).
    """
    return run(ctx, "zbv", **size)


@step
def dualpipev(ctx: Context, **size: int) -> dict[str, Any]:
    """Two stages per rank in a V, a forward beside each backward. In flight: 2p + 1. Bubble: (p - 1)/(6m).

    deepseek-ai/DualPipe, dualpipe/dualpipev.py: that bubble with F = I = W and nothing overlapped.
    """
    return run(ctx, "dualpipev", **size)


@step
def edges(ctx: Context, **size: Any) -> dict[str, Any]:  # noqa: ANN401 - its numbers and their names
    """Activations to the next stage and gradients to the one before, at once, as in the steady state of 1F1B.

    With n pipelines rank r sends `size_bytes` to r + n (unless last) and to r - n (unless first), and
    receives as much. Every bit is compared with a payload that names its sender, direction and iteration.
    "edge" is the bandwidth of one direction with all at once; "edges" that of each by itself, by receiver.
    """
    return pipeline_edges.run(ctx, **size)
