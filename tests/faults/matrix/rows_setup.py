"""Faults that a node has before anything is measured: logins, software, settings, space, addresses."""

from __future__ import annotations

import sys
from dataclasses import replace

from tests.faults.matrix import patches
from tests.faults.matrix.planting import HOLD, on_node, patched, python, rewrite_hosts
from tests.faults.matrix.row import HARDWARE, Expect, Plant, Row, Scene, harmless, rejected, unproven

NODES = "nodes"
PORTS = (29700, 29703)
# Connects and says nothing, so that sshd waits for a login that never comes.
_DOORSTEP = """
import signal, socket, sys
held = [socket.create_connection(("127.0.0.1", 22)) for _ in range(3)]
print("ready", flush=True)
signal.pause()
"""


def _on(name: str, *arguments: object) -> Plant:
    """Do one thing to every node that was drawn."""
    return lambda scene: scene.each(lambda node: getattr(scene.lab, name)(node, *arguments))


def _doorstep(scene: Scene) -> None:
    scene.lab.sshd_option(scene.node, "MaxStartups", "2:100:2")
    scene.lab.sshd_option(scene.node, "LoginGraceTime", "600")
    on_node([sys.executable, "-u", "-c", _DOORSTEP], "ready")(scene)


def _ports(scene: Scene) -> None:
    for port in range(PORTS[0], PORTS[1] + 1):
        scene.lab.occupy_port(scene.node, port)


def _port_range(_: Scene) -> tuple[str, ...]:
    return (*HARDWARE, "--port-range", f"{PORTS[0]}-{PORTS[1]}")


def _small_shm(scene: Scene) -> None:
    scene.lab.on(scene.node, ["mount", "-o", "remount,size=1m", "/dev/shm"])


def _wrong_address(scene: Scene, text: str) -> str:
    return text.replace(f"addr={scene.lab.address(scene.node)}\n", "addr=10.77.9.9\n")


def _swapped(scene: Scene, text: str) -> str:
    first, second = (f"addr={scene.lab.address(node)}\n" for node in scene.drawn)
    return text.replace(first, "addr=?\n").replace(second, first).replace("addr=?\n", second)


def _own_loopback(scene: Scene) -> None:
    for node in scene.lab.nodes:
        scene.lab.resolve(node, node, "127.0.1.1")


