"""The plan of a lab: how many nodes, their names, addresses and link rate."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

BRIDGE = "br0"
NETWORK = ipaddress.IPv4Network("10.77.0.0/16")
CONTROLLER_ADDRESS = str(NETWORK.broadcast_address - 1)  # the bridge itself
MOST_NODES = 1000
_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_SCALE = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_BURST_FLOOR_BYTES = 128 * 1024  # smaller bursts cost point-to-point traffic up to a third of the rate
_BURST_S = 0.004  # one scheduler tick at 250 Hz must fit into the bucket


def bits_per_s(rate: str) -> float:
    """Read a rate as `tc` writes it: 200mbit, 1.5gbit, 800kbit."""
    match = _RATE.fullmatch(rate)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"rate {rate!r} is not a rate: write a number and kbit, mbit or gbit, as in 200mbit")
    return float(match[1]) * _SCALE[match[2]]


def burst_bytes(rate: str) -> int:
    """How much a shaper of this rate lets through at once."""
    return max(_BURST_FLOOR_BYTES, round(bits_per_s(rate) / 8 * _BURST_S))


@dataclass(frozen=True)
class Plan:
    """The lab that was asked for. `rate` None leaves the links unshaped, without a defined speed."""

    nodes: int
    rate: str | None = None
    slots: int = 1

    def __post_init__(self) -> None:
        faults = []
        if not 1 <= self.nodes <= MOST_NODES:
            faults.append(f"nodes {self.nodes} is not between 1 and {MOST_NODES}")
        if self.slots < 1:
            faults.append(f"slots {self.slots} is less than 1")
        if self.rate is not None:
            try:
                bits_per_s(self.rate)
            except ValueError as error:
                faults.append(str(error))
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def names(self) -> tuple[str, ...]:
        """n01, n02, ...: padded to the width of the last one, so that they sort."""
        width = max(2, len(str(self.nodes)))
        return tuple(f"n{number:0{width}}" for number in range(1, self.nodes + 1))

    def address(self, name: str) -> str:
        """The IPv4 address of a node, in the lab's own network."""
        return str(NETWORK.network_address + 1 + self.index(name))

    def mac(self, name: str) -> str:
        """A fixed MAC address, so that the tables of its peers stay right when a node was off."""
        return _mac(0x02_77, self.index(name) + 1)

    def nowhere(self, name: str) -> str:
        """A MAC address that nobody has: what `name` sends there is silently lost."""
        return _mac(0x02_DE, self.index(name) + 1)

    def index(self, name: str) -> int:
        """The place of a node, from 0; ValueError names the nodes there are."""
        if name not in self.names:
            raise ValueError(f"no node {name!r} in this lab: it has {self.names[0]} to {self.names[-1]}")
        return self.names.index(name)


def _mac(prefix: int, number: int) -> str:
    return ":".join(f"{octet:02x}" for octet in (prefix << 32 | number).to_bytes(6, "big"))
