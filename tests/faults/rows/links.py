"""Faults of links, paths and the network between nodes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.rows.planting import everywhere, later, on
from tests.faults.rows.row import (
    HANGS_S,
    HARDWARE,
    STEPS,
    Expect,
    Names,
    Row,
    Scene,
    of_fabric,
    on_path,
    rejected,
    unproven,
    with_file,
)
from tests.faults.runs import Finished, clean

SLOW = "160mbit"  # a fifth less than the others
BAD_PATH = "60mbit"
JUMBO_BYTES = 9000
PATHS = ("path", "link direction")
INSIDE = """
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


def _soaked(_: Scene) -> tuple[str, ...]:
    return (*HARDWARE, "--soak", "30s")


def _blink(scene: Scene) -> None:
    scene.each(scene.lab.link_down)
    scene.each(scene.lab.link_up)


def _one_way(scene: Scene) -> None:
    source, destination = scene.drawn
    scene.lab.shape_path(source, destination, BAD_PATH)


def _both_ways(scene: Scene) -> None:
    first, second = scene.drawn
    scene.lab.shape_path(first, second, BAD_PATH)
    scene.lab.shape_path(second, first, BAD_PATH)


def _hole(scene: Scene) -> None:
    scene.lab.blackhole(*scene.drawn)


def _holes(scene: Scene) -> None:
    """Flows of one node that share a bad part of the fabric: its other flows pass."""
    node, *partners = scene.drawn
    for partner in partners:
        scene.lab.blackhole(node, partner)


def _cable(scene: Scene) -> None:
    """The node that is cut off cleans up after itself, while the run goes on elsewhere."""
    scene.lab.link_down(scene.node)
    assert clean(scene.lab, scene.node), f"{scene.node} is cut off, and still has what a run left on it"


def _jumbo(scene: Scene) -> None:
    everywhere("mtu", JUMBO_BYTES)(scene)
    everywhere("switch_mtu", JUMBO_BYTES)(scene)
    scene.lab.switch_mtu(scene.node, 1500)


def _bisection_alone(scene: Scene, done: Finished) -> Iterator[str]:
    """A ring sends one flow each way over the thin link, if nodes of one half are neighbours in it."""
    places = [scene.lab.nodes.index(node) for node in scene.drawn]
    outcomes = {check["id"].rpartition("::")[2]: check["outcome"] for check in done.checks()}
    wanted = {"test_bisection_bandwidth_holds_its_floor[bisection-network]": "fail"}
    if (places[0] - places[1]) % 2:
        wanted["test_busbw_holds_its_floor[send_recv-network]"] = "pass"
    for name, outcome in wanted.items():
        if outcomes[name] != outcome:
            yield f"{name} is {outcomes[name]}, not {outcome}"


LINKS = (
    Row(
        *("link-slow", 1, "link at 160 of 200 Mbit/s"),
        rejected("nic", words=("the link of {node} is slow",), junit=("all_reduce", "{node} is slow")),
        on("shape", SLOW),
    ),
    Row(
        *("link-slow-tx", 1, "link slow when it sends"),
        rejected("nic", words=("when it sends",)),
        on("shape", SLOW, "tx"),
    ),
    Row(
        *("link-slow-rx", 1, "link slow when it receives"),
        rejected("nic", words=("when it receives",)),
        on("shape", SLOW, "rx"),
    ),
    *(
        Row(
            *(f"link-slow-{family}", 1, f"link at 140 of 200 Mbit/s, in {family} alone", rejected("nic")),
            on("shape", "140mbit"),
            workload=family,
            limit_s=HANGS_S,
        )
        for family in STEPS
    ),
    Row("two-links-slow", 1, "two links of five slow", rejected("nic"), on("shape", SLOW), nodes=5, faulty=2),
    Row(
        *("slow-link-of-8", 1, "one of eight links at 160 of 200 Mbit/s"),
        rejected("nic"),
        on("shape", SLOW),
        nodes=8,
        limit_s=900.0,
    ),
    Row(
        *("path-slow-one-way", 2, "one directed path at 60 Mbit/s"),
        on_path("link direction", names=Names.WAY),
        _one_way,
        faulty=2,
    ),
    Row(
        *("path-slow-both-ways", 2, "one path at 60 Mbit/s, both ways"),
        on_path("path", names=Names.PAIR),
        _both_ways,
        faulty=2,
    ),
    Row("cable-pulled", 3, "link down while ranks are at work", unproven("lost"), during=later(_cable)),
    Row(
        *("link-flaps", 5, "link away for 0.3 s every 2.3 s", rejected("nic"), on("flap", 0.3, 2.0)),
        limit_s=HANGS_S,
    ),
    Row(
        *("link-blinks", 5, "link away for a moment, so short that nothing is slower"),
        rejected("node", words=("was lost under load",)),
        during=later(_blink),
        workload="soak",
        arguments=_soaked,
    ),
    Row(
        *("link-slow-in-soak", 27, "link at 120 of 200 Mbit/s once a soak has begun"),
        rejected("nic"),
        during=later(on("shape", "120mbit")),
        workload="soak",
        arguments=_soaked,
    ),
    Row(
        *("hole-before", 6, "blackhole between two nodes from the start"),
        unproven("lost", *PATHS, words=("cannot connect",)),
        _hole,
        faulty=2,
    ),
    Row(
        *("hole-later", 6, "blackhole between two nodes while ranks are at work"),
        on_path(*PATHS, names=Names.PAIR),
        during=later(_hole),
        faulty=2,
        limit_s=HANGS_S,
    ),
    Row(
        *("two-holes-later", 6, "blackholes between a node and two of four others while ranks are at work"),
        Expect((2,), ("unproven",), also=PATHS),
        during=later(_holes),
        nodes=5,
        faulty=3,
        limit_s=HANGS_S,
    ),
    Row(
        *("firewall-drops", 6, "firewall drops what comes from peers"),
        unproven("lost", words=("cannot connect",)),
        on("block_peers", "drop"),
    ),
    Row(
        *("firewall-rejects", 6, "firewall refuses peers at once"),
        unproven("lost", words=("cannot connect",)),
        on("block_peers", "reject"),
    ),
    Row(
        *("peers-cut-later", 6, "all peers lost while ranks are at work"),
        rejected("nic", "node"),
        during=later(on("block_peers")),
        limit_s=HANGS_S,
    ),
    Row(
        *("two-cut-off-later", 6, "two nodes of five lose all peers while ranks are at work"),
        unproven("lost"),
        during=later(on("block_peers")),
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
        of_fabric("scale-only", "fabric"),
        lambda scene: scene.lab.split(",".join(scene.drawn), "200mbit"),
        faulty=2,
        complaints=_bisection_alone,
    ),
    Row(
        *("spine-thin", 9, "two of six nodes behind one link of 90 Mbit/s"),
        on_path("fabric", names=Names.PAIR),
        lambda scene: scene.lab.split(",".join(scene.drawn), "90mbit"),
        nodes=6,
        faulty=2,
    ),
    Row(
        *("all-links-slow", 29, "every link at 160 of 200 Mbit/s"),
        of_fabric("fabric"),
        on("shape", SLOW),
        faulty=4,
    ),
    Row(
        *("inside-slow", 10, "what ranks of one node send each other is slow"),
        rejected("node", "device", "nic"),
        on("shape_loopback", "100mbit"),  # for both directions
        arguments=with_file(INSIDE),
        nodes=3,
        slots=2,
    ),
)
