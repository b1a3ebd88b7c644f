"""On which machines the ranks of every axis are, as each rank reports through the axis' own group.

An axis of a mesh is where it should be if its group spans as many machines as it would with the ranks
numbered node by node: 1 for an axis that fits into a node, more for one that does not. Where a technique says
which ranks an axis is meant to have, it must span as many machines as those.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
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


def entries(
    ctx: Context, axes: Sequence[Among], meant: Mapping[str, Sequence[int]] | None = None
) -> list[dict[str, Any]]:
    """For every axis: the machines of this rank's group, and on how many it should be."""
    ctx.progress.phase("placement")
    in_order = [host for host in dict.fromkeys(ctx.hosts) for _ in range(ctx.hosts.count(host))]
    return [
        {
            "axis": axis.name,
            "ranks": list(axis.ranks),
            "machines": [host for host, _ in dict.fromkeys(_told(ctx, axis))],
            "expected": len({in_order[rank] for rank in (meant or {}).get(axis.name, axis.ranks)}),
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
