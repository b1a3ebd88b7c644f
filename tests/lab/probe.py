"""Measure a lab's links from inside its nodes, with plain TCP."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from tests.lab.handle import Handle, end

_PORT = 7000
# The clock starts with the first bytes, to leave out the handshake. Ends after `patience` s without a byte.
_SINK = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
connection, _ = server.accept()
connection.settimeout(float(sys.argv[2]))
got, first, start = 0, 0, 0.0
try:
    while data := connection.recv(1 << 20):
        got += len(data)
        if not start:
            start, first = time.monotonic(), len(data)
    print((got - first) * 8 / max(time.monotonic() - start, 1e-9), got)
except TimeoutError:
    print(0.0, got)
except OSError as error:
    print(type(error).__name__, got)
"""
_SOURCE = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as connection:
    connection.settimeout(None)
    print("ready")
    connection.sendall(bytes(int(sys.argv[3])))
"""
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    print("ok")
except OSError as error:
    print(type(error).__name__)
"""


def login(lab: Handle, node: str, *command: str, timeout_s: float = 20.0) -> subprocess.CompletedProcess[str]:
    """Run a command in a node as a user would: with `ssh`, from the controller."""
    quick = "KexAlgorithms=curve25519-sha256"  # the default one costs twice the time of a login
    return lab.run(["ssh", "-F", str(lab.ssh_config), "-o", quick, node, *command], timeout_s=timeout_s)


def reach(lab: Handle, source: str, destination: str, timeout_s: float = 0.5, port: int = 22) -> str:
    """Whether a node can connect to another one's sshd: `ok`, or the exception's name (TimeoutError, ...)."""
    words = [lab.address(destination), str(port), str(timeout_s)]
    return lab.on(source, [sys.executable, "-S", "-c", _CONNECT, *words]).stdout.strip()


@contextlib.contextmanager
def background(lab: Handle, node: str, program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program in a node that says "ready" in its first line; killed at the end."""
    argv = [sys.executable, "-S", "-u", "-c", program, *words]
    process = lab.popen_on(node, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        end(process)


def bits_per_s(
    lab: Handle, source: str, destination: str, size_bytes: int = 5_000_000, patience_s: float = 2.0
) -> float:
    """How fast one TCP stream gets from one node to another; 0.0 when it stalls."""
    words = [lab.address(destination), str(_PORT), str(size_bytes)]
    with (
        background(lab, destination, _SINK, str(_PORT), str(patience_s)) as sink,
        background(lab, source, _SOURCE, *words),
    ):
        out, _ = sink.communicate(timeout=30)
        return float(out.split()[0])
