"""Faults of nodes and ranks while they are at work: power, crashes, hangs, wrong data."""

from __future__ import annotations

from fixtures.node.processes import wait_until
from tests.faults.matrix import patches
from tests.faults.matrix.planting import AGENT, RANK, at_work, later, patched, ranks
from tests.faults.matrix.row import Row, Scene, rejected, unproven
from tests.faults.runs import Running
from tests.faults.test_nodes import ALWAYS, SOMETIMES, TWICE
from tests.faults.test_verdicts import CORRUPT

MEBIBYTE = 1 << 20
HANGS_S = 600.0
FOREIGN = 12  # programs
SIX = 6  # nodes of one hardware: with fewer, one that differs cannot be told from the others
PEERS = """
[hardware]
name = "lab-peers"
about = "The lab, whose nodes must be about as fast as each other"
extends = "lab-200mbit"
auto = false

[peers]
margin = 0.35
without_limit = ["tflops"]
source = "healthy nodes of a lab on two cores were at most 0.2 behind the median"
"""


def _reboot(scene: Scene) -> None:
    scene.lab.power_off(scene.node)
    scene.lab.power_on(scene.node)


def _starved(scene: Scene, running: Running) -> None:
    """Take away the memory that a rank is about to use, until the kernel has killed it."""
    lab, node = scene.lab, scene.node
    at_work(scene, running)
    before = {process.pid for process in lab.processes(node, RANK)}
    lab.memory_limit(node, None)  # what the node uses counts from here on
    lab.memory_limit(node, lab.memory_used(node) + MEBIBYTE)
    killed = wait_until(lambda: before - {p.pid for p in lab.processes(node, RANK)} != set(), 60.0)
    lab.memory_limit(node, None)
    assert killed, "no rank ran out of memory"


def _with_peers(scene: Scene) -> tuple[str, ...]:
    """CPUs are held against each other only where the user's file says so."""
    file = scene.place / "lab-peers.toml"
    file.write_text(PEERS)
    return "--hardware", str(file)


def _throttled(scene: Scene) -> None:
    """Give the node a fifth of a core; all that runs on one of the others has what they leave it."""
    _alike(scene)
    scene.lab.cpu_quota(scene.node, 0.2)


def _contended(scene: Scene) -> None:
    """Beside so many a rank waits often enough within the third of a second for which it is measured."""
    scene.lab.hog(scene.node, FOREIGN)
    _alike(scene)


def _alike(scene: Scene) -> None:
    """Nodes share cores here: a group for each shares them out by nodes, however much runs on one."""
    for node in scene.lab.nodes:
        scene.lab.cpu_quota(node, None)


NODES = (
    Row(
        "power-off",
        18,
        "node loses power, peers are told",
        unproven("lost"),
        during=later(lambda scene: scene.lab.power_off(scene.node)),
    ),
    Row(
        "vanishes",
        18,
        "node vanishes, nobody is told",
        unproven("lost"),
        during=later(lambda scene: scene.lab.vanish(scene.node)),
    ),
    Row("reboots", 25, "node restarts while ranks are at work", unproven("lost"), during=later(_reboot)),
    Row(
        "freezes",
        17,
        "node stands still while ranks are at work",
        unproven("lost"),
        during=later(lambda scene: scene.lab.freeze(scene.node)),
        limit_s=HANGS_S,
        cleans=False,
    ),
    Row(
        "agent-killed",
        18,
        "torchrun of one node is killed",
        unproven("crash", "lost"),
        during=later(ranks("kill", AGENT)),
    ),
)
RANKS = (
    Row(
        "rank-killed",
        18,
        "rank is killed once",
        unproven("crash", words=("SIGKILL",)),
        during=later(ranks("kill")),
    ),
    Row(
        "rank-crashes",
        18,
        "rank crashes in every job",
        rejected("crash", words=("SIGABRT",)),
        patched(patches.CRASHES),
    ),
    Row(
        "rank-exits",
        18,
        "rank exits with status 3, once",
        unproven("crash", words=("exited with status 3",)),
        patched(patches.EXITS_ONCE),
    ),
    Row(
        "out-of-memory",
        18,
        "the kernel kills a rank for its memory, once",
        unproven("crash", words=("SIGKILL",)),
        during=_starved,
    ),
    Row(
        "rank-stopped",
        17,
        "rank stands still, once",
        unproven("hang", words=("did not arrive",)),
        during=later(ranks("stop")),
        limit_s=HANGS_S,
    ),
    Row(
        "rank-hangs",
        17,
        "rank hangs in every job",
        rejected("hang", words=("did not arrive",)),
        patched(patches.HANGS),
        limit_s=HANGS_S,
    ),
)
DATA = (
    Row(
        "wrong-results", 15, "one bit of every tenth sum of a rank", rejected("wrong data"), patched(CORRUPT)
    ),
    Row(
        "wrong-rarely",
        15,
        "one bit of every hundredth sum of a rank",
        rejected("wrong data"),
        patched(patches.RARELY_WRONG),
    ),
    Row(
        "wrong-contribution",
        15,
        "one bit of what a rank adds to every tenth sum",
        rejected("wrong data"),
        patched(patches.ADDS_WRONG),
    ),
    Row(
        "wrong-sends",
        15,
        "one bit of everything a rank sends",
        rejected("wrong data"),
        patched(patches.SENDS_WRONG),
    ),
    Row(
        "wrong-products",
        14,
        "one bit of every tenth product",
        rejected("wrong data"),
        patched(SOMETIMES),
        workload="nodes",
    ),
    Row(
        "wrong-always",
        14,
        "one bit of every product, always the same",
        rejected("wrong data", "node", "device"),
        patched(ALWAYS),
        workload="nodes",
    ),
    Row(
        "wrong-at-once",
        16,
        "products wrong while something is sent",
        rejected("wrong data"),
        patched(patches.WRONG_AT_ONCE),
        workload="nodes",
        nodes=3,
        slots=2,
    ),
)
COMPUTE = (
    Row(
        "half-speed",
        12,
        "every product takes twice as long, as at half the clock",
        rejected("device", "node", words=("tflops",)),
        patched(TWICE),
        workload="nodes",
        arguments=_with_peers,
        nodes=SIX,
    ),
    Row(
        "cpu-quota",
        12,
        "node throttled to a fifth of a core",
        rejected("device", "node", words=("quota",)),
        _throttled,
        workload="nodes",
        arguments=_with_peers,
        nodes=SIX,
    ),
    Row(
        "cpu-contended",
        13,
        "twelve foreign programs beside the ranks, on what one node has of the cores",
        rejected("device", "node", words=("tflops",)),
        plant=_contended,
        workload="nodes",
        arguments=_with_peers,
        nodes=SIX,
    ),
)
