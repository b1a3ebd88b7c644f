"""What can go wrong with a node and its processes: power, hung programs, full disks, taken ports."""

from __future__ import annotations

import importlib.util
import re
import signal
import sys
from pathlib import Path

from tests.lab.handle import Handle, LabError
from tests.lab.parts.files import etc_hosts
from tests.lab.parts.sshd import IN_NODE
from tests.lab.processes import deliver

_TAKE_PORT = """
import os, signal, socket, sys
taken = socket.create_server(("0.0.0.0", int(sys.argv[2])))
if os.fork():
    os._exit(0)
os.setsid()
for standard in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), standard)
signal.pause()
"""
_SPIN = """
import os, sys
for _ in range(int(sys.argv[2])):
    if not os.fork():
        os.setsid()
        for standard in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), standard)
        while True:
            pass
"""
# Mounts a file system that it serves itself: it agrees on the protocol (FUSE 7.31), takes every request and
# answers none, so that a process that uses it waits and cannot be ended by a signal.
_SILENT_STORAGE = """
import ctypes, os, struct, sys
place = sys.argv[2]
os.makedirs(place, exist_ok=True)
channel = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={channel},rootmode=40000,user_id=0,group_id=0,allow_other"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"lab", place.encode(), b"fuse.lab", 0, options.encode()) != 0:
    raise OSError(ctypes.get_errno(), f"{place} cannot be mounted")
unique = struct.unpack_from("<IIQ", os.read(channel, 1 << 17))[2]
agreed = struct.pack("<IIIIHHIIHH8I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8)
os.write(channel, struct.pack("<IiQ", 16 + len(agreed), 0, unique) + agreed)
if os.fork():
    os._exit(0)
os.setsid()
for standard in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), standard)
while True:
    os.read(channel, 1 << 17)
"""


def _version_file() -> Path:
    """Where PyTorch keeps its version; finding it does not import it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise LabError(f"{sys.executable} has no PyTorch")
    return Path(found.origin).with_name("version.py").resolve()


class NodeFaults(Handle):
    """Faults of machines and processes."""

    def power_off(self, node: str) -> None:
        """End a node as a power cut does, except that its kernel lives: peers see their connections reset."""
        self._request("off", node)

    def vanish(self, node: str) -> None:
        """A power cut as peers see it: the link goes down first, so that no connection is closed."""
        self._pid(node)
        self._do_outside("ip", "link", "set", node, "down")
        self._request("off", node)

    def power_on(self, node: str) -> None:
        """Boot a node that is off: same name, address and keys, a new boot id, and the lab's link rate."""
        self._request("on", node)

    def restart(self, node: str) -> None:
        """Switch a node off and on again."""
        self.power_off(node)
        self.power_on(node)

    def kill(self, node: str, match: str) -> list[int]:
        """SIGKILL the processes whose command contains `match`; returns their pids in the node."""
        return self._signal(node, match, signal.SIGKILL)

    def stop(self, node: str, match: str) -> list[int]:
        """SIGSTOP them: they hang."""
        return self._signal(node, match, signal.SIGSTOP)

    def cont(self, node: str, match: str) -> list[int]:
        """SIGCONT them."""
        return self._signal(node, match, signal.SIGCONT)

    def freeze(self, node: str) -> list[int]:
        """Stop everything on a node, its sshd too; the kernel still answers pings and takes connections."""
        return self._signal(node, "", signal.SIGSTOP, first=1)

    def thaw(self, node: str) -> list[int]:
        """Undo `freeze`."""
        return self._signal(node, "", signal.SIGCONT, first=1)

    def _signal(self, node: str, match: str, number: signal.Signals, first: int = 2) -> list[int]:
        if not match and first > 1:
            raise LabError("an empty match would hit every process: say which")
        meant = [process for process in self.processes(node, match) if process.pid >= first]
        return [process.pid for process in meant if deliver(process, number)]

    def occupy_port(self, node: str, port: int) -> None:
        """Let a foreign program listen on a TCP port; `release_port` ends it."""
        self._do(node, sys.executable, "-c", _TAKE_PORT, "lab-port", str(port))

    def release_port(self, node: str, port: int) -> None:
        """Undo `occupy_port`."""
        self.kill(node, f"lab-port {port}")

    def hog(self, node: str, count: int = 1) -> None:
        """Let `count` foreign programs burn a core each; `unhog` ends them."""
        self._do(node, sys.executable, "-c", _SPIN, "lab-hog", str(count))

    def unhog(self, node: str) -> None:
        """Undo `hog`."""
        self.kill(node, "lab-hog")

    def small_tmp(self, node: str, size: str = "1m") -> None:
        """Limit the size of /tmp (the default is `50%`)."""
        self._do(node, "mount", "-o", f"remount,size={size}", "/tmp")

    def remove_python(self, node: str, python: str = sys.executable) -> None:
        """Hide the directory of the interpreter that the suite is told to use."""
        place = Path(python).parent
        if place.is_relative_to("/usr") or place.is_relative_to("/bin"):
            raise LabError(f"{place} also holds the node's shell; give the lab a virtual environment")
        self._do(node, "mount", "-t", "tmpfs", "-o", "size=4k", "lab", str(place))

    def restore_python(self, node: str, python: str = sys.executable) -> None:
        """Undo `remove_python`."""
        self._do(node, "umount", str(Path(python).parent))

    def silent_storage(self, node: str, place: str) -> None:
        """Mount a file system that takes every request and answers none, until `lost_storage`."""
        self._do(node, sys.executable, "-S", "-c", _SILENT_STORAGE, "lab-storage", place)

    def lost_storage(self, node: str) -> None:
        """End its server: all who use it, now or later, get the error that it is not connected."""
        self.kill(node, "lab-storage")

    def torch_version(self, node: str, version: str) -> None:
        """Let the node's PyTorch report another version; `restore_torch` undoes it."""
        ours = self.files(node) / "torch_version.py"
        said, count = re.subn(
            r"(?m)^__version__ = .*$", f"__version__ = {version!r}", _version_file().read_text()
        )
        if count != 1:
            raise LabError(f"{_version_file()} does not say its version in one line")
        ours.write_text(said)
        self._do(node, "mount", "--bind", f"{IN_NODE}/{ours.name}", str(_version_file()))

    def restore_torch(self, node: str) -> None:
        """Undo `torch_version`."""
        self._do(node, "umount", str(_version_file()))

    def resolve(self, node: str, name: str, address: str) -> None:
        """Let a name resolve to another address on a node, as `127.0.1.1 n02` does on a fresh Debian."""
        kept = [line for line in etc_hosts(self.plan).splitlines() if line.split()[1] != name]
        self._write_etc_hosts(node, "\n".join([*kept, f"{address} {name}"]) + "\n")

    def unresolve(self, node: str) -> None:
        """Undo `resolve`."""
        self._write_etc_hosts(node, etc_hosts(self.plan))

    def _write_etc_hosts(self, node: str, text: str) -> None:
        (self.files(node) / "etc_hosts").write_text(text)  # in place: the node has this very file mounted
