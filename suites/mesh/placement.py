"""Which ranks are in the group along every axis, and on which machines, as they say through that group."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fixtures.ranks.collectives.calls import renamed
from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context

_NAME_BYTES = 64  # what Linux allows a host name
_KEY_BYTES = 16


def machine() -> tuple[str, str]:
    """The host name, and what identifies this machine: its boot and its network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname(), f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def entries(ctx: Context, axes: Sequence[Among]) -> list[dict[str, Any]]:
    """For every axis: the ranks of this rank's group, and their machines."""
    ctx.progress.phase("placement")
    return [
        {
            "axis": axis.name,
            "ranks": list(axis.ranks),
            "machines": [host for host, _ in dict.fromkeys(_told(ctx, axis))],
        }
        for axis in axes
    ]


def _told(ctx: Context, axis: Among) -> list[tuple[str, str]]:
    """What every rank of an axis reports about its machine."""
    name, key = machine()
    said = name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0") + hashlib.sha256(key.encode()).digest()
    said = said[: _NAME_BYTES + _KEY_BYTES]
    sent = torch.tensor(list(said), dtype=torch.uint8, device=ctx.device)
    received = sent.new_empty(len(axis.ranks) * len(said))
    renamed("all_gather_single", "all_gather_into_tensor")(received, sent, group=axis.group)
    rows = [bytes(row) for row in received.view(len(axis.ranks), -1).tolist()]
    return [
        (row[:_NAME_BYTES].rstrip(b"\0").decode(errors="replace"), row[_NAME_BYTES:].hex()) for row in rows
    ]
