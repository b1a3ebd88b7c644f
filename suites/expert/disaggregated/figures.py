"""How busy attention and experts were on separate ranks, and how long a pass took: measured, and by formula.

The controller computes it from the "paced" seconds of every rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from suites.expert.issued import attention_ranks


class Paced(NamedTuple):
    """Seconds of a rank: a pass of one micro-batch and its mean stage, a pass of all and its mean stage."""

    alone_s: float
    stage_alone_s: float
    span_s: float
    stage_s: float


def read(result: Mapping[str, Any]) -> Paced:
    """What a rank timed; LookupError, TypeError, ValueError or OverflowError if it does not say that."""
    paced = Paced(*result["paced"])
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in paced):
        raise ValueError("seconds are positive")
    return paced


def figures(step: str, asked: Mapping[str, Any], ranks: Sequence[Paced]) -> dict[str, float]:
    """Utilisation of both sides and span of the pass, measured and by the formula.

    The gain in utilisation of m micro-batches over one is m times the span of one over the span of all.

    The transfer time is what a pass of one micro-batch takes beyond its stages: (span / L - Ta - Te) / 2.
    """
    layers, micro_batches = asked["layers"], asked["micro_batches"]
    attention = attention_ranks(len(ranks), asked.get("share", (1, 1)))
    sides = ranks[:attention], ranks[attention:]
    alone_s, span_s = max(rank.alone_s for rank in ranks), max(rank.span_s for rank in ranks)
    transfers_s = alone_s / layers - sum(max(rank.stage_alone_s for rank in side) for side in sides)
    transfer_s = max(transfers_s, 0.0) / 2
    attention_s, expert_s = [max(rank.stage_s for rank in side) for side in sides]
    expected_s = expected_span_s(
        attention_s, expert_s, transfer_s, layers=layers, micro_batches=micro_batches
    )
    work = layers * micro_batches
    busy = [work * fmean(rank.stage_s for rank in side) / span_s for side in sides]
    return {
        "utilisation": min(busy),
        "gain": micro_batches * alone_s / span_s,
        "expected_gain": micro_batches * alone_s / expected_s,
        "attention_utilisation": busy[0],
        "expert_utilisation": busy[1],
        "expected_attention_utilisation": work * attention_s / expected_s,
        "expected_expert_utilisation": work * expert_s / expected_s,
        "span_ms": span_s * 1e3,
        "expected_span_ms": expected_s * 1e3,
        "transfer_ms": transfer_s * 1e3,
    }


def expected_span_s(
    attention_s: float, expert_s: float, transfer_s: float, *, layers: int, micro_batches: int
) -> float:
    """A pass of L layers and m micro-batches: (Ta + Te + 2 Tc) + Tf (m L - 1), Tf = max(Ta, Te).

    Ta, Te and Tc are a stage of attention, one of the experts, and a transfer. That is MegaScale-Infer
    (arXiv:2504.02263), which asks for m Tf >= Ta + Te + 2 Tc. With fewer micro-batches a layer lasts as long
    as one round trip: (Ta + Te + 2 Tc) L + Tf (m - 1).
    """
    trip_s = attention_s + expert_s + 2 * transfer_s
    slower_s = max(attention_s, expert_s)
    if micro_batches * slower_s >= trip_s:
        return trip_s + slower_s * (micro_batches * layers - 1)
    return trip_s * layers + slower_s * (micro_batches - 1)
