"""The sshd of a node: its state, kept between faults, and the configuration made from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROGRAM = "/usr/sbin/sshd"
IN_NODE = "/run/lab"  # where a node sees its own files
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STATE = "sshd.json"

# sshd uses the first value that it reads, so what a fault sets is written above these.
_DEFAULTS = {
    "Port": "22",
    "AddressFamily": "inet",
    "HostKey": f"{IN_NODE}/host_key",
    "AuthorizedKeysFile": f"{IN_NODE}/authorized_keys",
    "PermitRootLogin": "prohibit-password",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "UsePAM": "no",
    "StrictModes": "no",
    "UseDNS": "no",
    "PidFile": "none",
    "LogLevel": "INFO",
    "PrintMotd": "no",
    "PrintLastLog": "no",
    "Subsystem": "sftp internal-sftp",
}


@dataclass
class SshdState:
    """What faults have set for one node's sshd: variables for the programs it starts, and options."""

    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, files: Path) -> SshdState:
        """Read the state from the node's directory."""
        return cls(**json.loads((files / _STATE).read_text()))

    def save(self, files: Path) -> None:
        """Write the state to the node's directory."""
        (files / _STATE).write_text(json.dumps(asdict(self)))

    def render(self) -> str:
        """Write the configuration as sshd reads it."""
        lines = [f"{name} {value}" for name, value in {**self.options, **_DEFAULTS, **self.options}.items()]
        if self.environment:  # one line: sshd heeds only the first SetEnv
            lines.append("SetEnv " + " ".join(_quoted(*item) for item in self.environment.items()))
        return "\n".join(lines) + "\n"


def _quoted(name: str, value: str) -> str:
    if not name.isidentifier() or any(ord(character) < 32 for character in value):
        raise ValueError(f"sshd cannot set {name!r} to {value!r}: a name, and a value on one line")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}={escaped}"'
