"""Faults of the run itself and of its input: nothing may become green by them."""

from __future__ import annotations

import signal

from tests.faults.matrix import patches
from tests.faults.matrix.planting import at_work
from tests.faults.matrix.row import During, Expect, Names, Row, Scene
from tests.faults.runs import Running

UNPROVEN = ("unproven",)
GAP = """
[hardware]
name = "lab-gap"
about = "The lab, without a floor for all_reduce"
extends = "lab-200mbit"
auto = false

[[gap]]
metric = "busbw"
collective = "all_reduce"
path = "network"
nodes = "2..4"
ranks_per_node = 1
size = "1MiB"
reason = "nobody has measured it"
"""


def _ended_by(number: signal.Signals) -> During:
    def during(scene: Scene, running: Running) -> None:
        at_work(scene, running)
        running.process.send_signal(number)

    return during


def _with_gap(scene: Scene) -> tuple[str, ...]:
    file = scene.place / "lab-gap.toml"
    file.write_text(GAP)
    return "--hardware", str(file)


def _slow_clocks(scene: Scene) -> None:
    for node in scene.lab.nodes:
        scene.lab.patch_torch(node, patches.SLOW_CLOCK)


def _nobody(*status: int, standings: tuple[str, ...] = UNPROVEN, words: tuple[str, ...] = ()) -> Expect:
    """Nobody is accepted and nobody blamed."""
    return Expect(status, standings, names=Names.NOBODY, words=words, healthy=standings)


RUN = (
    Row(
        "limit-missing",
        30,
        "the hardware file lacks a limit",
        _nobody(2, words=("all_reduce",)),
        arguments=_with_gap,
        faulty=4,
    ),
    Row(
        "hardware-wrong",
        30,
        "the hardware file of other hardware",
        _nobody(2),
        arguments=lambda _: ("--hardware", "h100-sxm5-ndr400"),
        workload="nodes",
        faulty=4,
    ),
    Row(
        "clocks-slow",
        30,
        "every clock at a third of its speed",
        _nobody(2, words=("bound",)),
        _slow_clocks,
        faulty=4,
    ),
    Row(
        "run-interrupted",
        30,
        "the run is stopped by SIGTERM",
        _nobody(2, words=("SIGTERM",)),
        during=_ended_by(signal.SIGTERM),
        faulty=4,
    ),
    Row(
        "run-killed",
        30,
        "the run is killed",
        _nobody(-signal.SIGKILL, standings=("missing", "unproven")),
        during=_ended_by(signal.SIGKILL),
        faulty=4,
    ),
)
