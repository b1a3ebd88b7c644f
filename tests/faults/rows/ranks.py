"""Faults of nodes and ranks while they are at work: power, crashes, hangs, wrong data, slow products."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fixtures.node.processes import wait_until
from tests.faults.rows import patches
from tests.faults.rows.planting import AGENT, RANK, everywhere, later, on, patched, ranks
from tests.faults.rows.row import (
    HANGS_S,
    STEPS,
    Expect,
    Names,
    Row,
    Scene,
    nobody,
    of_fabric,
    rejected,
    unproven,
    with_file,
)

MEBIBYTE = 1 << 20
FOREIGN = 12  # programs
SIX = 6  # nodes with equal hardware: with fewer, one that differs cannot be told from the others
# CPUs are compared with each other only where the user's file says so.
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


def _starved(scene: Scene) -> None:
    """Take away the memory that a rank is about to use, until the kernel has killed it."""
    lab, node = scene.lab, scene.node
    before = {process.pid for process in lab.processes(node, RANK)}
    lab.memory_limit(node, None)  # the node's memory is counted from here on
    lab.memory_limit(node, lab.memory_used(node) + MEBIBYTE)
    killed = wait_until(lambda: before - {p.pid for p in lab.processes(node, RANK)} != set(), 60.0)
    lab.memory_limit(node, None)
    assert killed, "no rank ran out of memory"


# Nodes share cores here: with a control group each, every node gets an equal share, however much runs on it.
_alike = everywhere("cpu_quota", None)


def _throttled(scene: Scene) -> None:
    """Give the node a fifth of a core; the other nodes share what is left."""
    _alike(scene)
    scene.lab.cpu_quota(scene.node, 0.2)


def _contended(scene: Scene) -> None:
    """Beside so many programs a rank waits often enough within the third of a second of its measurement."""
    scene.lab.hog(scene.node, FOREIGN)
    _alike(scene)


def _gives_up(scene: Scene) -> None:
    node, peer = scene.drawn
    scene.lab.patch_torch(node, patches.GIVES_UP.replace("PEER", scene.lab.address(peer)))


_alone = partial(Row, workload="nodes")
_compared = partial(_alone, arguments=with_file(PEERS), nodes=SIX)
NODES = (
    Row(
        *("power-off", 18, "node loses power, peers are told", unproven("lost", words=("lost: ",))),
        during=later(on("power_off")),
    ),
    Row(
        *("vanishes", 18, "node vanishes, nobody is told", unproven("lost", words=("lost: ",))),
        during=later(on("vanish")),
    ),
    Row(
        "reboots", 25, "node restarts while ranks are at work", unproven("lost"), during=later(on("restart"))
    ),
    Row(
        *("freezes", 17, "node stands still while ranks are at work", unproven("lost")),
        during=later(on("freeze")),
        limit_s=HANGS_S,
        cleans=False,
    ),
    Row(
        *("agent-killed", 18, "torchrun of one node is killed", unproven("crash", "lost")),
        during=later(ranks("kill", AGENT)),
    ),
)
RANKS = (
    Row(
        *("rank-killed", 18, "rank is killed once", unproven("crash", words=("SIGKILL",))),
        during=later(ranks("kill")),
    ),
    Row(
        *("rank-crashes", 18, "rank crashes in every job", rejected("crash", words=("SIGABRT",))),
        patched(patches.CRASHES),
    ),
    Row(
        *("rank-exits", 18, "rank exits with status 3, once"),
        unproven("crash", words=("exited with status 3",)),
        patched(patches.EXITS_ONCE),
    ),
    Row(
        *("out-of-memory", 18, "the kernel kills a rank for its memory, once"),
        unproven("crash", words=("SIGKILL",)),
        during=later(_starved),
    ),
    Row(
        *("rank-stopped", 17, "rank stands still, once", unproven("hang", words=("did not arrive",))),
        during=later(ranks("stop")),
        limit_s=HANGS_S,
    ),
    *(
        Row(
            *(f"late-{family}", 17, f"every collective of a rank begins 20 ms late, in {family} alone"),
            rejected("nic"),
            patched(patches.LATE),
            workload=family,
            limit_s=HANGS_S,
        )
        for family in STEPS
    ),
    *(
        Row(
            *(f"serial-{what}", 17, f"{said}, on all nodes"),
            replace(of_fabric(*kinds), junit=(shown,)),
            everywhere("patch_torch", source),
            workload=family,
            faulty=0,
            limit_s=HANGS_S,
        )
        for what, said, source, family, shown, *kinds in (
            ("ddp", "DDP waits for each bucket", patches.DDP_WAITS, "zero", "zero.overlap overlap is"),
            (
                "fsdp",
                "fully_shard prefetches nothing",
                patches.NO_PREFETCH,
                "zero",
                "gathered late",
                "fabric",
            ),
            ("ping-pong", "two sides take turns", patches.SENDS_IN_TURN, "expert", "expert.m2n gain is"),
        )
    ),
    Row(
        *("nic-gives-up", 5, "a NIC gives up what it sends to another node, as NCCL's log tells"),
        Expect((2,), ("unproven",), ("path",), Names.PAIR, words=("Got completion from peer", "mlx5_3")),
        _gives_up,
        faulty=2,
    ),
    Row(
        *("rank-hangs", 17, "rank hangs in every job", rejected("hang", words=("did not arrive",))),
        patched(patches.HANGS),
        limit_s=HANGS_S,
    ),
)
DATA = (
    Row(
        *("wrong-results", 15, "one bit of every tenth sum of a rank"),
        rejected("wrong data", junit=("rank {rank}", "{node}", "all_reduce")),
        patched(patches.OFTEN_WRONG),
    ),
    Row(
        *("wrong-rarely", 15, "one bit of every hundredth sum of a rank", rejected("wrong data")),
        patched(patches.RARELY_WRONG),
    ),
    Row(
        *("wrong-contribution", 15, "one bit of what a rank adds to a tenth of its sums"),
        rejected("wrong data"),
        patched(patches.ADDS_WRONG),
    ),
    Row(
        *("wrong-sends", 15, "one bit of everything a rank sends", rejected("wrong data")),
        patched(patches.SENDS_WRONG),
    ),
    Row(
        *("wrong-in-steps", 15, "one bit of every tenth sum of a rank, in tensor parallel steps alone"),
        rejected("wrong data"),
        patched(patches.OFTEN_WRONG),
        workload="tensor",
        limit_s=HANGS_S,
    ),
    _alone(
        *("wrong-products", 14, "one bit of every tenth product"),
        rejected(
            "wrong data",
            words=("rank 0 on {node}", "matmul", "iteration ", "offset 17", "bit 0 flipped"),
        ),
        patched(patches.PRODUCT_SOMETIMES),
    ),
    _alone(
        *("wrong-always", 14, "one bit of every product, always the same"),
        rejected(
            *("wrong data", "node", "device"),
            words=("rank 0 on {node} (cpu) computes another matmul fp32 than 3 of its 3 equals, every time",),
        ),
        patched(patches.PRODUCT_ALWAYS),
    ),
    _alone(
        *("wrong-of-two", 14, "one bit of every product of one of two nodes, always the same"),
        nobody(2),
        patched(patches.PRODUCT_ALWAYS),
        nodes=2,
    ),
    _alone(
        *("wrong-at-once", 16, "products wrong while something is sent", rejected("wrong data")),
        patched(patches.PRODUCT_AT_ONCE),
        nodes=3,
        slots=2,
    ),
)
COMPUTE = (
    _compared(
        *("half-speed", 12, "every product takes twice as long, as at half the clock"),
        rejected("device", "node", words=("tflops",)),
        patched(patches.PRODUCT_TWICE),
    ),
    _compared(
        *("cpu-quota", 12, "node throttled to a fifth of a core"),
        rejected("device", "node", words=("quota",)),
        _throttled,
    ),
    _compared(
        *("cpu-contended", 13, "twelve foreign programs beside the ranks, on what one node has of the cores"),
        rejected("device", "node", words=("tflops",)),
        _contended,
    ),
)
