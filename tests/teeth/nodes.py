"""Seeded bugs of single devices: products, memory, repeats, kernels, and what happens under load."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from suites.nodes import test_compute, test_memory, test_repeatability
from tests.teeth.bug import Bug, Maker, Patch, planted, replacing
from tests.teeth.patches import kernels
from tests.teeth.patches.flips import flip, transient

Call = Callable[..., Any]
_CASES = [
    *(test_compute.OVERLAP + test_compute.TRAINING + test_compute.KERNELS),
    *(test_memory.MEMORY + test_memory.PATTERN + test_repeatability.REPEATED),
]
_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "nodes.matmul": {"dtype": "fp32"},
    **{case.step: case.parameters for case in _CASES},
}


def _bug(step: str, name: str, patch: Patch, *red: str, size: int = 2) -> Bug:
    return Bug(name, f"nodes.{step}", _PARAMETERS[f"nodes.{step}"], patch, red, size)


def flipped(when: Callable[[int], bool], element: int = 3, bit: int = 0, every_rank: bool = False) -> Maker:
    """Flip a bit of the results, on rank 1, of the calls whose number, from 1, is meant."""

    def make(original: Call) -> Call:
        count = itertools.count(1)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if when(next(count)) and (every_rank or dist.get_rank() == 1) and result.numel() > element:
                flip(result.detach(), element, bit)
            return result

        return call

    return make


def slow(nap_s: float) -> Maker:
    """Take so much longer on rank 1."""

    @replacing
    def make(original: Call, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        end = time.monotonic() + (nap_s if dist.get_rank() == 1 else 0.0)
        while time.monotonic() < end:
            pass
        return result

    return make


def without_work(original: Call) -> Call:
    """Return at once and leave the output as it was."""
    return lambda *args, out=None, **kwargs: original(*args, **kwargs) if out is None else out


@replacing
def all_but_the_last(
    original: Call, target: torch.Tensor, source: torch.Tensor, **kwargs: Any
) -> torch.Tensor:
    """Copy all elements but the last."""
    if target.dim() != 1 or target.numel() < 1 << 20:
        return original(target, source, **kwargs)  # type: ignore[no-any-return]
    original(target[:-1], source[:-1], **kwargs)
    return target


@replacing
def without_factor(original: Call, *args: Any, alpha: float = 1, **kwargs: Any) -> Any:
    """Add without the factor."""
    return original(*args, **kwargs)


def two_addresses(original: Call) -> Call:
    """Hand out the same cells twice."""
    made: dict[tuple[Any, ...], torch.Tensor] = {}

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("dtype") is not torch.int64 or args[0] < 1 << 16:
            return original(*args, **kwargs)  # type: ignore[no-any-return]
        return made.setdefault(args, original(*args, **kwargs))

    return call


def no_number_at(call_number: int) -> Maker:
    """Give a loss that is no number, once."""

    def make(original: Call) -> Call:
        count = itertools.count(1)
        return lambda *args, **kwargs: (
            original(*args, **kwargs) * (torch.nan if next(count) == call_number else 1.0)
        )

    return make


def upwards(original: Call) -> Call:
    """Climb the gradient."""
    return torch._foreach_add_


BUGS = [
    _bug(
        "matmul", "a bit of a product flips", planted(torch, "mm", flipped(lambda n: True, bit=30)), "wrong"
    ),
    _bug("matmul", "nothing is multiplied", planted(torch, "mm", without_work), "wrong"),
    _bug("matmul", "one device is slow", planted(torch, "mm", slow(0.08)), "series"),
    _bug(
        "memory", "the last element is not copied", planted(torch.Tensor, "copy_", all_but_the_last), "wrong"
    ),
    _bug("memory", "triad without its factor", planted(torch, "add", without_factor), "wrong"),
    _bug("memory", "one device adds slowly", planted(torch, "add", slow(0.15)), "series"),
    _bug("pattern", "a cell loses a bit", planted(torch.Tensor, "copy_", flipped(lambda n: n == 3)), "wrong"),
    _bug("pattern", "two addresses of one cell", planted(torch, "empty", two_addresses), "wrong"),
    _bug("repeatability", "lowest bit flips once", planted(torch, "mm", flipped(lambda n: n == 7)), "wrong"),
    _bug(
        "repeatability",
        "a sum flips once",
        planted(torch.Tensor, "sum", flipped(lambda n: n == 4)),
        "wrong",
    ),
    _bug(
        "repeatability",
        "one device always multiplies wrongly",
        planted(torch, "mm", flipped(lambda n: True)),
        "digests",
        size=3,
    ),
    _bug("overlap", "lowest bit of the sum flips", transient("all_reduce", 3, element=100), "wrong"),
    _bug("overlap", "a product beside it is wrong", planted(torch, "mm", flipped(lambda n: n == 5)), "wrong"),
    _bug("training", "a loss is no number", planted(functional, "cross_entropy", no_number_at(5)), "losses"),
    _bug("training", "the weights go up", planted(torch, "_foreach_sub_", upwards), "losses"),
    _bug("kernels", "bf16 products are made of fp8", kernels.products_of_fp8, "wrong"),
    _bug("kernels", "casts to bf16 cut off", kernels.casts_cut_off, "wrong"),
    _bug("kernels", "seeds are ignored", kernels.seeds_ignored, "wrong"),
    _bug("kernels", "silu of another constant", kernels.silu_of_another_constant, "wrong"),
]
