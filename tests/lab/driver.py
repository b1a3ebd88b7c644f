"""The process that holds a lab: `driver.py DIRECTORY`, started inside a new network namespace.

It makes the bridge and the nodes, says "up" on standard output once every sshd listens, and serves the
control socket. It ends, and leaves nothing, when its standard input closes or on SIGTERM; when it is killed
outright the kernel ends its nodes with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.lab import control
from tests.lab.node import Node
from tests.lab.parts import network
from tests.lab.parts.files import PLAN, remove_directory, write_lab
from tests.lab.plan import Plan
from tests.lab.processes import end_members, namespace

_START_S = 60.0
_REQUEST_S = 30.0
_POLL_S = 0.005  # only while something waits for a condition that no descriptor announces

Wait = Iterator[None]  # advanced every turn until it is exhausted (done) or raises (failed)


class Refused(Exception):
    """A request that cannot be met; the text is sent back as the answer."""


class Driver:
    """A loop over the nodes' logs, the control socket and standard input."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory = directory
        self.plan = plan
        self.nodes: dict[str, Node] = {}
        self._selector = selectors.DefaultSelector()
        self._waits: list[tuple[socket.socket, Wait, float]] = []

    def run(self) -> None:
        """Bring everything up, serve until told to stop, take everything down."""
        try:
            write_lab(self.directory, self.plan)
            network.make_bridge()
            self._settle(self._boot(*self.plan.names))
            with control.listen(self.directory) as server:
                self._selector.register(server, selectors.EVENT_READ, lambda: self._accept(server))
                self._selector.register(sys.stdin, selectors.EVENT_READ, lambda: sys.exit(0))
                print("up", flush=True)
                while True:
                    self._turn()
        finally:
            self._down()

    def _turn(self) -> None:
        """Wait for an event, handle it, and answer the requests that are met by now."""
        for key, _ in self._selector.select(_POLL_S if self._waits else None):
            self._happened(key)
        waits, self._waits = self._waits, []
        for connection, wait, deadline in waits:
            if not self._answered(connection, wait, deadline):
                self._waits.append((connection, wait, deadline))

    def _settle(self, wait: Wait) -> None:
        """Turn until `wait` is done, before anyone can ask for anything."""
        deadline = time.monotonic() + _START_S
        for _ in wait:
            if time.monotonic() > deadline:
                raise Refused(f"the nodes did not come up within {_START_S:g} s")
            for key, _ in self._selector.select(_POLL_S):
                self._happened(key)

    def _happened(self, key: selectors.SelectorKey) -> None:
        callback: Callable[[], None] = key.data
        callback()

    def _pump(self, node: Node) -> None:
        handle = node.fileno()
        node.pump()
        if not node.alive:
            self._selector.unregister(handle)

    # --- requests

    def _accept(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.settimeout(5)
        with contextlib.ExitStack() as stack:
            stack.push(connection)
            try:
                verb, *arguments = control.receive(connection)
            except (OSError, ValueError):
                return  # the client went away
            self._waits.append((connection, self._serve(verb, arguments), time.monotonic() + _REQUEST_S))
            stack.pop_all()

    def _serve(self, verb: str, arguments: list[str]) -> Wait:
        verbs: dict[str, Callable[..., Wait]] = {
            "state": self._state,
            "reload": self._reload,
            "off": self._off,
            "on": self._on,
        }
        if verb not in verbs:
            raise Refused(f"no request {verb!r}; there are {', '.join(verbs)}")
        yield from verbs[verb](*arguments)

    def _answered(self, connection: socket.socket, wait: Wait, deadline: float) -> bool:
        try:
            next(wait)
            if time.monotonic() < deadline:
                return False
            answer: dict[str, Any] = {"error": f"not done within {_REQUEST_S:g} s"}
        except StopIteration:
            pids = {name: node.pid if node.alive else None for name, node in self.nodes.items()}
            answer = {"result": {"driver": os.getpid(), "nodes": pids}}
        except (Refused, network.WiringError, OSError, TypeError, ValueError) as error:
            answer = {"error": str(error)}
        with connection, contextlib.suppress(OSError):
            control.send(connection, answer)
        return True

    def _state(self) -> Wait:
        yield from ()

    def _living(self, name: str) -> Node:
        if name not in self.nodes or not self.nodes[name].alive:
            raise Refused(f"{name} is switched off, or not a node of this lab")
        return self.nodes[name]

    def _boot(self, *names: str) -> Wait:
        """Switch nodes on: start all, connect all to the network together, wait until all listen."""
        nodes = [Node(self.directory, self.plan, name) for name in names]
        for node in nodes:
            self.nodes[node.name] = node
            self._selector.register(node.fileno(), selectors.EVENT_READ, partial(self._pump, node))
        while not all(node.pid for node in nodes):
            self._refuse_dead(nodes)
            yield
        network.connect(self.plan, [(node.name, node.pid) for node in nodes])
        for node in nodes:
            node.go()
        while not all(node.listening for node in nodes):
            self._refuse_dead(nodes)
            yield

    def _refuse_dead(self, nodes: list[Node]) -> None:
        dead = [node for node in nodes if not node.alive]
        if dead:
            said = "\n".join(f"{node.name}: {node.log().strip()[-2000:]}" for node in dead[:3])
            raise Refused(f"{len(dead)} of {len(nodes)} nodes ended while they started:\n{said}")

    def _on(self, name: str) -> Wait:
        self.plan.index(name)
        if name in self.nodes and self.nodes[name].alive:
            raise Refused(f"{name} is on")
        network.disconnect(name)
        yield from self._boot(name)

    def _off(self, name: str) -> Wait:
        node = self._living(name)
        node.signal(signal.SIGKILL)
        while node.alive:
            yield

    def _reload(self, name: str) -> Wait:
        node = self._living(name)
        while node.alive and not node.reloadable:
            yield
        before = node.listening
        node.signal(signal.SIGHUP)
        while node.alive and node.listening == before:
            yield
        self._refuse_dead([node])

    # --- the end

    def _down(self) -> None:
        """End the nodes and what runs on the controller, then remove the files; SIGTERM is ignored."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for node in self.nodes.values():
            if node.alive:
                node.signal(signal.SIGKILL)
        end_members("net", namespace(os.getpid(), "net"), spare=os.getpid())
        for node in self.nodes.values():
            while node.alive:
                node.pump()
        for connection, *_ in self._waits:
            connection.close()
        self._selector.close()
        remove_directory(self.directory)


def _terminated(*_: object) -> None:
    raise SystemExit(0)


def main() -> int:
    """Hold a lab until it is told to end."""
    directory = Path(sys.argv[1])
    plan = Plan(**json.loads((directory / PLAN).read_text()))
    signal.signal(signal.SIGTERM, _terminated)
    try:
        Driver(directory, plan).run()
    except (Refused, network.WiringError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
