"""The files of a lab: those that a user gives to the suite, and those from which each node boots."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
from pathlib import Path

from tests.lab.parts.groups import GROUPS
from tests.lab.parts.keys import write_key
from tests.lab.parts.sshd import IN_NODE, SshdState
from tests.lab.plan import CONTROLLER_ADDRESS, NETWORK, Plan

PLAN = "plan.json"  # what the lab was asked to be
HOSTS = "hosts"
SSH_CONFIG = "ssh_config"
KNOWN_HOSTS = "known_hosts"
CLIENT_KEY = "client_key"
_BASHRC = "/root/.bashrc"
_PRIVATE = ("/tmp", "/var/tmp")
MOST_THAT_ASK = 16  # nodes of a lab in which each finds the others by ARP, as usual


def node_files(directory: Path, name: str) -> Path:
    """The directory of one node, which the node sees as /run/lab."""
    return directory / "nodes" / name


def write_lab(directory: Path, plan: Plan) -> None:
    """Write everything except what is new at each boot."""
    client = write_key(directory / CLIENT_KEY)
    known = []
    for name in plan.names:
        files = node_files(directory, name)
        files.mkdir(parents=True)
        known.append(f"{name},{plan.address(name)} {write_key(files / 'host_key')}")
        _write_node(files, plan, name, client)
    (directory / KNOWN_HOSTS).write_text("\n".join(known) + "\n")
    hosts = (f"{name} slots={plan.slots} addr={plan.address(name)}\n" for name in plan.names)
    (directory / HOSTS).write_text("".join(hosts))
    (directory / SSH_CONFIG).write_text("\n".join(_ssh_entry(directory, plan, name) for name in plan.names))


def _ssh_entry(directory: Path, plan: Plan, name: str) -> str:
    return f"""Host {name}
    HostName {plan.address(name)}
    Port 22
    User root
    IdentityFile "{directory / CLIENT_KEY}"
    IdentitiesOnly yes
    UserKnownHostsFile "{directory / KNOWN_HOSTS}"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    PasswordAuthentication no
"""


def _write_node(files: Path, plan: Plan, name: str, client: str) -> None:
    (files / "authorized_keys").write_text(client + "\n")
    (files / "bashrc").touch()
    (files / "etc_hosts").write_text(etc_hosts(plan))
    (files / "network.ip").write_text(
        "link set lo up\n"
        "link set eth0 addrgenmode none\n"  # no link-local address, so nothing waits for it
        f"address add {plan.address(name)}/{NETWORK.prefixlen} dev eth0\n"
        "link set eth0 up\n" + _neighbours(plan, name)
    )
    state = SshdState()
    state.save(files)
    (files / "sshd_config").write_text(state.render())
    (files / "machine-id").write_text(uuid.uuid4().hex + "\n")


def _neighbours(plan: Plan, name: str) -> str:
    """Permanent neighbour entries for the other nodes, in a lab that is too large for ARP.

    The kernel has one neighbour table for all network namespaces, of 1024 entries (gc_thresh3): 32 nodes that
    know each other fill it, and then healthy ones do not reach each other any more.
    """
    if plan.nodes <= MOST_THAT_ASK:
        return ""
    others = (other for other in plan.names if other != name)
    return "".join(
        f"neigh add {plan.address(one)} lladdr {plan.mac(one)} dev eth0 nud permanent\n" for one in others
    )


def etc_hosts(plan: Plan) -> str:
    """/etc/hosts of a node: every node of the lab, and the controller."""
    nodes = "".join(f"{plan.address(name)} {name}\n" for name in plan.names)
    return f"127.0.0.1 localhost\n{CONTROLLER_ADDRESS} controller\n{nodes}"


def write_boot(files: Path) -> None:
    """Write what is new at each boot: the boot id and the mounts."""
    (files / "boot_id").write_text(f"{uuid.uuid4()}\n")
    (files / "fstab").write_text("\n".join(_mounts(files)) + "\n")


def _mounts(files: Path) -> list[str]:
    """The mounts of a node, in order. No device is called `lab`, so `mount -a` finds none mounted already.

    A Python that the ranks need is kept where the node's private /tmp would hide it.
    """
    pythons = map(os.path.realpath, (sys.prefix, sys.base_prefix))
    kept = [path for path in pythons if any(Path(path).is_relative_to(place) for place in _PRIVATE)]
    lines = ["lab /proc proc defaults", "lab /run tmpfs mode=755"]
    lines += [f"{GROUPS} /run/groups none rbind,X-mount.mkdir", "lab /sys sysfs defaults"]
    lines += [f"/run/groups {GROUPS} none rbind"]
    lines += [f"{_escaped(str(files))} {IN_NODE} none bind,X-mount.mkdir"]
    lines += [f"{_escaped(path)} /run/keep{i} none rbind,X-mount.mkdir" for i, path in enumerate(kept)]
    lines += [f"lab {path} tmpfs mode=1777" for path in _PRIVATE]
    lines += ["lab /var/log tmpfs mode=755", "lab /dev/shm tmpfs mode=1777,size=2g"]
    lines += [f"/run/keep{i} {_escaped(path)} none rbind,X-mount.mkdir" for i, path in enumerate(kept)]
    bound = {"etc_hosts": "/etc/hosts", "bashrc": _BASHRC, "machine-id": "/etc/machine-id"}
    lines += [f"{IN_NODE}/{ours} {path} none bind" for ours, path in bound.items() if os.path.exists(path)]
    lines += [f"{IN_NODE}/boot_id /proc/sys/kernel/random/boot_id none bind"]
    return [f"{line} 0 0" for line in lines]


def _escaped(path: str) -> str:
    return path.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")


def make_directory(wanted: Path | None) -> Path:
    """Make the directory of a lab: a temporary one, or `wanted`, which must not exist."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="shakedown-lab-"))
    wanted = wanted.absolute()
    wanted.mkdir(mode=0o700)
    return wanted


def remove_directory(directory: Path) -> None:
    """Remove the lab's directory, which driver and user both do; the second finds nothing."""
    shutil.rmtree(directory, ignore_errors=True)
