"""Integers whose every bit is known, sent the way that a technique sends its keys and values."""

from __future__ import annotations

from typing import Any

import torch

from fixtures.ranks import timing
from fixtures.ranks.collectives.collectives import Collective
from fixtures.ranks.exact.compare import MOST_REPORTED, examine
from fixtures.ranks.exact.dtypes import format_of
from fixtures.ranks.exact.expected import Moved, Run, moved
from fixtures.ranks.exact.payload import poison
from fixtures.ranks.steps import Context
from suites.context.ring_attention import GRADIENTS, KEYS, Pass

DTYPE = "int32"
ELEMENTS = {"cpu": 4099, "cuda": 1 << 20}
ITERATIONS = 4


def around(ctx: Context) -> list[dict[str, Any]]:
    """Pass every rank's block all the way round, as keys go and gradients come home; see it at every stop.

    A wrong block is put right before it goes on, so that only the hop that spoiled it is blamed.
    """
    wrong: list[dict[str, Any]] = []
    ctx.progress.phase("exact ring")
    for i in range(ITERATIONS):
        block = _payload(ctx, ctx.rank, i)
        for number in range(1, ctx.size + 1):
            source, what = (ctx.rank - number) % ctx.size, KEYS if number < ctx.size else GRADIENTS
            block = _passed(ctx, block, what)
            corruption = _checked(ctx, block, source, i)
            if corruption is not None:
                block = _payload(ctx, source, i)
            _keep(wrong, corruption)
        ctx.progress.done(i + 1)
    return wrong


def _passed(ctx: Context, block: torch.Tensor, what: int) -> torch.Tensor:
    into = torch.empty_like(block)
    poison(into)
    arrived = Pass(block, into, ctx.rank, ctx.size, what).arrived()
    timing.complete(ctx)
    return arrived


def collectives(ctx: Context, *names: str) -> list[dict[str, Any]]:
    """Run each collective with a payload of its own every time, and compare every element."""
    wrong: list[dict[str, Any]] = []
    for name in names:
        work = Collective(ctx, name, DTYPE, "sum", ELEMENTS[ctx.device.type], fresh=True)
        ctx.progress.phase(f"exact {name}")
        for i in range(ITERATIONS):
            work.prepare(i)
            work.run(i)
            timing.complete(ctx)
            _keep(wrong, work.check(i))
            ctx.progress.done(i + 1)
    return wrong


def _payload(ctx: Context, rank: int, i: int) -> torch.Tensor:
    form, count = format_of(DTYPE), ELEMENTS[ctx.device.type]
    bits = moved(form, ctx.seed, range(rank, rank + 1), i, start=0, count=count, device=ctx.device)
    return bits[0].clone()


def _checked(ctx: Context, block: torch.Tensor, source: int, i: int) -> dict[str, Any] | None:
    form = format_of(DTYPE)
    runs = (Run(range(source, source + 1), 0, block.numel()),)
    earlier = tuple((j, j) for j in range(i - 1, -1, -1))
    right = Moved(form, ctx.seed, ctx.size, i, runs, ctx.device, (), earlier)
    about = {
        "rank": ctx.rank,
        "collective": "send_recv",
        "dtype": form.name,
        "size_bytes": block.numel() * form.item_bytes,
        "iteration": i,
    }
    corruption = examine(block.view(form.bits), right, about)
    return corruption and {**corruption, "source_rank": (ctx.rank - 1) % ctx.size}


def _keep(wrong: list[dict[str, Any]], corruption: dict[str, Any] | None) -> None:
    if corruption is not None and len(wrong) < MOST_REPORTED:
        wrong.append(corruption)
