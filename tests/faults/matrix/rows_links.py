"""Faults of links, paths and the network between nodes."""

from __future__ import annotations

from tests.faults.matrix.planting import at_work
from tests.faults.matrix.row import Expect, Names, Plant, Row, Scene, between, rejected, unproven
from tests.faults.runs import Running
from tests.lab.faults.link_faults import Direction

SLOW = "180mbit"  # a tenth less than what the others have
BAD_PATH = "60mbit"
JUMBO_BYTES = 9000
HANGS_S = 600.0  # for rows in which several cases run into their deadlines
_INSIDE = """
[hardware]
name = "lab-inside"
about = "The lab with two ranks on every node, of which what is inside is judged"
extends = "lab-200mbit"
auto = false

[absent]
network = "between nodes of two ranks the lab has no limits"

[[limit]]
metric = ["busbw", "busbw_mean"]
collective = [
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v",
    "broadcast", "reduce", "gather", "scatter", "send_recv",
]
path = "memory"
nodes = 1
min_of_bound = 0.0004
source = "a fifth of the lab's own floor, as nodes share cores; what is planted leaves 0.006 of 20 to 40 GB/s"
date = 2026-11-20
derived = true
"""


def _slow(direction: Direction) -> Plant:
    return lambda scene: scene.each(lambda node: scene.lab.shape(node, SLOW, direction))


def _one_way(scene: Scene) -> None:
    source, destination = scene.drawn
    scene.lab.shape_path(source, destination, BAD_PATH)


def _both_ways(scene: Scene) -> None:
    first, second = scene.drawn
    scene.lab.shape_path(first, second, BAD_PATH)
    scene.lab.shape_path(second, first, BAD_PATH)


def _everybody_slow(scene: Scene) -> None:
    for node in scene.lab.nodes:
        scene.lab.shape(node, SLOW)


def _flaps(scene: Scene) -> None:
    scene.lab.flap(scene.node, down_s=0.3, up_s=2.0)


def _hole(scene: Scene, _: Running | None = None) -> None:
    scene.lab.blackhole(*scene.drawn)


def _hole_later(scene: Scene, running: Running) -> None:
    at_work(scene, running)
    _hole(scene)


def _holes_later(scene: Scene, running: Running) -> None:
    """Flows of one node that share a bad part of the fabric: its others pass."""
    at_work(scene, running)
    node, *partners = scene.drawn
    for partner in partners:
        scene.lab.blackhole(node, partner)


def _cut_off_later(scene: Scene, running: Running) -> None:
    at_work(scene, running)
    scene.each(scene.lab.block_peers)


def _cable_later(scene: Scene, running: Running) -> None:
    at_work(scene, running)
    scene.lab.link_down(scene.node)


def _jumbo(scene: Scene) -> None:
    for node in scene.lab.nodes:
        scene.lab.mtu(node, JUMBO_BYTES)
        scene.lab.switch_mtu(node, JUMBO_BYTES)
    scene.lab.switch_mtu(scene.node, 1500)


def _spine(scene: Scene) -> None:
    scene.lab.split(",".join(scene.drawn), "200mbit")


def _inside(scene: Scene) -> tuple[str, ...]:
    file = scene.place / "lab-inside.toml"
    file.write_text(_INSIDE)
    return "--hardware", str(file)


slow_link = _slow("both")
NIC = ("nic",)
PATHS = ("path", "link direction")
LINKS = (
    Row("link-slow", 1, "link at 180 of 200 Mbit/s", rejected(*NIC), _slow("both")),
    Row(
        *("link-slow-tx", 1, "link slow when it sends"),
        rejected(*NIC, words=("when it sends",)),
        _slow("tx"),
    ),
    Row(
        *("link-slow-rx", 1, "link slow when it receives"),
        rejected(*NIC, words=("when it receives",)),
        _slow("rx"),
    ),
    Row("two-links-slow", 1, "two links of five slow", rejected(*NIC), _slow("both"), nodes=5, faulty=2),
    Row(
        *("path-slow-one-way", 2, "one directed path at 60 Mbit/s"),
        between("link direction", names=Names.WAY),
        _one_way,
        faulty=2,
    ),
    Row(
        *("path-slow-both-ways", 2, "one path at 60 Mbit/s, both ways"),
        between("path", names=Names.PAIR),
        _both_ways,
        faulty=2,
    ),
    Row("cable-pulled", 3, "link down while ranks are at work", unproven("lost"), during=_cable_later),
    Row("link-flaps", 5, "link away for 0.3 s every 2.3 s", rejected(*NIC), _flaps, limit_s=HANGS_S),
    Row(
        *("hole-before", 6, "blackhole between two nodes from the start"),
        unproven("lost", *PATHS, words=("cannot connect",)),
        _hole,
        faulty=2,
    ),
    Row(
        *("hole-later", 6, "blackhole between two nodes while ranks are at work"),
        between(*PATHS, names=Names.PAIR),
        during=_hole_later,
        faulty=2,
        limit_s=HANGS_S,
    ),
    Row(
        *("two-holes-later", 6, "blackholes between a node and two of four others while ranks are at work"),
        Expect((2,), ("unproven",), healthy=("unproven",), also=PATHS),
        during=_holes_later,
        nodes=5,
        faulty=3,
        limit_s=HANGS_S,
    ),
    Row(
        *("firewall-drops", 6, "firewall drops what comes from peers"),
        unproven("lost", words=("cannot connect",)),
        lambda scene: scene.lab.block_peers(scene.node, "drop"),
    ),
    Row(
        *("firewall-rejects", 6, "firewall refuses peers at once"),
        unproven("lost", words=("cannot connect",)),
        lambda scene: scene.lab.block_peers(scene.node, "reject"),
    ),
    Row(
        *("peers-cut-later", 6, "all peers lost while ranks are at work"),
        rejected("nic", "node"),
        during=_cut_off_later,
        limit_s=HANGS_S,
    ),
    Row(
        *("two-cut-off-later", 6, "two nodes of five lose all peers while ranks are at work"),
        unproven("lost"),
        during=_cut_off_later,
        nodes=5,
        faulty=2,
        limit_s=HANGS_S,
    ),
    Row(
        *("mtu-of-a-port", 7, "jumbo frames, and one switch port that drops them"),
        rejected("nic", "node"),
        _jumbo,
        limit_s=HANGS_S,
    ),
    Row(
        *("spine-oversubscribed", 9, "half of the nodes behind one link of 200 Mbit/s"),
        between("scale-only", "fabric", names=Names.NOBODY),
        _spine,
        faulty=2,
    ),
    Row(
        *("all-links-slow", 29, "every link at 180 of 200 Mbit/s"),
        Expect((2,), ("unproven",), ("fabric",), Names.NOBODY, healthy=("unproven",)),
        _everybody_slow,
        faulty=4,
    ),
    Row(
        *("inside-slow", 10, "what ranks of one node send each other is slow"),
        rejected("node", "device", "nic"),
        lambda scene: scene.lab.shape_loopback(scene.node, "100mbit"),  # for both directions
        arguments=_inside,
        nodes=3,
        slots=2,
    ),
)
