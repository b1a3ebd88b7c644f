"""Links of a node: between each GPU and the host, and between every two GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fixtures.ranks import timing
from fixtures.ranks.exact.compare import keep
from fixtures.ranks.exact.payload import key, words
from fixtures.ranks.steps import Context, Unsupported
from suites.nodes.amounts import COPIED_BYTES
from suites.nodes.compute.series import BUDGET_S, ITERATIONS, Corruption, Series, timed, unlike

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
    there, back = partial(far.copy_, near, non_blocking=True), partial(near.copy_, far, non_blocking=True)
    series = timed(ctx, there, "host_to_device", "pinned", amount=size_bytes)
    timing.complete(ctx)
    keep(wrong, unlike(ctx, "host to device", far, payload.to(far.device), 0))
    near.zero_()
    series += timed(ctx, back, "device_to_host", "pinned", amount=size_bytes)
    timing.complete(ctx)
    keep(wrong, unlike(ctx, "device to host", near, payload, 0))
    return series, wrong


def peers(
    ctx: Context, devices: Sequence[torch.device], size_bytes: int = COPIED_BYTES
) -> tuple[list[dict[str, Any]], list[Corruption]]:
    """Time a copy from every device to every other, and compare what arrived.

    One rank measures them all, one after the other: a process that touches a device keeps memory on it.
    """
    pairs, wrong = [], list[Corruption]()
    buffers = [torch.empty(size_bytes // _WORD_BYTES, dtype=torch.int64, device=one) for one in devices]
    for source, target in itertools.permutations(range(len(devices)), 2):
        ctx.progress.phase(f"peer {source} to {target}")
        sent, received, kind = buffers[source], buffers[target], devices[source].type
        payload = _payload(ctx, source, sent)
        sent.copy_(payload)
        received.zero_()
        at_source = replace(ctx, device=devices[source], alone=True)
        timing.complete(replace(ctx, device=devices[target]))
        kernel = timing.Kernel(partial(received.copy_, sent, non_blocking=True))
        samples = timing.measure(at_source, kernel, ITERATIONS[kind], BUDGET_S[kind], f"{source} to {target}")
        timing.complete(at_source)
        found = unlike(ctx, f"copy from device {source}", received, payload.to(devices[target]), 0)
        if found is not None:
            keep(wrong, {**found, "rank": target, "source_rank": source})
        amount = float(sent.numel() * _WORD_BYTES)
        pairs.append({"from": source, "to": target, "amount": amount, "seconds": samples.seconds})
    return pairs, wrong


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
