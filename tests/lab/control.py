"""How requests reach the driver: one JSON line each way over a Unix socket in the lab's directory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAME = "control"
_LINE_BYTES = 1 << 20


class ControlError(Exception):
    """The driver refused, with the reason, or does not answer."""


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A path to the socket that fits into a socket address (108 bytes), however deep the directory."""
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{_NAME}"
    finally:
        os.close(handle)


def listen(directory: Path) -> socket.socket:
    """Open the socket of a lab."""
    server = socket.socket(socket.AF_UNIX)
    with _short_path(directory) as path:
        server.bind(path)
    server.listen(64)
    return server


def request(directory: Path, verb: str, *arguments: str, timeout_s: float = 60.0) -> dict[str, Any]:
    """Ask the driver for something and wait until it is done."""
    try:
        with socket.socket(socket.AF_UNIX) as client, _short_path(directory) as path:
            client.settimeout(timeout_s)
            client.connect(path)
            send(client, [verb, *arguments])
            answer = receive(client)
    except OSError as error:
        raise ControlError(f"the lab in {directory} does not answer: {error}") from error
    if "error" in answer:
        raise ControlError(answer["error"])
    result: dict[str, Any] = answer["result"]
    return result


def send(connection: socket.socket, value: object) -> None:
    """Write one JSON line."""
    connection.sendall(json.dumps(value).encode() + b"\n")


def receive(connection: socket.socket) -> Any:
    """Read one JSON line; ConnectionError when the other side went away first."""
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(65536)
        if not part or len(data) > _LINE_BYTES:
            raise ConnectionError("the other side of the control socket went away")
        data += part
    return json.loads(data)
