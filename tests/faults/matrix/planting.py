"""What rows have in common when they plant something while a run is at work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from fixtures.node.processes import wait_until
from tests.faults.matrix.row import During, Plant, Scene
from tests.faults.runs import Running
from tests.lab.files import HOSTS

RANK = "-u -m fixtures.ranks.worker"
AGENT = "torch.distributed.run"
CHECKS = 5  # of collectives that have ended before a fault begins
HOLD = "from fixtures.node import lock, janitor; held = lock.acquire(); print('ready', flush=True)\n" + (
    "while True: lock.answer(held, {'user': 'root', 'controller': 'elsewhere', 'run': 'an older one'})"
)


def at_work(scene: Scene, running: Running) -> None:
    """Wait until ranks have done some cases and are at the next."""
    running.wait_for(lambda journal: journal.count('"type":"check","id":"suites/collectives') >= CHECKS)


def later(do: Callable[[Scene], object]) -> During:
    """Plant something while ranks are at work."""

    def during(scene: Scene, running: Running) -> None:
        at_work(scene, running)
        do(scene)

    return during


def ranks(verb: str, match: str = RANK) -> Plant:
    """Stop or kill the ranks of the nodes that were drawn; it is an error when there are none."""

    def plant(scene: Scene) -> None:
        for node in scene.drawn:
            assert getattr(scene.lab, verb)(node, match), f"no process with {match!r} on {node}"

    return plant


def patched(source: str) -> Plant:
    """Run a program behind `import torch` on the nodes that were drawn."""
    return lambda scene: scene.each(lambda node: scene.lab.patch_torch(node, source))


def on_node(argv: list[str], said: str) -> Plant:
    """Leave a program running on the node; it is there when it has said something."""

    def plant(scene: Scene) -> None:
        log = scene.place / "foreign.txt"
        with log.open("w") as out:
            scene.lab.popen_on(scene.node, argv, stdout=out)
        assert wait_until(lambda: said in log.read_text(), 20.0, poll_s=0.05), "the program did not start"

    return plant


def python(program: str) -> list[str]:
    """The command that runs a program which imports this tree."""
    root = str(Path(__file__).parents[3])
    return [sys.executable, "-u", "-c", f"import sys; sys.path.insert(0, {root!r})\n{program}"]


def rewrite_hosts(change: Callable[[Scene, str], str]) -> Plant:
    """Write something else into the hosts file that the user gives."""

    def plant(scene: Scene) -> None:
        file = scene.lab.directory / HOSTS
        file.write_text(change(scene, file.read_text()))

    return plant
