"""What can go wrong with a node's link and its paths to others. `heal` undoes all of it."""

from __future__ import annotations

from typing import Literal

from tests.lab.handle import Handle, LabError
from tests.lab.parts.network import shaper
from tests.lab.plan import bits_per_s, burst_bytes

Direction = Literal["both", "tx", "rx"]
_UNSHAPED = "100gbit"  # a path-shaper's rate for all other traffic, in a lab without a rate
_MTU = 1500
_HEALED = f"link set eth0 mtu {_MTU}\nneigh flush dev eth0 nud permanent\nroute flush type prohibit\n"


class LinkFaults(Handle):
    """Faults of the network, each as real traffic control, routes or a link that is down."""

    def shape(self, node: str, rate: str | None, direction: Direction = "both") -> None:
        """Set the rate of a node's link: what it sends (tx), receives (rx) or both; None lifts the limit."""
        if direction not in ("both", "tx", "rx"):
            raise ValueError(f"direction {direction!r} is not both, tx or rx")
        if direction != "rx":
            self._do(node, *_shaping("eth0", rate))
        if direction != "tx":
            self._pid(node)  # a node that is off has no port
            self._do_outside(*_shaping(node, rate))

    def shape_path(self, source: str, destination: str, rate: str) -> None:
        """Slow only what `source` sends to `destination`; the rest keeps the lab's rate."""
        line = self.plan.rate or _UNSHAPED
        number = self.plan.index(destination) + 2  # 1:1 holds all, 1:ffff everything else
        lines = []
        if "htb" not in self._do(source, "tc", "qdisc", "show", "dev", "eth0"):
            lines += [
                "qdisc replace dev eth0 root handle 1: htb default ffff",
                f"class add dev eth0 parent 1: classid 1:1 {_htb(line)}",
                f"class add dev eth0 parent 1:1 classid 1:ffff {_htb(line)}",
            ]
        lines += [
            f"class replace dev eth0 parent 1:1 classid 1:{number:x} {_htb(rate)}",
            f"filter replace dev eth0 parent 1: protocol ip prio {number} u32 "
            f"match ip dst {self.address(destination)}/32 flowid 1:{number:x}",
        ]
        self._do(source, "tc", "-batch", "-", stdin="\n".join(lines))

    def link_down(self, node: str) -> None:
        """Pull the cable: the node loses its carrier, its processes run on."""
        self._pid(node)
        self._do_outside("ip", "link", "set", node, "down")

    def link_up(self, node: str) -> None:
        """Put the cable back."""
        self._pid(node)
        self._do_outside("ip", "link", "set", node, "up")

    def mtu(self, node: str, size_bytes: int) -> None:
        """Set the packet size of the node's side only: the switch silently drops packets above 1500."""
        self._do(node, "ip", "link", "set", "eth0", "mtu", str(size_bytes))

    def blackhole(self, source: str, destination: str) -> None:
        """Silently lose everything that `source` sends to `destination` (not the other direction)."""
        self._lose(source, (destination,))

    def block_peers(self, node: str, how: Literal["drop", "reject"] = "drop") -> None:
        """A firewall that lets only the controller through: packets to peers are lost, or refused at once."""
        peers = tuple(name for name in self.nodes if name != node)
        if how == "drop":
            self._lose(node, peers)
        elif how == "reject":
            routes = "\n".join(f"route replace prohibit {self.address(peer)}/32" for peer in peers)
            self._do(node, "ip", "-batch", "-", stdin=routes)
        else:
            raise ValueError(f"how {how!r} is not drop or reject")

    def heal(self, node: str) -> None:
        """Put a node's network back to what it was when it came up."""
        self.link_up(node)
        self._do(node, "ip", "-batch", "-", stdin=_HEALED)
        self.shape(node, self.plan.rate)

    def _lose(self, source: str, destinations: tuple[str, ...]) -> None:
        """Map the addresses to a MAC address that does not exist, so that the bridge drops the packets.

        A blackhole route would give the sender an error (EINVAL) at once, which no real black hole does.
        """
        if source in destinations:
            raise LabError(f"{source} reaches itself over its loopback, not over its link")
        where = f"lladdr {self.plan.nowhere(source)} dev eth0 nud permanent"
        entries = (f"neigh replace {self.address(name)} {where}" for name in destinations)
        self._do(source, "ip", "-batch", "-", stdin="\n".join(entries))


def _htb(rate: str) -> str:
    bits_per_s(rate)
    burst = burst_bytes(rate)
    return f"htb rate {rate} ceil {rate} burst {burst} cburst {burst} quantum 60000"


def _shaping(device: str, rate: str | None) -> list[str]:
    """The tc command that gives a device its rate; `noqueue` is what an unshaped veth has."""
    if rate is None:
        return ["tc", "qdisc", "replace", "dev", device, "root", "noqueue"]
    bits_per_s(rate)
    return ["tc", *shaper(device, rate).split()]
