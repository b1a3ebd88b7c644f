"""Compares a result bit for bit with what it must be, and reports corruption in the common form."""

from __future__ import annotations

from typing import Any

import torch

from fixtures.ranks.exact.compare import WINDOW, flipped_bit, hexadecimal
from fixtures.ranks.exact.dtypes import NAMES
from fixtures.ranks.steps import Context
from fixtures.ranks.study.parity import bits

Corruption = dict[str, Any]


def unlike(
    ctx: Context, what: str, found: torch.Tensor, right: torch.Tensor, iteration: int, *, start: int = 0
) -> Corruption | None:
    """Describe where `found` differs from `right`; None when it does not.

    No other rank takes part: this one is both the observer and the source. `start` is the offset of the first
    element of `found` in what is being compared.
    """
    if found.shape != right.shape or found.dtype != right.dtype:
        raise ValueError(f"{what}: compared {found.dtype} {found.shape} with {right.dtype} {right.shape}")
    seen, wanted = bits(found.detach()).flatten(), bits(right.detach()).flatten()
    if torch.equal(seen, wanted):
        return None
    places = torch.nonzero(seen != wanted).flatten()
    first, sample = int(places[0]), places[:WINDOW]
    return {
        "rank": ctx.rank,
        "source_rank": ctx.rank,
        "collective": what.removesuffix(f" {NAMES[found.dtype]}"),
        "dtype": NAMES[found.dtype],
        "size_bytes": found.numel() * found.element_size(),
        "iteration": iteration,
        "first_offset": start + first,
        "count": places.numel(),
        "found": hexadecimal(seen[first]),
        "expected": hexadecimal(wanted[first]),
        "looks_like": flipped_bit(seen[sample], wanted[sample], places.numel()),
    }
