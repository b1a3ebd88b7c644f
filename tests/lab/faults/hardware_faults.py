"""Let a node look like other hardware: stub tools on its PATH, and recorded files in /sys and /proc."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.lab.faults.login_faults import LoginFaults
from tests.lab.parts.sshd import DEFAULT_PATH, IN_NODE

_DRESS = f"{IN_NODE}/dress"
# Directories of the kernel in which a recorded tree may have entries. Nothing can be created in them, so each
# is replaced by a directory with the recorded entries and the real ones.
_LAYERED = ("sys/class", "sys/bus", "sys/module", "sys/kernel", "proc/driver")
# The real and the recorded entries are mounted below one temporary file system, and that is mounted over the
# real directory. Real entries that are files are left out: no rank reads any of those.
_LAYER = """
set -eu
root=$1
shift
mkdir /run/dress
mount -t tmpfs -o mode=755 dress /run/dress
for place in "$@"; do
    new=/run/dress/$place
    mkdir -p "$new"
    for entry in "/$place"/*; do
        name=${entry##*/}
        if [ -d "$entry" ] && [ ! -e "$root/$place/$name" ]; then
            mkdir "$new/$name"
            mount --rbind "$entry" "$new/$name"
        fi
    done
    for entry in "$root/$place"/*; do
        mkdir "$new/${entry##*/}"
        mount --bind "$entry" "$new/${entry##*/}"
    done
    mount --rbind "$new" "/$place"
done
"""
_UNLAYER = """
set -eu
for place in "$@"; do
    umount --recursive "/$place"
done
umount --recursive /run/dress
rmdir /run/dress
"""


class HardwareFaults(LoginFaults):
    """A node's hardware, as its tools and its kernel report it."""

    def dress(self, node: str, directory: Path) -> None:
        """Let a node look like a recorded one: bin/ first on its PATH, root/sys and root/proc over its own.

        Holds for connections made afterwards, until `undress` or the node's next boot.
        """
        shutil.copytree(directory, self.files(node) / "dress", symlinks=True)
        self._do(node, "sh", "-c", _LAYER, "dress", f"{_DRESS}/root", *_layered(directory))
        self.env(node, "PATH", f"{_DRESS}/bin:{DEFAULT_PATH}")

    def undress(self, node: str) -> None:
        """Undo `dress`."""
        self.env(node, "PATH", None)
        worn = self.files(node) / "dress"
        self._do(node, "sh", "-c", _UNLAYER, "undress", *_layered(worn))
        shutil.rmtree(worn)

    def rails(self, node: str, addresses: Mapping[str, str]) -> None:
        """Give a node network devices with these addresses ({"ibp24s0": "10.0.0.1/24"}), until it boots.

        They are bridges without ports: not every kernel has the kind of device that is meant for this.
        """
        lines = [
            f"link add {device} type bridge\naddress add {address} dev {device}\n"
            for device, address in addresses.items()
        ]
        self._do(node, "ip", "-batch", "-", stdin="".join(lines))


def _layered(directory: Path) -> list[str]:
    return [place for place in _LAYERED if (directory / "root" / place).is_dir()]