SSH = (
    Row(
        "off",
        25,
        "node is off",
        unproven("lost", words=("No route to host",)),
        _on("power_off"),
        workload=NODES,
    ),
    Row(
        "host-key-changed",
        25,
        "host key has changed",
        unproven("lost", words=("host key has changed",)),
        _on("change_host_key"),
        workload=NODES,
    ),
    Row(
        "key-refused",
        25,
        "login refused",
        unproven("lost", words=("none of the keys was accepted",)),
        _on("refuse_login"),
        workload=NODES,
    ),
    Row(
        "sshd-elsewhere",
        25,
        "nothing listens on the port of sshd",
        unproven("lost", words=("refused",)),
        _on("sshd_option", "Port", "2222"),
        workload=NODES,
    ),
    Row(
        "sshd-silent",
        25,
        "machine takes connections and says nothing",
        unproven("lost"),
        _on("freeze"),
        workload=NODES,
        cleans=False,
    ),
    Row(
        "sshd-full",
        25,
        "sshd drops connections (MaxStartups)",
        unproven("lost"),
        _doorstep,
        workload=NODES,
    ),
    Row(
        "no-sessions",
        25,
        "sshd opens no session (MaxSessions 0)",
        unproven("lost"),
        _on("sshd_option", "MaxSessions", "0"),
        workload=NODES,
    ),
    Row(
        "shell-noisy",
        25,
        "login shell prints what looks like an answer",
        harmless(),
        _on("noisy_shell", "Welcome!\n::0000 {not a frame}"),
        workload=NODES,
    ),
    Row(
        "shell-slow", 25, "login shell takes four seconds", harmless(), _on("slow_shell", 4.0), workload=NODES
    ),
)
SOFTWARE = (
    Row(
        "torch-missing",
        19,
        "PyTorch cannot be imported",
        unproven("lost", words=("libcudart.so.12",)),
        patched(patches.NO_TORCH),
        workload=NODES,
    ),
    Row(
        "torch-differs",
        19,
        "another version of PyTorch",
        replace(rejected("node", words=("PyTorch is 2.9.1",)), also=("lost",)),
        _on("torch_version", "2.9.1"),
        workload=NODES,
    ),
    Row(
        "torch-stale",
        22,
        "PyTorch lies on storage that does not answer",
        Expect((1, 2), ("unproven", "rejected"), ("lost", "hang")),
        patched(patches.STALE),
        workload=NODES,
        arguments=lambda _: (*HARDWARE, "--start-deadline", "60"),
    ),
    Row(
        "storage-silent",
        22,
        "a network file system does not answer",
        rejected("node", words=("fuse.lab file system at /run/models did not answer within 10.0 s",)),
        _on("silent_storage", "/run/models"),
        workload=NODES,
    ),
    Row(
        "python-missing",
        22,
        "the mount with Python is gone",
        unproven("lost", words=("--remote-python",)),
        _on("remove_python"),
        workload=NODES,
    ),
    Row(
        "profile",
        20,
        "variables of NCCL in a profile",
        rejected("node", words=("NCCL_IB_DISABLE",)),
        _on("env", "NCCL_IB_DISABLE", "1"),
        workload=NODES,
    ),
    Row(
        "memlock-low",
        20,
        "locked memory limited on one node",
        rejected("node", words=("limit of locked memory",)),
        _on("ulimit", "memlock", 1 << 16),
        workload=NODES,
    ),
    Row(
        "nofile-low",
        28,
        "256 open files on one node",
        replace(rejected("node", words=("256",)), also=("lost",)),
        _on("ulimit", "nofile", 256),
        workload=NODES,
    ),
    Row(
        "clock-ahead",
        21,
        "clock an hour ahead",
        rejected("node", words=("ahead of",)),
        _on("skew_clock", 3600.0),
        workload=NODES,
    ),
)
ROOM = (
    Row(
        "tmp-small",
        23,
        "16 MiB of temporary directory",
        unproven("lost", words=("temporary directory has",)),
        _on("small_tmp", "16m"),
        workload=NODES,
    ),
    Row(
        "tmp-full",
        23,
        "temporary directory full",
        unproven("lost", words=("No space left on device",)),
        _on("small_tmp", "256k"),
        workload=NODES,
    ),
    Row(
        "shm-small",
        23,
        "1 MiB of shared memory",
        rejected("node", words=("/dev/shm",)),
        _small_shm,
        workload=NODES,
    ),
    Row(
        "ports-taken",
        23,
        "every port of --port-range is taken on one node",
        unproven("lost", words=("cannot listen", f"{PORTS[0]}-{PORTS[1]}")),
        _ports,
        arguments=_port_range,
        workload=NODES,
    ),
    Row(
        "held",
        26,
        "an older run holds the node",
        unproven("lost", words=("another Shakedown run",)),
        on_node(python(HOLD), "ready"),
        workload=NODES,
    ),
    Row("loopback-name", 24, "every host name means 127.0.1.1 on its node", harmless(), _own_loopback),
    Row(
        "address-wrong",
        24,
        "addr= is no address of the node",
        unproven("lost", words=("correct addr=",)),
        rewrite_hosts(_wrong_address),
        workload=NODES,
    ),
    Row(
        "cables-swapped",
        8,
        "two nodes have each other's address",
        unproven("lost", words=("correct addr=",)),
        rewrite_hosts(_swapped),
        workload=NODES,
        faulty=2,
    ),
)
