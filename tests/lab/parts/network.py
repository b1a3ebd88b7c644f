"""The lab's wiring, as batches for `ip`, `bridge` and `tc`: one bridge, whose port to n02 is called n02."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence

from tests.lab.plan import BRIDGE, CONTROLLER_ADDRESS, NETWORK, Plan, burst_bytes

_BRIDGE_MAC = "02:77:00:00:ff:fe"  # fixed: otherwise it is the lowest of the ports' and changes with them


class WiringError(Exception):
    """ip, tc or bridge refused."""


def batch(program: str, lines: Iterable[str]) -> None:
    """Run commands in one process, in the caller's network namespace; stops at the first that fails."""
    text = "\n".join(lines)
    if not text:
        return
    done = subprocess.run(
        [program, "-batch", "-"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise WiringError(f"{program} refused ({done.stderr.strip()}) one of:\n{text}")


def make_bridge() -> None:
    """Make the bridge, which is also how the controller reaches the nodes."""
    batch(
        "ip",
        [
            "link set lo up",
            f"link add name {BRIDGE} address {_BRIDGE_MAC} type bridge stp_state 0 mcast_snooping 0",
            f"link set {BRIDGE} addrgenmode none up",
            f"address add {CONTROLLER_ADDRESS}/{NETWORK.prefixlen} dev {BRIDGE}",
        ],
    )


def connect(plan: Plan, nodes: Sequence[tuple[str, int]]) -> None:
    """Plug each (name, process id) into the bridge: one end here, the other as eth0 in the node."""
    links = [
        f"link add name {name} type veth peer name eth0 address {plan.mac(name)} netns {pid}"
        for name, pid in nodes
    ]
    links += [f"link set {name} master {BRIDGE} addrgenmode none up" for name, _ in nodes]
    batch("ip", links)
    # Packets to the nowhere address belong to the port that they came from, so the bridge drops them.
    batch("bridge", [f"fdb replace {plan.nowhere(name)} dev {name} master static" for name, _ in nodes])
    if plan.rate is not None:
        batch("tc", [shaper(name, plan.rate) for name, _ in nodes])


def disconnect(name: str) -> None:
    """Remove the port of a node that is off, if the kernel has not done so yet."""
    subprocess.run(["ip", "link", "del", name], stderr=subprocess.DEVNULL, timeout=60, check=False)


def shaper(device: str, rate: str) -> str:
    """A line for `tc` that shapes what `device` sends, and replaces any earlier shaper."""
    return f"qdisc replace dev {device} root tbf rate {rate} burst {burst_bytes(rate)} latency 50ms"
