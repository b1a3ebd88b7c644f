"""One node in the driver: `unshare`, below it process 1, and the pipe that carries sshd's log."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.lab.parts.files import node_files, write_boot
from tests.lab.parts.network import shaper
from tests.lab.plan import Plan
from tests.lab.processes import catches

_BOOT = Path(__file__).with_name("boot.sh")
_LISTENING = b"Server listening on"
# The driver's death ends `unshare`, and that ends process 1: nothing outlives a killed driver.
_UNSHARE = [
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL", "--"),
]


class Node:
    """A node from power-on to power-off. `pid` is its process 1 seen from outside, 0 until it is known."""

    def __init__(self, directory: Path, plan: Plan, name: str) -> None:
        self.name = name
        self.pid = 0
        self.listening = 0  # how often sshd has said that it listens
        self.alive = True
        self._files = node_files(directory, name)
        self._plan = plan
        self._rest = b""
        self._handle = -1
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        write_boot(self._files)
        rate = self._plan.rate
        (self._files / "network.tc").write_text("" if rate is None else shaper("eth0", rate) + "\n")
        self._log = (self._files / "sshd.log").open("ab", buffering=0)
        argv = [*_UNSHARE, "/bin/sh", str(_BOOT), self.name, str(self._files)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, bufsize=0, start_new_session=True
        )

    def fileno(self) -> int:
        """The pipe to wait for: readable when `pump` has something to do."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def pump(self) -> None:
        """Take what the node has written; end of file means that the node has ended."""
        data = os.read(self.fileno(), 65536)
        if not data:
            self._bury()
            return
        self._log.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"ready ") and not self.pid:
                self._handle = os.pidfd_open(int(line.split()[1]))
                self.pid = int(line.split()[1])
            self.listening += line.startswith(_LISTENING)

    def _bury(self) -> None:
        """Reap `unshare`: everything that could write is gone, process 1 included."""
        self._process.wait()
        self.alive = False
        for file in (self._process.stdin, self._process.stdout, self._log):
            if file is not None:
                file.close()
        if self._handle >= 0:
            os.close(self._handle)

    def go(self) -> None:
        """Let the node configure its network device, which is there now, and start its sshd."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()

    @property
    def reloadable(self) -> bool:
        """Whether sshd has installed its handler for SIGHUP (process 1 ignores the signal until then)."""
        return catches(self.pid, signal.SIGHUP)

    def signal(self, number: signal.Signals) -> None:
        """Signal process 1; SIGKILL is the loss of power."""
        if self._handle >= 0:
            signal.pidfd_send_signal(self._handle, number)
        else:
            self._process.send_signal(number)

    def log(self) -> str:
        """What the node has said since it was first switched on."""
        return (self._files / "sshd.log").read_text(errors="replace")
