"""Use a running lab from any process: commands on the controller or in a node, and a node's processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.lab import control
from tests.lab.parts.files import HOSTS, KNOWN_HOSTS, PLAN, SSH_CONFIG, node_files
from tests.lab.parts.sshd import DEFAULT_PATH
from tests.lab.plan import Plan
from tests.lab.processes import Process, describe, end_group, members, namespace

Stream = int | IO[Any] | None
_NODE_ENV = {"PATH": DEFAULT_PATH, "HOME": "/root", "LANG": "C.UTF-8"}


class LabError(Exception):
    """The lab cannot do what it was asked; says why."""


class Handle:
    """A client of a running lab, which needs only the lab's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        try:
            self.plan = Plan(**json.loads((self.directory / PLAN).read_text()))
        except OSError as error:
            raise LabError(f"no lab in {directory}: {error}") from error
        self.hosts_file = self.directory / HOSTS
        self.ssh_config = self.directory / SSH_CONFIG
        self.known_hosts = self.directory / KNOWN_HOSTS
        self._started: list[subprocess.Popen[str]] = []

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes, in rank order, whether they are on or off."""
        return self.plan.names

    def address(self, node: str) -> str:
        """The address of a node."""
        return self.plan.address(node)

    def suite_arguments(self) -> list[str]:
        """What pytest must be told to test this lab."""
        return [
            *("--hosts", str(self.hosts_file)),
            *("--ssh-config", str(self.ssh_config)),
            *("--known-hosts", str(self.known_hosts)),
            # The resolved path: a node's own /tmp may hide a symbolic link to it, but not its target.
            *("--remote-python", os.path.join(os.path.realpath(sys.prefix), "bin", "python")),
        ]

    def files(self, node: str) -> Path:
        """The node's own files, which it sees as /run/lab."""
        self.plan.index(node)
        return node_files(self.directory, node)

    def log(self, node: str) -> str:
        """What the node's sshd has logged since the lab came up."""
        return (self.files(node) / "sshd.log").read_text(errors="replace")

    # --- commands on the controller: the machine the suite is started on

    def controller_argv(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` in the lab's network, for use in the machine's own network."""
        return ["nsenter", f"--net=/proc/{self._request('state')['driver']}/ns/net", "--", *argv]

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> subprocess.Popen[str]:
        """Start a command on the controller, in its own session; the pid is the command's, not nsenter's.

        `env` is added to this process's environment without pytest's own variables. What still runs when the
        lab ends is killed.
        """
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return self._start(self.controller_argv(argv), {**ours, **(env or {})}, cwd, streams)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the controller; TimeoutExpired kills its process group."""
        pipe = subprocess.PIPE
        return _finish(self.popen(argv, env=env, cwd=cwd, stdout=pipe, stderr=pipe), timeout_s)

    # --- inside a node

    def node_argv(self, node: str, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` in all of a node's namespaces."""
        scopes = ["--net", "--mount", "--uts", "--ipc", "--pid"]
        return ["nsenter", "--target", str(self._pid(node)), *scopes, "--", *argv]

    def popen_on(
        self,
        node: str,
        argv: Sequence[str],
        *,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> subprocess.Popen[str]:
        """Start a command as root in a node, not through its sshd.

        Its pid is nsenter's, which stops itself when the command is stopped and waits to be continued; `end`
        ends both.
        """
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        return self._start(self.node_argv(node, argv), _NODE_ENV, None, streams)

    def on(
        self, node: str, argv: Sequence[str], *, timeout_s: float = 30.0, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root in a node, not through its sshd."""
        pipe = subprocess.PIPE
        source = subprocess.DEVNULL if stdin is None else pipe
        return _finish(self.popen_on(node, argv, stdin=source, stdout=pipe, stderr=pipe), timeout_s, stdin)

    def processes(self, node: str, match: str = "") -> list[Process]:
        """The living processes of a node whose command contains `match`; sshd itself has pid 1."""
        within = namespace(self._pid(node), "pid")
        found = (describe(pid) for pid in members("pid", within))
        return sorted((p for p in found if p and match in p.command), key=lambda process: process.pid)

    # --- for the faults

    def _request(self, verb: str, *arguments: str) -> dict[str, Any]:
        try:
            return control.request(self.directory, verb, *arguments)
        except control.ControlError as error:
            raise LabError(str(error)) from error

    def _pid(self, node: str) -> int:
        """Process 1 of a node, seen from outside."""
        self.plan.index(node)
        pid = self._request("state")["nodes"][node]
        if pid is None:
            raise LabError(f"{node} is switched off")
        return int(pid)

    def _do(self, node: str, *argv: str, stdin: str | None = None) -> str:
        """Run a command in a node; raises LabError if it fails."""
        return _checked(self.on(node, argv, stdin=stdin), f"in {node}")

    def _do_outside(self, *argv: str) -> str:
        """Run a command on the controller; raises LabError if it fails."""
        return _checked(self.run(argv), "in the lab's network")

    def _start(
        self, argv: list[str], env: Mapping[str, str], cwd: str | Path | None, streams: Mapping[str, Stream]
    ) -> subprocess.Popen[str]:
        """Start a command as the leader of its own session, and remember it until the lab ends."""
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=streams["stdin"],
            stdout=streams["stdout"],
            stderr=streams["stderr"],
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def _end_started(self) -> None:
        """End what was started and still runs."""
        for process in self._started:
            end(process)
        self._started.clear()


def end(process: subprocess.Popen[str]) -> None:
    """Kill a command that was started here and all of its process group; close our ends of its streams."""
    if process.poll() is None:
        end_group(process.pid)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):  # a buffer that nobody will read any more
                stream.close()


def _finish(
    process: subprocess.Popen[str], timeout_s: float, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Wait for a command; neither it nor its process group outlives the timeout."""
    try:
        out, errors = process.communicate(stdin, timeout=timeout_s)
    finally:
        end(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def _checked(done: subprocess.CompletedProcess[str], where: str) -> str:
    if done.returncode != 0:
        command = " ".join(str(word) for word in done.args)
        raise LabError(f"{command} failed {where} with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout
