"""Faults that a node has before anything is measured: logins, software, settings, space, addresses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from fixtures.run.provenance import ROOT
from tests.faults.rows import patches
from tests.faults.rows.planting import on, on_node, patched, rewrite_hosts
from tests.faults.rows.row import HARDWARE, Expect, Row, Scene, harmless, rejected, unproven
from tests.faults.runs import Finished

PORTS = (29700, 29703)
# Connects and sends nothing, so that sshd waits for logins that never come.
DOORSTEP = """
import signal, socket, sys
held = [socket.create_connection(("127.0.0.1", 22)) for _ in range(3)]
print("ready", flush=True)
signal.pause()
"""
HOLD = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from fixtures.node import lock, janitor
held = lock.acquire()
print("ready", flush=True)
while True:
    lock.answer(held, {{"user": "root", "controller": "elsewhere", "run": "an older one"}})
"""


def _python(program: str) -> list[str]:
    return [sys.executable, "-u", "-c", program]


def _doorstep(scene: Scene) -> None:
    scene.lab.sshd_option(scene.node, "MaxStartups", "2:100:2")
    scene.lab.sshd_option(scene.node, "LoginGraceTime", "600")
    on_node(_python(DOORSTEP))(scene)


def _ports(scene: Scene) -> None:
    for port in range(PORTS[0], PORTS[1] + 1):
        scene.lab.occupy_port(scene.node, port)


def _swapped(scene: Scene, text: str) -> str:
    first, second = (f"addr={scene.lab.address(node)}\n" for node in scene.drawn)
    return text.replace(first, "addr=?\n").replace(second, first).replace("addr=?\n", second)


def _own_loopback(scene: Scene) -> None:
    for node in scene.lab.nodes:
        scene.lab.resolve(node, node, "127.0.1.1")


def _said_often(_: Scene, done: Finished) -> Iterator[str]:
    """The message appears at most three times: once when it is noticed, and once per summary."""
    if (count := done.output.count("No route to host")) > 3:
        yield f"the console says {count} times that there is no route to the node"


_before = partial(Row, workload="nodes")
SSH = (
    Row(
        *("off", 25, "node is off", unproven("lost", words=("No route to host",)), on("power_off")),
        workload="nodes,collectives",
        complaints=_said_often,
    ),
    _before(
        *("host-key-changed", 25, "host key has changed"),
        unproven("lost", words=("host key has changed",)),
        on("change_host_key"),
    ),
    _before(
        *("key-refused", 25, "login refused"),
        unproven("lost", words=("none of the keys was accepted",)),
        on("refuse_login"),
    ),
    _before(
        *("sshd-elsewhere", 25, "nothing listens on the port of sshd"),
        unproven("lost", words=("refused",)),
        on("sshd_option", "Port", "2222"),
    ),
    _before(
        *("sshd-silent", 25, "machine takes connections and says nothing", unproven("lost"), on("freeze")),
        cleans=False,
    ),
    _before("sshd-full", 25, "sshd drops connections (MaxStartups)", unproven("lost"), _doorstep),
    _before(
        *("no-sessions", 25, "sshd opens no session (MaxSessions 0)", unproven("lost")),
        on("sshd_option", "MaxSessions", "0"),
    ),
    _before(
        *("shell-noisy", 25, "login shell prints what looks like an answer", harmless()),
        on("noisy_shell", "Welcome!\n::0000 {not a frame}"),
    ),
    _before("shell-slow", 25, "login shell takes four seconds", harmless(), on("slow_shell", 4.0)),
)
SOFTWARE = (
    _before(
        *("torch-missing", 19, "PyTorch cannot be imported"),
        unproven("lost", words=("libcudart.so.12",)),
        patched(patches.NO_TORCH),
    ),
    _before(
        *("torch-differs", 19, "another version of PyTorch"),
        replace(rejected("node", words=("PyTorch is 2.12.1",)), also=("lost",)),
        on("torch_version", "2.12.1"),
    ),
    _before(
        *("torch-stale", 22, "PyTorch lies on storage that does not answer"),
        Expect((1, 2), ("unproven", "rejected"), ("lost", "hang")),
        patched(patches.STALE),
        arguments=lambda _: (*HARDWARE, "--start-deadline", "60"),
    ),
    _before(
        *("storage-silent", 22, "a network file system does not answer"),
        rejected("node", words=("fuse.lab file system at /run/models did not answer within 10.0 s",)),
        on("silent_storage", "/run/models"),
        subjects=("host",),
    ),
    _before(
        *("python-missing", 22, "the mount with Python is gone"),
        unproven("lost", words=("--remote-python",)),
        on("remove_python"),
    ),
    _before(
        *("python-nowhere", 30, "--remote-python is no program of any node"),
        unproven("lost", words=("--remote-python",)),
        arguments=lambda _: (*HARDWARE, "--remote-python", "/opt/none/python3"),
        nodes=2,
        faulty=2,
    ),
    _before(
        *("profile", 20, "variables of NCCL in a profile"),
        rejected("node", words=("NCCL_IB_DISABLE",)),
        on("env", "NCCL_IB_DISABLE", "1"),
    ),
    _before(
        *("memlock-low", 20, "locked memory limited on one node"),
        rejected("node", words=("limit of locked memory",)),
        on("ulimit", "memlock", 1 << 16),
    ),
    _before(
        *("nofile-low", 28, "256 open files on one node"),
        replace(rejected("node", words=("256",)), also=("lost",)),
        on("ulimit", "nofile", 256),
    ),
    _before(
        *("clock-ahead", 21, "clock an hour ahead"),
        rejected("node", words=("ahead of",)),
        on("skew_clock", 3600.0),
    ),
)
ROOM = (
    _before(
        *("tmp-small", 23, "16 MiB of temporary directory"),
        unproven("lost", words=("temporary directory has",)),
        on("small_tmp", "16m"),
    ),
    _before(
        *("tmp-full", 23, "temporary directory full"),
        unproven("lost", words=("No space left on device",)),
        on("small_tmp", "256k"),
    ),
    _before(
        *("shm-small", 23, "1 MiB of shared memory", rejected("node", words=("/dev/shm",))),
        lambda scene: scene.lab.on(scene.node, ["mount", "-o", "remount,size=1m", "/dev/shm"]),
    ),
    _before(
        *("ports-taken", 23, "every port of --port-range is taken on one node"),
        unproven("lost", words=("cannot listen", f"{PORTS[0]}-{PORTS[1]}")),
        _ports,
        arguments=lambda _: (*HARDWARE, "--port-range", f"{PORTS[0]}-{PORTS[1]}"),
    ),
    _before(
        *("held", 26, "an older run holds the node"),
        unproven("lost", words=("another Shakedown run",)),
        on_node(_python(HOLD)),
    ),
    Row("loopback-name", 24, "every host name means 127.0.1.1 on its node", harmless(), _own_loopback),
    _before(
        *("address-wrong", 24, "addr= is no address of the node"),
        unproven("lost", words=("correct addr=",)),
        rewrite_hosts(lambda scene, text: text.replace(f"{scene.lab.address(scene.node)}\n", "10.77.9.9\n")),
    ),
    _before(
        *("cables-swapped", 8, "two nodes have each other's address"),
        unproven("lost", words=("correct addr=",)),
        rewrite_hosts(_swapped),
        faulty=2,
    ),
)
