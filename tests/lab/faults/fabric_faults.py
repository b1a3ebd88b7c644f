"""What can go wrong between nodes: switch ports, an oversubscribed spine, a link that comes and goes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.lab.faults.link_faults import LinkFaults
from tests.lab.parts.network import shaper
from tests.lab.plan import BRIDGE

_LOOSE = "loose"  # while this file exists the link flaps
_LEAF, _UP, _DOWN = "br1", "spine0", "spine1"
# The pauses are the fault itself: the link is down for the first and up for the second. It ends when the file
# is removed.
_FLAP = 'while [ -e "$1" ]; do ip link set "$2" down; sleep "$3"; ip link set "$2" up; sleep "$4"; done'


class FabricFaults(LinkFaults):
    """Faults that are in the network and in no node."""

    def switch_mtu(self, node: str, size_bytes: int) -> None:
        """Set the packet size of the switch's port to a node: larger packets are silently dropped."""
        self._pid(node)
        self._do_outside("ip", "link", "set", node, "mtu", str(size_bytes))

    def split(self, nodes: str, rate: str) -> None:
        """Move nodes ("n03,n04") behind a second switch, which one link of this rate joins to br0."""
        lines = [
            f"link add name {_LEAF} type bridge stp_state 0 mcast_snooping 0",
            f"link set {_LEAF} addrgenmode none up",
            f"link add name {_UP} type veth peer name {_DOWN}",
            f"link set {_UP} master {BRIDGE} addrgenmode none up",
            f"link set {_DOWN} master {_LEAF} addrgenmode none up",
            *(f"link set {node} master {_LEAF}" for node in nodes.split(",")),
        ]
        self._batch("ip", lines)
        self._batch("tc", [shaper(device, rate) for device in (_UP, _DOWN)])

    def shape_loopback(self, node: str, rate: str) -> None:
        """Slow what a node's ranks send each other."""
        self._do(node, "tc", *shaper("lo", rate).split())

    def flap(self, node: str, down_s: float, up_s: float) -> None:
        """Pull a node's cable and put it back, over and over, until `unflap`."""
        self._pid(node)
        loose = self.files(node) / _LOOSE
        loose.touch()
        argv = ["sh", "-c", _FLAP, "flap", str(loose), node, f"{down_s:g}", f"{up_s:g}"]
        self.popen(argv, stderr=subprocess.DEVNULL)

    def unflap(self, node: str) -> None:
        """Undo `flap`: the link is up for good after the pauses that have begun."""
        (self.files(node) / _LOOSE).unlink()

    def _batch(self, program: str, lines: Sequence[str]) -> None:
        """Run commands in the lab's network, one process each: there are few."""
        for line in lines:
            self._do_outside(program, *line.split())
