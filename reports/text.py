"""Text for files: control bytes, terminal colours and secrets are removed, and files are written whole."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path

REDACTED = "[redacted]"
_SHORT = 200  # characters: of such texts what may be shown is kept

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system commands: titles, links
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours and cursor moves
    r"|\x1b[ -/]*[0-~]?"  # whatever else begins with ESC
)
# Controls except tab and newline, surrogates, what XML forbids, and the marks that reorder text.
_ILLEGAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

# Lengths are bounded so that no text, however long or hostile, makes the search slow.
# A partition of InfiniBand is a setting of what is measured.
_ENV_NAME = (
    r"(?!(?:NCCL|UCX)_IB_PKEY\b)[A-Z0-9_]{0,64}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)[A-Z0-9_]{0,64}"
)
_PLAIN_NAME = r"(?:[A-Za-z0-9]{1,32}[_-]){0,6}(?:api|access)?(?:key|token|secret|password|passwd)"
_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"',;]|["',;](?=[^\s]))+"""
_ASSIGNED = re.compile(
    rf"""(?<![A-Za-z0-9_])({_ENV_NAME}["']?[ \t]{{0,8}}[=:][ \t]{{0,8}}|{_PLAIN_NAME}["']?=)({_VALUE})""",
)
_BEARER = re.compile(r"\b((?:Bearer|Basic)[ \t]+)[A-Za-z0-9._~+/=-]{8,}")
_USER_INFO = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{0,31}://)[^\s/@\"'<>]+@")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z0-9 ]*)PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_SECRET_NAME = re.compile(rf"{_ENV_NAME}|{_PLAIN_NAME}")
# In small letters: each pattern needs one of them, and nearly no text has any.
_SIGNS = ("key", "token", "secret", "passw", "credential", "bearer", "basic", "://")


def clean(text: str) -> str:
    """`text` without terminal escapes and without any character that must not be in a report."""
    if text.isascii() and text.isprintable():
        return text  # nearly all are, and a large report has a million of them
    plain = _ESCAPES.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return _ILLEGAL.sub("", plain)


def redact(text: str) -> str:
    """`text` without private keys, values of variables named like secrets, and users in URLs."""
    lowered = text.lower()
    if not any(sign in lowered for sign in _SIGNS):
        return text
    text = _PRIVATE_KEY.sub(rf"-----BEGIN \1PRIVATE KEY----- {REDACTED}", text)
    text = _ASSIGNED.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    return _USER_INFO.sub(rf"\1{REDACTED}@", text)


def shown(text: str) -> str:
    """What may be shown of a text; hundreds of ranks say the same short ones."""
    return _shown(text) if len(text) <= _SHORT else redact(clean(text))


@functools.lru_cache(maxsize=1 << 14)
def _shown(text: str) -> str:
    return redact(clean(text))


def first_line(text: str, limit: int = 400) -> str:
    """The first line of `text` that is not blank, cut to `limit` characters."""
    lines = (" ".join(line.split()) for line in clean(text).splitlines())
    line = next((line for line in lines if line), "")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def scrub(value: object) -> object:
    """`value` as plain data that JSON can hold and a report may show.

    Numbers that JSON lacks become the strings "NaN", "Infinity" and "-Infinity"; bytes become hexadecimal.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        words = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return float(value) if math.isfinite(value) else words
    if isinstance(value, Enum):
        return scrub(value.value)
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return _scrub_container(value)


def _scrub_container(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(_scrub_entry(name, item) for name, item in value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: scrub(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted((scrub(item) for item in value), key=str)
    if isinstance(value, Iterable):
        return [scrub(item) for item in value]
    if isinstance(value, numbers.Integral):
        return int(value)
    return shown(str(value))


def _scrub_entry(name: object, value: object) -> tuple[str, object]:
    """One entry of a mapping. Text under the name of a secret is dropped; a number is a measurement."""
    key = shown(str(name.value if isinstance(name, Enum) else name))
    if isinstance(value, str | bytes) and value and _SECRET_NAME.fullmatch(key):
        return key, REDACTED
    return key, scrub(value)


def write_file(path: Path, text: str) -> None:
    """Write `text` to a temporary file beside `path`, sync it to disk and rename it into place.

    So `path` is either the old file or the complete new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # mkstemp's 0600 would hide the report from the CI server
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def first_few(names: Sequence[str], most: int = 4) -> str:
    """The first `most` of these names, with commas, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
