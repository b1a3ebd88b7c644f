"""The same kernels on the same numbers, again and again: silent corruption shows as a bit that changes.

No tolerance: a healthy device gives the same bits every time. The distinct results of each kernel are kept on
the device, up to a few, and the most frequent one is taken as right. Its digest goes to the controller, which
compares devices that should agree.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fixtures.ranks.exact.compare import keep
from fixtures.ranks.exact.dtypes import NAMES
from fixtures.ranks.steps import Context
from fixtures.ranks.study.models import Block, repeatable, seeded
from suites.nodes.compute.identity import kind_of
from suites.nodes.compute.wrong import Corruption, unlike

MOST_KINDS = 4
SIZES: Mapping[str, Mapping[str, int]] = {
    "cpu": {"side": 96, "row": 1 << 14, "width": 32, "heads": 4, "length": 32, "batch": 1},
    "cuda": {"side": 4096, "row": 1 << 24, "width": 2048, "heads": 16, "length": 1024, "batch": 2},
}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Run = Callable[[], "list[torch.Tensor]"]


@dataclass
class Kind:
    """One result, and the repeats that gave it."""

    result: torch.Tensor
    repeats: list[int] = field(default_factory=list)


def kernels(device: torch.device, seed: int) -> dict[str, Run]:
    """The kernels by name. Their operands are drawn on the CPU, where every device gets the same."""
    size = SIZES[device.type]
    found: dict[str, Run] = {}
    with seeded(seed):
        for dtype in _DTYPES:
            a, b = (torch.randn(size["side"], size["side"]).to(device, dtype) for _ in range(2))
            found[f"matmul {NAMES[dtype]}"] = lambda a=a, b=b: [torch.mm(a, b)]  # type: ignore[misc]
        row = torch.randn(16, size["row"] // 16).to(device)
        found["reductions"] = lambda: [row.sum(1), row.softmax(1).square().sum(1), row.cumsum(1)[:, -1]]
        block = Block(size["width"], size["heads"], size["heads"], 2 * size["width"]).to(device)
        x = torch.randn(size["batch"], size["length"], size["width"]).to(device)
    found["transformer block"] = lambda: _block(block, x)
    return found


def _block(block: Block, x: torch.Tensor) -> list[torch.Tensor]:
    """Forward and backward: the output, and every gradient."""
    given = x.detach().requires_grad_()
    block.zero_grad(set_to_none=True)
    out = block(given)
    out.square().mean().backward()
    return [out, *(one.grad for one in (given, *block.parameters()) if one.grad is not None)]


def repeated(ctx: Context, repeats: int) -> dict[str, Any]:
    """Run every kernel `repeats` times: what differed, the digest of what did not, and on which device."""
    wrong: list[Corruption] = []
    digests: dict[str, dict[str, Any]] = {}
    for name, run in kernels(ctx.device, ctx.seed).items():
        ctx.progress.phase(name)
        kinds = _kinds(ctx, run, repeats)
        right = max(kinds, key=lambda kind: len(kind.repeats))
        for kind in kinds:
            if kind is not right:
                keep(wrong, unlike(ctx, name, kind.result, right.result, kind.repeats[0]))
        digests[name] = {
            "digest": digest(right.result),
            "repeats": repeats,
            "alike": len(right.repeats),
            "elements": right.result.numel(),
        }
    return {"wrong": wrong, "digests": digests, "kind": kind_of(ctx.device)}


def _kinds(ctx: Context, run: Run, repeats: int) -> list[Kind]:
    kinds: list[Kind] = []
    for number in range(repeats):
        with repeatable():
            result = torch.cat([one.detach().flatten() for one in run()])
        bits = result.view(torch.uint8)
        same = next((kind for kind in kinds if torch.equal(kind.result.view(torch.uint8), bits)), None)
        if same is not None:
            same.repeats.append(number)
        elif len(kinds) < MOST_KINDS:
            kinds.append(Kind(result, [number]))
        ctx.progress.done(number + 1)
    return kinds


def digest(tensor: torch.Tensor) -> str:
    """A digest of the bits, which needs no library but torch."""
    here = tensor.detach().cpu().contiguous()
    data = ctypes.string_at(here.data_ptr(), here.numel() * here.element_size())
    return hashlib.blake2b(data, digest_size=16).hexdigest()
