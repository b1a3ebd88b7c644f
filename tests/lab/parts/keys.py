"""Ed25519 keys in OpenSSH's formats, made in process: one ssh-keygen per node would cost seconds."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def write_key(path: Path) -> str:
    """Write a new private key (mode 0600, replaced as a whole), and its public half, which is handed back."""
    key = Ed25519PrivateKey.generate()
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    fresh.replace(path)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    path.with_name(path.name + ".pub").write_text(public + "\n")
    return public
