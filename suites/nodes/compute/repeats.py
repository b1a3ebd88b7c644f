"""The same kernels on the same numbers, again and again: silent corruption shows as a bit that changes.

No tolerance: a healthy device gives the same bits every time. The distinct results of each kernel are kept on
the device, up to a few, and the most frequent one is taken as right. Its digest goes to the controller, which
compares devices that should agree.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fixtures.ranks.exact.compare import keep
from fixtures.ranks.exact.dtypes import NAMES
from fixtures.ranks.steps import Context
from fixtures.ranks.study.models import Block, repeatable, seeded
from suites.nodes.compute.series import Corruption, unlike

MOST_KINDS = 4
SIZES: Mapping[str, Mapping[str, int]] = {
    "cpu": {"side": 96, "row": 1 << 14, "width": 32, "heads": 4, "length": 32, "batch": 1},
    "cuda": {"side": 4096, "row": 1 << 24, "width": 2048, "heads": 16, "length": 1024, "batch": 2},
}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of /proc/cpuinfo: what a library chooses its code by, on x86 and on Arm.
_CPU_FIELDS = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
)

# What multiplies on GPUs. torch's own build says which it was made with, and a node may load another: pip
# installs nvidia-cublas by itself, and LD_LIBRARY_PATH goes before it.
_MULTIPLIES = re.compile(r"/(lib(?:cublas|cublasLt|rocblas|hipblaslt)\.so[^/\n]*)$")

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


# what must be equal before two devices can be expected to compute the same bits


def kind_of(device: torch.device, cpuinfo: str = "/proc/cpuinfo") -> dict[str, Any]:
    """Name the hardware and the software of a device; `device` is "" where the hardware cannot be told."""
    build = hashlib.blake2b(torch.__config__.show().encode(), digest_size=8).hexdigest()
    software = {
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "hip": str(torch.version.hip),
        "build": build,
    }
    if device.type == "cpu":
        return {"device": _cpu(cpuinfo), "threads": torch.get_num_threads(), **software}
    properties = torch.cuda.get_device_properties(device)
    arch = getattr(properties, "gcnArchName", f"sm{properties.major}{properties.minor}")
    return {
        "device": properties.name,
        "arch": str(arch),
        "units": properties.multi_processor_count,
        "libraries": libraries(),
        **software,
    }


def libraries(maps: str = "/proc/self/maps") -> str:
    """The loaded libraries that multiply, with their sizes: few names tell a version."""
    found = set[str]()
    for line in Path(maps).read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.split(maxsplit=5)[-1]
        if name := _MULTIPLIES.search(path):
            found.add(f"{name[1]} of {Path(path).stat().st_size if Path(path).exists() else 'unknown'} bytes")
    return ", ".join(sorted(found))


def _cpu(cpuinfo: str) -> str:
    """The model, and a digest of what the first processor says of itself; "" when it says no model."""
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines if name.strip() in _CPU_FIELDS}
    name = said.get("model name") or said.get("CPU part", "")
    digest = hashlib.blake2b(repr(sorted(said.items())).encode(), digest_size=4).hexdigest()
    return f"{name} ({digest})" if name else ""
