"""Memory of a device: how fast it copies and adds, and whether every cell keeps what is written there.

Bandwidth counts what STREAM counts (J. McCalpin, "Memory bandwidth and machine balance", 1995), with N bytes
of each array:

    copy   a = b          2 N bytes: one read, one write
    triad  a = b + 3 c    3 N bytes: two reads, one write
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fixtures.node.facts import parse_meminfo
from fixtures.ranks.exact.compare import keep
from fixtures.ranks.steps import Context
from suites.nodes.amounts import ARRAY_BYTES
from suites.nodes.compute.series import Corruption, timed, unlike

_FACTOR = 3
_B_PERIOD, _C_PERIOD = 1021, 509  # primes: neighbouring tiles never hold the same numbers
_TILE = 1 << 22  # elements that are compared at a time
_WORD_BYTES = 8
CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 1 << 30}
MOST_BYTES = 32 << 20  # of a CPU's memory, which others need too
_LEFT_SHARE, _LEFT_BYTES = 0.02, 512 << 20  # of a GPU's: for its libraries
_CPU_SHARE = 16


def bandwidth(ctx: Context, brief: bool = False) -> dict[str, Any]:
    """Time both kernels, and compare what each left in memory."""
    count = ARRAY_BYTES[ctx.device.type] // 4
    a = torch.empty(count, dtype=torch.float32, device=ctx.device)
    b, c = (_numbers(0, count, period, ctx.device) for period in (_B_PERIOD, _C_PERIOD))
    wrong: list[Corruption] = []
    a.fill_(torch.nan)
    series = timed(ctx, lambda: a.copy_(b), "copy", "a = b", amount=2.0 * 4 * count, brief=brief)
    keep(wrong, _compare(ctx, "copy", a, 0))
    a.fill_(torch.nan)
    add = partial(torch.add, b, c, alpha=_FACTOR, out=a)
    series += timed(ctx, add, "triad", "a = b + 3 c", amount=3.0 * 4 * count, brief=brief)
    keep(wrong, _compare(ctx, "triad", a, _FACTOR))
    return {"series": series, "wrong": wrong}


def _numbers(start: int, count: int, period: int, device: torch.device) -> torch.Tensor:
    return torch.arange(start, start + count, device=device).remainder_(period).to(torch.float32)


def _compare(ctx: Context, what: str, a: torch.Tensor, factor: int) -> Corruption | None:
    """Compare every element with b + factor c; all are small whole numbers."""
    for start in range(0, a.numel(), _TILE):
        piece = a[start : start + _TILE]
        right = _numbers(start, piece.numel(), _B_PERIOD, a.device)
        right += factor * _numbers(start, piece.numel(), _C_PERIOD, a.device)
        found = unlike(ctx, what, piece, right, 0, start=start)
        if found is not None:
            return found
    return None


# every cell


def pattern(ctx: Context) -> dict[str, Any]:
    """Fill (nearly) all of the memory, each word with its own number and then with the inverse, and read it.

    All of it is written before any of it is read, so that two addresses of the same cell are found.
    """
    free_bytes = _free_bytes(ctx)
    chunks = _allocate(ctx, free_bytes)
    wrong: list[Corruption] = []
    began = time.perf_counter()
    for number, inverse in enumerate((0, -1)):
        ctx.progress.phase(f"pattern {number}")
        for start, piece in _tiles(chunks):
            piece.copy_(_words(start, piece, inverse))
        for start, piece in _tiles(chunks):
            keep(wrong, unlike(ctx, "pattern", piece, _words(start, piece, inverse), number, start=start))
    seconds = time.perf_counter() - began
    filled = sum(chunk.numel() for chunk in chunks) * _WORD_BYTES
    chunks.clear()
    if ctx.device.type == "cuda":
        torch.cuda.empty_cache()
    return {
        "pattern": {"bytes": filled, "free_bytes": free_bytes, "passes": 2, "seconds": seconds},
        "wrong": wrong,
    }


def _free_bytes(ctx: Context) -> int:
    if ctx.device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(ctx.device)[0])
    available = parse_meminfo(Path("/proc/meminfo").read_text(encoding="utf-8"), "MemAvailable")
    return min(MOST_BYTES, available // _CPU_SHARE // ctx.size)


def _allocate(ctx: Context, free_bytes: int) -> list[torch.Tensor]:
    """Allocate it in chunks; less than was free where the allocator cannot fit another chunk."""
    left = free_bytes
    if ctx.device.type == "cuda":
        left -= max(int(_LEFT_SHARE * free_bytes), _LEFT_BYTES)
    chunks: list[torch.Tensor] = []
    chunk_bytes = CHUNK_BYTES[ctx.device.type]
    while left >= _WORD_BYTES:
        count = min(left, chunk_bytes) // _WORD_BYTES
        try:
            chunks.append(torch.empty(count, dtype=torch.int64, device=ctx.device))
        except torch.OutOfMemoryError:
            break
        left -= count * _WORD_BYTES
    return chunks


def _tiles(chunks: list[torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """Every tile, with the number of its first word."""
    start = 0
    for chunk in chunks:
        for piece in torch.split(chunk, _TILE):
            yield start, piece
            start += piece.numel()


def _words(start: int, piece: torch.Tensor, inverse: int) -> torch.Tensor:
    """The number of each word, spread over all of its bits; with an inverse of -1 every bit is flipped."""
    numbers = torch.arange(start, start + piece.numel(), dtype=torch.int64, device=piece.device)
    return numbers.mul_(-7046029254386353131).bitwise_xor_(inverse)
