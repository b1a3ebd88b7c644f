"""Which transport really carried the data: NCCL's log, cross-checked with the byte counters of the ports."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixtures.node import processes
from fixtures.node.inventory.sysfs import driver_of, nics
from fixtures.node.nccl.log import from_nccl_log
from fixtures.wire.facts import EFA

Counters = dict[str, int]

WORD_BYTES = 4  # port_xmit_data counts words of four octets (InfiniBand Architecture, PortCounters)
ENOUGH = 0.5  # a port that moved half of the payload carried it: drivers may publish their counters late
MOST_LOG_BYTES = 64 << 20
LOG_HEAD_BYTES = 1 << 20
SETTLE_S = 2.0  # a driver may publish a port's counters once a second
IDLE_S = 1.1  # as long as it takes a driver to publish them
# Bytes that a port sent, where its driver counts them itself: EFA and Broadcom (bnxt_re), Pensando (ionic).
SENT = ("tx_bytes", "tx_rdma_ucast_bytes")
# The counters of network devices see GPUDirect-TCPX, and not TCPXO.
FAMILIES = {"infiniband": "ib:", "roce": "ib:", "verbs": "ib:", "efa": "efa:"}
FAMILIES |= {"sockets": "net:", "tcpx": "net:", "omnipath": "ib:"}


def read_counters(sysfs: str = "/sys") -> Counters:
    """Return the bytes that each port has sent since it came up: ib:mlx5_0/1, efa:rdmap86s0/1, net:eth0."""
    counters: Counters = {}
    base = Path(sysfs) / "class"
    for port in base.glob("infiniband/*/ports/*"):
        device = port.parent.parent
        name = f"{device.name}/{port.name}"
        efa = device.name.startswith(EFA) or driver_of(device) == "efa"
        sent = next((n for one in SENT if (n := _number(port / "hw_counters" / one)) is not None), None)
        words = _number(port / "counters/port_xmit_data")
        if sent is not None:
            counters[f"{'efa' if efa else 'ib'}:{name}"] = sent
        elif words is not None:
            counters[f"ib:{name}"] = words * WORD_BYTES
    for statistics in base.glob("net/*/statistics/tx_bytes"):
        sent = _number(statistics)
        if sent is not None:
            counters[f"net:{statistics.parent.parent.name}"] = sent
    return counters


def background(seconds: float = IDLE_S, sysfs: str = "/sys") -> dict[str, float]:
    """Return the bytes per second that each port sends while no rank does, for example for storage."""
    start, before = time.monotonic(), read_counters(sysfs)
    processes.wait_until(lambda: time.monotonic() >= start + seconds, seconds)
    after, took_s = read_counters(sysfs), time.monotonic() - start
    return {name: max(0, after.get(name, sent) - sent) / took_s for name, sent in before.items()}


def without(idle: Mapping[str, float], before: Counters, after: Counters, took_s: float) -> Counters:
    """Return the later reading less background traffic, and never below the earlier one."""
    return {
        name: max(before.get(name, 0), sent - int(idle.get(name, 0.0) * took_s))
        for name, sent in after.items()
    }


def settled_counters(
    before: Mapping[str, int], payload_bytes: int, sysfs: str = "/sys", deadline_s: float = SETTLE_S
) -> Counters:
    """Read the counters when they show the payload, or when every driver has had the time to publish it.

    Where there are RDMA ports only they count: other traffic does not show that RDMA counters are up to date.
    """
    found: Counters = {}
    wanted = ("ib:", "efa:") if any(name.startswith(("ib:", "efa:")) for name in before) else ("net:",)

    def shown() -> bool:
        found.update(read_counters(sysfs))
        moved = sum(found.get(name, sent) - sent for name, sent in before.items() if name.startswith(wanted))
        return moved >= ENOUGH * payload_bytes

    processes.wait_until(shown, deadline_s)
    return found


def describe(
    backend: str,
    before: Mapping[str, int],
    after: Mapping[str, int],
    payload_bytes: int,
    *,
    ranks: int,
    nodes: int,
    sysfs: str = "/sys",
) -> dict[str, Any]:
    """Say what carried `payload_bytes`, which this rank sent between two readings of the counters.

    `ranks` and `nodes` are the shape of the case's world. `agrees` is True when the counters show the payload
    where the claim says it went, False when they show it elsewhere, None when they show it nowhere. The
    counters are of the whole node, so a rank needs only its own payload in them. But a claim that nothing
    left the node is disproved only by the payloads of all its ranks: storage may have sent one meanwhile.
    """
    both = sorted(set(before) & set(after))
    moved = {name: after[name] - before[name] for name in both if after[name] > before[name]}
    if backend == "gloo":
        return _gloo(moved, payload_bytes, nodes)
    found = _nccl(ranks, nodes)
    if found["network"] == "verbs":
        _settle_verbs(found, Path(sysfs))
    found["counters"] = moved
    found["agrees"] = _agrees(found, moved, payload_bytes, nodes, ranks)
    return found


def _gloo(moved: Counters, payload_bytes: int, nodes: int) -> dict[str, Any]:
    """Gloo has sockets only; the counters show whether this payload went through them."""
    carried = {name: sent for name, sent in moved.items() if name.startswith("net:")}
    evidence = [f"{name} sent {sent} bytes" for name, sent in carried.items()]
    enough = ENOUGH * max(payload_bytes, 1)
    within = carried.pop("net:lo", 0) >= enough
    across = sum(carried.values()) >= enough
    alone = nodes == 1
    answer: dict[str, Any] = {"inside": "sockets" if within else "none", "network": "none", "agrees": True}
    why = []
    if not alone:
        answer["network"] = "sockets" if across else "unknown"
    elif not within:
        answer["inside"] = "unknown"
    if not (within if alone else across):
        answer["agrees"] = False if within or across else None
        where = "loopback" if alone else "any interface but loopback"
        why = [f"the counters do not show this rank's {payload_bytes} bytes on {where}"]
    return {**answer, "why": why, "evidence": evidence, "counters": moved}


def _nccl(ranks: int, nodes: int) -> dict[str, Any]:
    pattern = os.environ.get("NCCL_DEBUG_FILE", "")
    if not pattern:
        return _unknown("NCCL wrote no log: NCCL_DEBUG_FILE is not set")
    try:
        head, text = _ends(Path(expand(pattern)))
    except OSError as error:
        return _unknown(f"NCCL's log cannot be read: {error}")
    return from_nccl_log(text, ranks, nodes, head)


def _ends(path: Path) -> tuple[str, str]:
    """The beginning and the end of a long log, "" and all of a shorter one; every world appends to it."""
    with path.open("rb") as log:
        if path.stat().st_size <= MOST_LOG_BYTES:
            return "", log.read().decode("utf-8", "replace")
        head = log.read(LOG_HEAD_BYTES)
        log.seek(-(MOST_LOG_BYTES - LOG_HEAD_BYTES), os.SEEK_END)
        return head.decode("utf-8", "replace"), log.read().decode("utf-8", "replace")


def _unknown(why: str) -> dict[str, Any]:
    return {"inside": "unknown", "network": "unknown", "why": [why], "evidence": []}


def expand(pattern: str, hostname: str | None = None, pid: int | None = None) -> str:
    """Expand %h, %p and %% as NCCL does (NVIDIA/nccl src/debug.cc): the host name ends at its first dot."""
    host = (hostname or socket.gethostname()).split(".", 1)[0]
    values = {"%": "%", "h": host, "p": str(pid or os.getpid())}
    return re.sub("%([%hp])", lambda found: values[found[1]], pattern)


def _settle_verbs(found: dict[str, Any], sysfs: Path) -> None:
    """Ask the kernel what NCCL's log left open: the link layer, if all ports of the node have the same."""
    layers = {port.get("link_layer") for port in nics(sysfs, {}, {})}
    named = {"InfiniBand": "infiniband", "Ethernet": "roce", "Omni-Path": "omnipath"}
    layer = str(layers.pop()) if len(layers) == 1 else ""
    found["network"] = named.get(layer, "unknown")
    if layer in named:
        found["why"] = []
        found["evidence"] = [*found["evidence"], f"link_layer of every port of this node: {layer}"]


def _agrees(
    found: Mapping[str, Any], moved: Counters, payload_bytes: int, nodes: int, ranks: int
) -> bool | None:
    claimed = FAMILIES.get(found["network"])
    enough = ENOUGH * max(payload_bytes, 1)
    sent = {
        family: sum(n for name, n in moved.items() if name.startswith(family)) for family in FAMILIES.values()
    }
    sent["net:"] -= moved.get("net:lo", 0) if nodes != 1 else 0
    if claimed is None:
        fabric = max(sent["ib:"], sent["efa:"]) >= enough * ranks / nodes
        by_nvlink = nodes == 1 or found.get("mnnvl")
        return not fabric if found["network"] == "none" and by_nvlink else None
    if sent[claimed] >= enough:
        return True
    return False if any(other >= enough for family, other in sent.items() if family != claimed) else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
