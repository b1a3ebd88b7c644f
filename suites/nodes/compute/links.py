"""Links of a node: between each GPU and the host, and between every two GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fixtures.ranks import timing
from fixtures.ranks.exact.compare import keep
from fixtures.ranks.exact.payload import key, words
from fixtures.ranks.steps import Context, Unsupported
from suites.nodes.compute.series import BUDGET_S, ITERATIONS, Series, Timed, timed
from suites.nodes.compute.wrong import Corruption, unlike

HOST_BYTES = 256 << 20
PEER_BYTES = 256 << 20
_WORD_BYTES = 8


def refuse_cpu(ctx: Context, what: str) -> None:
    """Raise Unsupported on a node without accelerators."""
    if ctx.device.type == "cpu":
        raise Unsupported(f"this node has no accelerator, and so no {what}")


def host(ctx: Context, near: torch.Tensor, far: torch.Tensor) -> tuple[list[Series], list[Corruption]]:
    """Time copies from `near`, in the host's memory, to `far`, on the device, and back; compare both ends."""
    wrong: list[Corruption] = []
    payload = _payload(ctx, ctx.rank, near)
    near.copy_(payload)
    far.zero_()
    size_bytes = float(near.numel() * _WORD_BYTES)
    series = timed(
        ctx, Timed("host_to_device", "pinned", size_bytes), lambda: far.copy_(near, non_blocking=True)
    )
    timing.complete(ctx)
    keep(wrong, unlike(ctx, "host to device", far, payload.to(far.device), 0))
    near.zero_()
    series += timed(
        ctx, Timed("device_to_host", "pinned", size_bytes), lambda: near.copy_(far, non_blocking=True)
    )
    timing.complete(ctx)
    keep(wrong, unlike(ctx, "device to host", near, payload, 0))
    return series, wrong


def peers(
    ctx: Context, devices: Sequence[torch.device], size_bytes: int = PEER_BYTES
) -> tuple[list[dict[str, Any]], list[Corruption]]:
    """Time a copy from every device to every other, and compare what arrived.

    One rank measures them all, one after the other: a process that touches a device keeps memory on it.
    """
    pairs, wrong = [], list[Corruption]()
    buffers = [torch.empty(size_bytes // _WORD_BYTES, dtype=torch.int64, device=one) for one in devices]
    for source in range(len(devices)):
        for target in range(len(devices)):
            if source != target:
                ctx.progress.phase(f"peer {source} to {target}")
                pairs.append(_pair(ctx, devices, buffers, (source, target), wrong))
    return pairs, wrong


def _pair(
    ctx: Context,
    devices: Sequence[torch.device],
    buffers: Sequence[torch.Tensor],
    pair: tuple[int, int],
    wrong: list[Corruption],
) -> dict[str, Any]:
    source, target = pair
    payload = _payload(ctx, source, buffers[source])
    buffers[source].copy_(payload)
    buffers[target].zero_()
    at_source = replace(ctx, device=devices[source], alone=True)
    timing.complete(replace(ctx, device=devices[target]))
    kernel = timing.Kernel(lambda: buffers[target].copy_(buffers[source], non_blocking=True))
    kind = devices[source].type
    samples = timing.measure(at_source, kernel, ITERATIONS[kind], BUDGET_S[kind], f"{source} to {target}")
    timing.complete(at_source)
    found = unlike(ctx, f"copy from device {source}", buffers[target], payload.to(devices[target]), 0)
    if found is not None:
        keep(wrong, {**found, "rank": target, "source_rank": source})
    size_bytes = buffers[source].numel() * _WORD_BYTES
    return {"from": source, "to": target, "amount": float(size_bytes), "seconds": samples.seconds}


def touch(devices: Sequence[torch.device]) -> None:
    """Open a context on every device; Unsupported where a device lets only one process in."""
    for device in devices:
        try:
            torch.empty(1, device=device)
        except RuntimeError as error:
            if "busy or unavailable" not in str(error):
                raise
            raise Unsupported(
                f"{device} lets no second process in, so that nobody can copy between two devices: "
                "its compute mode is exclusive (nvidia-smi -c DEFAULT changes it)"
            ) from error


def access(devices: Sequence[torch.device]) -> list[list[bool]]:
    """Whether each device can read another's memory without the host."""
    return [
        [one == other or torch.cuda.can_device_access_peer(one, other) for other in devices]
        for one in devices
    ]


def _payload(ctx: Context, number: int, like: torch.Tensor) -> torch.Tensor:
    return words([key(ctx.seed, number, 7)], 0, like.numel(), like.device)[0]
