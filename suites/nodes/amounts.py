"""How much a device does in each iteration that is timed, for the ranks that do it and the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Powers of two that reach the plateau: fp32 takes ten times as long as a tensor core's formats.
SIDES = {
    "cuda": {"fp32": 8192, "tf32": 8192, "fp16": 16384, "bf16": 16384, "fp8_e4m3": 16384},
    "cpu": {"fp32": 256, "bf16": 256, "fp16": 128},
}
ARRAY_BYTES = {"cpu": 8 << 20, "cuda": 1 << 30}  # larger than the caches of a core, and of any GPU
COPIED_BYTES = 256 << 20  # between a device and the host, or another device


def product(side: int) -> float:
    """Operations of an n x n product: 2 n^3."""
    return 2.0 * side**3


def most(step: str, asked: Mapping[str, Any], on_gpu: bool) -> dict[str, float]:
    """The most operations or bytes of an iteration, by metric; where memory is in use, products are smaller.

    Copy reads one array and writes one, and triad reads two (McCalpin: STREAM, 1995).
    """
    kind, name = "cuda" if on_gpu else "cpu", step.partition(".")[2]
    if name == "matmul":
        return {"tflops": product(SIDES[kind].get(asked["dtype"], 0))}
    if name == "memory":
        return {"copy": 2.0 * ARRAY_BYTES[kind], "triad": 3.0 * ARRAY_BYTES[kind]}
    copies = {"host_links": ("host_to_device", "device_to_host"), "peer_links": ("peer_to_peer",)}
    return dict.fromkeys(copies[name], float(COPIED_BYTES))
