"""What rows share when they plant something, before a run or while it is at work."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from fixtures.node.processes import wait_until
from tests.faults.rows.row import During, Plant, Scene
from tests.faults.runs import Running, left_on
from tests.lab import Lab
from tests.lab.parts.files import HOSTS

RANK = "shakedown-rank "
AGENT = "pt_elastic "  # torchrun's name for its own process
SUPERVISOR = "import json, os, shutil"  # in the program that a node is sent
CHECKS = 5  # of collectives that have ended before a fault begins
_MEASURED = re.compile('"type":"check","id":"suites/(?:collectives|soak)/')
OURS = {"process", "file", "lock", "port"}  # what a run has on a node while its ranks are at work
START_S = 20.0


def at_work(lab: Lab, running: Running, nodes: Sequence[str]) -> None:
    """Wait until ranks have done some cases, and the nodes hold what a run must remove in the end."""
    running.wait_for(lambda journal: len(_MEASURED.findall(journal)) >= CHECKS)
    there = wait_until(lambda: all(_has_ours(lab, node) for node in nodes), START_S, poll_s=0.1)
    assert there, f"a run is at work, and some of {nodes} does not have {OURS}"


def _has_ours(lab: Lab, node: str) -> bool:
    return {line.split()[0] for line in left_on(lab, node)} >= OURS


def later(do: Plant) -> During:
    """Plant something while ranks are at work."""
    return lambda scene, _: do(scene)


def on(name: str, *arguments: object) -> Plant:
    """Call a method of the lab for every node that was drawn."""
    return lambda scene: scene.each(lambda node: getattr(scene.lab, name)(node, *arguments))


def everywhere(name: str, *arguments: object) -> Plant:
    """Call a method of the lab for every one of its nodes."""
    return lambda scene: [getattr(scene.lab, name)(node, *arguments) for node in scene.lab.nodes]


def patched(source: str) -> Plant:
    """Run a program after `import torch` on the nodes that were drawn."""
    return on("patch_torch", source)


def ranks(verb: str, match: str = RANK) -> Plant:
    """Stop or kill the ranks of the nodes that were drawn; it is an error when there are none."""

    def plant(scene: Scene) -> None:
        for node in scene.drawn:
            assert getattr(scene.lab, verb)(node, match), f"no process with {match!r} on {node}"

    return plant


def on_node(argv: list[str]) -> Plant:
    """Leave a program running on the node, and wait until it says that it is ready."""

    def plant(scene: Scene) -> None:
        log = scene.place / "foreign.txt"
        with log.open("w") as out:
            scene.lab.popen_on(scene.node, argv, stdout=out)
        there = wait_until(lambda: "ready" in log.read_text(), START_S, poll_s=0.05)
        assert there, "the program did not start"

    return plant


def rewrite_hosts(change: Callable[[Scene, str], str]) -> Plant:
    """Change the hosts file that the user gives."""

    def plant(scene: Scene) -> None:
        file = scene.lab.directory / HOSTS
        file.write_text(change(scene, file.read_text()))

    return plant
