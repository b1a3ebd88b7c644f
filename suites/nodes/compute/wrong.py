"""Compares a result bit for bit with what it must be, and reports corruption in the common form."""

from __future__ import annotations

from typing import Any

import torch

from fixtures.ranks.exact.compare import WINDOW
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
    first, width = int(places[0]), 8 * found.element_size()
    values = [int(one[first]) & ((1 << width) - 1) for one in (seen, wanted)]
    return {
        "rank": ctx.rank,
        "source_rank": ctx.rank,
        "collective": what.removesuffix(f" {NAMES[found.dtype]}"),
        "dtype": NAMES[found.dtype],
        "size_bytes": found.numel() * found.element_size(),
        "iteration": iteration,
        "first_offset": start + first,
        "count": places.numel(),
        "found": f"0x{values[0]:0{width // 4}x}",
        "expected": f"0x{values[1]:0{width // 4}x}",
        "looks_like": _looks_like(seen, wanted, places),
    }


def _looks_like(seen: torch.Tensor, wanted: torch.Tensor, places: torch.Tensor) -> str:
    """Name the bit, if the first of the wrong elements all differ in the same one."""
    sample = places[:WINDOW]
    differences = torch.unique(seen[sample] ^ wanted[sample]).tolist()
    number = int(differences[0]) & ((1 << 8 * seen.element_size()) - 1)
    if len(differences) != 1 or bin(number).count("1") != 1:
        return ""
    where = f"bit {number.bit_length() - 1} flipped"
    return where if places.numel() == 1 else f"{where} in {places.numel()} elements"
