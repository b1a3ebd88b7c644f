"""Cases in a lab's nodes, one by one: a controller of a few lines that does what its standard input says.

Faster than a whole run, and the fault falls into the very case that is meant.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures.node.processes import wait_until
from fixtures.run.provenance import ROOT
from tests.lab import Lab

_CONTROLLER = """
import dataclasses, json, sys
from pathlib import Path
from fixtures.transport import hosts
from fixtures.cluster.cluster import Cluster, Settings
from fixtures.cluster.measurement import CaseRequest, Measurement, World
from reports.record import JobRecord

given = json.loads(sys.argv[1])
paths = {name: Path(given[name]) for name in ("ssh_config", "known_hosts", "logs")}
settings = Settings(
    run_id="lab", remote_python=given["python"], start_deadline_s=given["start_deadline_s"], **paths
)
jobs = []
keep = lambda record: jobs.append(record) if isinstance(record, JobRecord) else None
say = lambda line: print(line, file=sys.stderr, flush=True)
cluster = Cluster(hosts.read(given["hosts"]), settings, keep, say)
cluster.open()
print("{}", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    nodes = order["nodes"] or cluster.ready()
    request = CaseRequest(order["step"], World(tuple(nodes)), order["parameters"], order["deadline_s"])
    answer = cluster.run([request])[0]
    told = {"nodes": nodes, "ready": cluster.ready(), "jobs": [[job.id, job.ended] for job in jobs]}
    if isinstance(answer, Measurement):
        told |= {"text": "", "sign": "", "blame": [], "detail": "", "ok": True}
    else:
        told |= {"text": str(answer), "sign": answer.sign, "detail": answer.detail, "ok": False}
        told["blame"] = [dataclasses.asdict(each) for each in answer.blame]
    print(json.dumps(told), flush=True)
cluster.close("the test is over")
"""


@dataclass(frozen=True)
class Answered:
    """What became of one case, and how long it took."""

    ok: bool
    text: str
    sign: str
    blame: tuple[Mapping[str, Any], ...]
    detail: str
    nodes: tuple[str, ...]
    ready: tuple[str, ...]
    jobs: tuple[tuple[str, str], ...]  # id and why it ended, in the order of the journal
    seconds: float

    @property
    def named(self) -> list[tuple[str, list[str], int | None]]:
        """Kind, nodes and rank of every blame."""
        return [(each["kind"], list(each["nodes"]), each["rank"]) for each in self.blame]


class AtWork:
    """A controller with a connection to every node of a lab."""

    def __init__(self, lab: Lab, logs: Path, start_deadline_s: float = 120.0) -> None:
        given = {
            "hosts": str(lab.hosts_file),
            "ssh_config": str(lab.ssh_config),
            "known_hosts": str(lab.known_hosts),
            "python": lab.suite_arguments()[-1],
            "logs": str(logs),
            "start_deadline_s": start_deadline_s,
        }
        self._began = time.monotonic()
        pipe = subprocess.PIPE
        self._process = lab.popen(
            [sys.executable, "-c", _CONTROLLER, json.dumps(given)], cwd=ROOT, stdin=pipe, stdout=pipe
        )
        self._read()

    def begin(
        self,
        step: str,
        parameters: Mapping[str, Any],
        nodes: Sequence[str] = (),
        deadline_s: float = 60.0,
    ) -> None:
        """Order a case, on all nodes that are ready if none is named."""
        order = {"step": step, "parameters": dict(parameters), "nodes": list(nodes), "deadline_s": deadline_s}
        assert self._process.stdin is not None
        self._began = time.monotonic()
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Answered:
        """Wait for what becomes of it."""
        told = self._read()
        told = {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}
        return Answered(**told, seconds=time.monotonic() - self._began)

    def run(self, step: str, parameters: Mapping[str, Any], **more: Any) -> Answered:
        """Order a case and wait."""
        self.begin(step, parameters, **more)
        return self.answer()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


# The progress files of the job that was started last.
_PROGRESS = """
import glob, os
job = max(glob.glob("/tmp/shakedown-*/job-*"), key=os.path.getmtime, default="none")
print(b"".join(open(path, "rb").read() for path in glob.glob(job + "/progress.*")))
"""
RANKS = "-u -m fixtures.ranks.worker"  # in the command of a rank, and not in its torchrun's


def in_phase(lab: Lab, node: str, phase: str, deadline_s: float = 90.0) -> None:
    """Wait until a rank of a node is in a phase, read as its supervisor does."""
    argv = [sys.executable, "-S", "-c", _PROGRESS]
    assert wait_until(lambda: phase in lab.on(node, argv).stdout, deadline_s, poll_s=0.1), (
        f"{phase} on {node}?"
    )
