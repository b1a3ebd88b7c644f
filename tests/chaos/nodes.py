"""Scripted nodes under the real controller, each at the end of a channel, and what befalls them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fixtures.blame.links import probe
from fixtures.blame.selfcheck import site
from fixtures.check import requests
from fixtures.cluster import cluster, contact, job
from fixtures.cluster.measurement import CaseRequest, Measurement, World
from fixtures.transport import bundle
from fixtures.transport.connect import Connections, Target
from fixtures.transport.hosts import parse
from fixtures.wire.frames import frame
from fixtures.wire.messages import (
    Answer,
    Case,
    End,
    Hello,
    Hurry,
    Identity,
    Late,
    Message,
    Order,
    Raised,
    RankGone,
    Refused,
    Start,
    encode,
)
from reports.page import html
from tests.chaos.draw import CONTROLLER, HOSTILE, NODES, Fault
from tests.fixtures import hostile_node
from tests.fixtures.blame.selfcheck import fake_plants
from tests.fixtures.cluster.test_hostile import DEADLINES
from tests.fixtures.fake_nodes import FakeNodes, Script, with_results
from tests.fixtures.hostile_node import CLOSE, DEAF, ROWS, SILENT, Behaviour, Hostile, Says, says, twice

RANKS = 2  # of each node
FILLER = "filler"
# In a run they are seconds to minutes; here nothing but a busy machine takes any time.
SHORT: tuple[tuple[Any, str, Any], ...] = (
    *DEADLINES,
    (cluster, "SILENCE_S", 4.0),
    (job, "SLACK_S", 4.0),
    (site, "HANG_S", 0.3),
    *((module, "LEAST_DEADLINE_S", {"gloo": 1.0}) for module in (requests, probe)),
    (requests, "STEP_DEADLINE_S", {"gloo": 1.0}),
    (requests, "CONNECT_S", 0.0),
    (probe, "ALONE_DEADLINE_S", {"gloo": 1.0}),
    (bundle, "files", dict),
    (html, "write", lambda *_: None),
    (hostile_node, "BEAT_S", 0.4),
)
ANY: Any = Message
SAID: Mapping[str, tuple[Any, Says]] = {
    "drop": (ANY, says()),
    "duplicate": (ANY, twice),
    "truncate": (ANY, lambda message: [encode(message)[: len(encode(message)) // 2]]),
    "refuse": (ANY, says(Refused("it does not like it"))),
    "raise": (
        Answer,
        lambda one: [Raised(one.job, one.rank, one.case, False, "ValueError", "no", "line 1")],
    ),
    "die": (Answer, lambda one: [RankGone(one.job, one.rank, 1.0, -9, "Killed", None)]),
    "kill": (ANY, says(CLOSE)),
    "stop": (ANY, says(SILENT)),
    "deaf": (ANY, says(DEAF)),
    **{f"{HOSTILE}{row.name}": (row.when, row.says) for row in ROWS},
}


class Chaos:
    """A pytest plugin: a run reaches these nodes in the place of others, and faults befall it in time."""

    def __init__(self, faults: Sequence[Fault], place: Path) -> None:
        self.place, self._lock, self._said = place, threading.Lock(), 0
        self._due = [fault for fault in faults if fault.place == CONTROLLER]
        self.bad: set[str] = set()  # who has said once that it is slow, or that its data are wrong
        self.wrong: set[str] = set()
        self.rates: dict[str, float] = {}
        self.script = Script(rewrite=self._spoil, rates=self.rates)
        hosts = parse("\n".join(f"{name} slots={RANKS}" for name in NODES), "hosts")
        self.brain = FakeNodes(self.script, hosts, lambda record: None)
        for node in self.brain.nodes.values():
            node.ranks = RANKS
        self._channels = {
            name: Acting(name, [one for one in faults if one.place == name], self) for name in NODES
        }

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """This process ends with the run, so that nothing is put back."""
        for module, name, value in (*SHORT, (contact, "open_all", self._open_all)):
            setattr(module, name, value)

    def _open_all(self, targets: Sequence[Target], *_: object, **__: object) -> Connections:
        connections = Connections()
        connections.update({target.name: self._channels[target.name] for target in targets})
        return connections

    def _spoil(self, request: CaseRequest, answer: Measurement) -> Measurement:
        one = {"collective": "all_reduce", **fake_plants.FLIPPED}
        return with_results(
            answer,
            lambda rank: (
                {"wrong": [{**one, "rank": rank.rank}]}
                if rank.node in self.wrong and request.step == "collectives.exact"
                else {}
            ),
        )

    def tick(self) -> None:
        """A node has said something: whatever is due befalls the controller."""
        with self._lock:
            self._said += 1
            due = [fault for fault in self._due if fault.moment < self._said]
            self._due = [fault for fault in self._due if fault not in due]
        for fault in due:
            self.befall(fault)

    def begin(self) -> None:
        """Let befall what does so before the run begins."""
        early = [fault for fault in self._due if fault.moment < 0]
        self._due = [fault for fault in self._due if fault not in early]
        for fault in early:
            self.befall(fault)

    def befall(self, fault: Fault) -> None:
        if fault.kind.startswith("fill"):
            fill(self.place / FILLER)
            if fault.kind != "fill":
                after(fault.span_s, partial((self.place / FILLER).unlink, missing_ok=True))
        elif fault.kind == "descriptors":
            left = len(os.listdir("/proc/self/fd")) - 1 + int(3 * fault.span_s)
            resource.setrlimit(resource.RLIMIT_NOFILE, (left, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        else:
            signals = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "stand still": signal.SIGSTOP}
            os.kill(os.getpid(), signals[fault.kind])


class Acting(Hostile):
    """A node that answers as healthy ones do, until a fault of its own is due."""

    def __init__(self, name: str, faults: Sequence[Fault], chaos: Chaos) -> None:
        super().__init__(name)
        self._faults, self._chaos, self._number = list(faults), chaos, 0
        self._case: Case | None = None
        self._hung: list[int] = []
        self._held: list[bytes | Message] | None = None  # orders and messages, while it stands still

    def send(self, data: bytes) -> None:
        if self._held is not None:
            self._held.append(data)
        else:
            super().send(data)

    def answers(self, order: Order) -> list[Message]:
        match order:
            case Start():
                first = order.node_rank * order.nproc
                size = order.nnodes * order.nproc
                return [
                    Identity(order.job, first + local, local, 100 + local, size, "gloo", "cpu", {})
                    for local in range(order.nproc)
                ]
            case Case():
                return self._measured(order)
            case Hurry() if self._hung:
                after(order.within_s, self._are_late)
            case End():
                self._hung = []
        return super().answers(order)

    def _measured(self, order: Case) -> list[Message]:
        self._case = order
        own = [at for at, host in enumerate(order.hosts) if host == self._name]
        names = tuple(dict.fromkeys(order.hosts))
        request = CaseRequest(order.step, World(names), order.parameters, order.deadline_s)
        if order.parameters.get("plant", {}).get("kind") == "hang":
            self._hung = [order.ranks[at] for at in own]
            after(order.deadline_s, self._are_late)
            return []
        if order.step == site.PLANTED or len(order.hosts) < RANKS * len(names):
            ranks = {name: order.hosts.count(name) for name in names}
            [answer] = self._chaos.brain.run([request], {}, ranks)
        else:
            [answer] = self._chaos.brain.run([request])
        assert isinstance(answer, Measurement)
        slow = order.step == "collectives.sweep" and self._name in self._chaos.rates
        if slow or (order.step == "collectives.exact" and self._name in self._chaos.wrong):
            self._chaos.bad.add(self._name)
        return [Answer(order.job, order.ranks[at], order.case, dict(answer.ranks[at].result)) for at in own]

    def _are_late(self) -> None:
        if self._hung and self._case is not None:
            planted = self._case.parameters.get("plant", {}).get("rank")
            ranks = [
                fake_plants.late(rank, planted in (None, self._case.ranks.index(rank)), self._case.case)
                for rank in self._hung
            ]
            self._hung = []
            super()._say(Late(self._case.job, self._case.case, tuple(ranks)))

    def _say(self, message: Message) -> None:
        self._chaos.tick()
        self._number += 1
        if isinstance(message, Hello):
            who = {"hostname": self._name, "boot_id": f"boot-{self._name}"}
            message = replace(message, node={**message.node, **who})
        if self._held is not None:
            self._held.append(message)
            return
        for fault in [one for one in self._faults if one.moment < self._number]:
            when, said = SAID.get(fault.kind, (Answer if fault.kind == "hang" else ANY, None))
            if not isinstance(message, when):
                continue
            self._faults.remove(fault)
            if said is not None:
                self._behaviour = Behaviour(fault.kind, when, said)
                super()._say(message)
                self._behaviour = None
                return
            if self._happens(fault, message):
                return
        super()._say(message)

    def _happens(self, fault: Fault, message: Message) -> bool:
        """What takes time or lasts; whether the message is not said now."""
        if fault.kind == "slow":
            self._chaos.rates[self._name] = 1.0
        elif fault.kind == "wrong":
            self._chaos.wrong.add(self._name)
        elif fault.kind == "delay":
            after(fault.span_s, lambda: self._said.put(frame(self._nonce, encode(message))))
        elif fault.kind == "flap":
            self._held, self._state = [message], SILENT
            after(fault.span_s, self._come_back)
        elif isinstance(message, Answer) and self._case is not None:
            self._hung.append(message.rank)
            after(self._case.deadline_s, self._are_late)
        return fault.kind not in ("slow", "wrong")

    def _come_back(self) -> None:
        held, self._held, self._state = self._held or [], None, ""
        for one in held:
            if isinstance(one, bytes):
                self.send(one)
            else:
                super()._say(one)


def after(seconds: float, do: Any) -> None:
    """Do something later, unless the run has ended before."""
    timer = threading.Timer(seconds, do)
    timer.daemon = True
    timer.start()


def fill(path: Path) -> None:
    """Leave no byte on its disk."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as filler:
        while filler.write(bytes(1 << 16)):
            pass
