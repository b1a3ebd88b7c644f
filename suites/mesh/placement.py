"""On which nodes the ranks of every axis are: what each says of its machine, through the axis' own group.

An axis of a mesh is where it should be if its group spans as many machines as it would with the ranks
numbered node by node: 1 for an axis that fits into a node, more for one that does not.
"""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from typing import Any

import torch

from fixtures.ranks.collectives.calls import renamed
from fixtures.ranks.steps import Context
from suites.mesh.axes import Layout, Mesh

_NAME_BYTES = 64  # what Linux allows a host name
_KEY_BYTES = 16


def machine() -> tuple[str, str]:
    """The host name, and what tells this machine from every other: its boot and its network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname(), f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def entries(ctx: Context, layout: Layout, mesh: Mesh) -> list[dict[str, Any]]:
    """For every axis of several ranks: the machines of this rank's group, and on how many it should be."""
    ctx.progress.phase("placement")
    several = [name for name in layout.names if layout.size(name) > 1]
    return [entry(ctx, layout, name, mesh.group(name)) for name in several]


def entry(ctx: Context, layout: Layout, name: str, group: Any) -> dict[str, Any]:  # noqa: ANN401 - a process group
    """The same for one axis, whose group is given."""
    told = _told(ctx, group, layout.size(name))
    members = layout.members(ctx.rank, name)
    in_order = [host for host in dict.fromkeys(ctx.hosts) for _ in range(ctx.hosts.count(host))]
    return {
        "axis": name,
        "ranks": members,
        "machines": [host for host, _ in dict.fromkeys(told)],
        "expected": len({in_order[rank] for rank in members}),
    }


def _told(ctx: Context, group: Any, size: int) -> list[tuple[str, str]]:  # noqa: ANN401 - a process group
    """What every rank of a group says of its machine."""
    name, key = machine()
    said = name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0") + hashlib.sha256(key.encode()).digest()
    said = said[: _NAME_BYTES + _KEY_BYTES]
    sent = torch.tensor(list(said), dtype=torch.uint8, device=ctx.device)
    received = sent.new_empty(size * len(said))
    renamed("all_gather_single", "all_gather_into_tensor")(received, sent, group=group)
    rows = [bytes(row) for row in received.view(size, -1).tolist()]
    return [
        (row[:_NAME_BYTES].rstrip(b"\0").decode(errors="replace"), row[_NAME_BYTES:].hex()) for row in rows
    ]
