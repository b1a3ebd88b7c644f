"""A hardware file merged with the files that it extends: a nearer file overrides a farther one."""

from __future__ import annotations

import difflib
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

from thresholds.loading.faults import Fault, Lines
from thresholds.loading.schema import ROWS, SECTIONS, Raw

LARGEST_BYTES = 1 << 20
HERE = Path(__file__).parents[1]
INHERITED = ("inside", "shared")  # keys of [hardware]; its other keys describe only the one file


class Unreadable(Exception):
    """A file cannot be read at all, or is not TOML from some line on; the text says why."""

    def __init__(self, text: str, line: int = 1) -> None:
        super().__init__(text)
        self.line = line


def shipped() -> dict[str, Path]:
    """The hardware files that come with the suite, by name: whole ones, and parts that others extend."""
    return {path.stem: path for path in sorted(HERE.glob("*.toml"))}


def unknown_name(name: str) -> str:
    """Say that no shipped file has this name, and suggest a similar one."""
    known = shipped()
    found = [one for one in known if name.lower() in one] or difflib.get_close_matches(name, known, n=1)
    near, far = f"did you mean {' or '.join(found)}?", f"known are {', '.join(known)}."
    hint = near if name and found else far
    return f"no hardware file of that name; {hint} A file of your own is named by its path"


def contents(path: Path) -> bytes:
    """The bytes of a regular file, at most one byte more than the limit."""
    try:
        if path.exists() and not path.is_file():
            kind = "a directory" if path.is_dir() else "not a regular file"
            raise Unreadable(f"cannot be read: it is {kind}")
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


@dataclass(frozen=True)
class Document:
    """One file by itself. `raw` is None if it could not be read as TOML."""

    path: Path
    raw: Raw | None
    lines: Lines
    sha256: str

    def fault(self, text: str, *keys: str | int) -> Fault:
        """What is wrong at a key (or table) of this file."""
        return Fault(str(self.path), self.lines.of(*keys), text)

    def table(self, name: str) -> Raw:
        """One table of it; empty when it has none."""
        found = self.raw.get(name) if self.raw else None
        return found if isinstance(found, dict) else {}

    @property
    def extends(self) -> str | None:
        """The name or path that it gives for the file that it extends."""
        word = self.table("hardware").get("extends")
        return word if isinstance(word, str) and word else None

    def parent(self) -> Path:
        """The path of the file that it extends: a shipped file, or relative to this file."""
        word = self.extends or ""
        if "/" in word or word.endswith(".toml"):
            return self.path.parent / word
        path = HERE / f"{word}.toml"
        if not path.is_file():
            raise Unreadable(unknown_name(word))
        return path


@functools.lru_cache(maxsize=128)  # many files extend the same few
def document(data: bytes, path: Path) -> tuple[Document, Sequence[Fault]]:
    """Read one file as TOML; returns it with its faults."""
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        text = _text(data)
        raw = _toml(text)
    except Unreadable as error:
        return Document(path, None, Lines(""), sha256), [Fault(str(path), error.line, str(error))]
    found = Document(path, raw, Lines(text), sha256)
    return found, list(_shape(found))


def _text(data: bytes) -> str:
    if len(data) > LARGEST_BYTES:
        raise Unreadable(f"a hardware file has at most {LARGEST_BYTES} bytes, and this one has more")
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable("this is not UTF-8 text; save the file as UTF-8", line) from error


def _toml(text: str) -> Raw:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at line ([0-9]+), column ([0-9]+)\)$", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        raise Unreadable(f"not TOML: {error}", line) from error
    except (RecursionError, ValueError) as error:
        raise Unreadable(f"not TOML that can be read: {error}") from error


def _shape(found: Document) -> Iterator[Fault]:
    """Report unknown sections, tables that are not tables, and rows that are not rows."""
    for name, value in (found.raw or {}).items():
        if name not in SECTIONS:
            yield found.fault(f"unknown section [{name}]{near(name, SECTIONS)}", name)
        elif name in ROWS and not isinstance(value, list):
            yield found.fault(f"{name} must be rows; write [[{name}]] with two brackets", name)
        elif name not in ROWS and not isinstance(value, dict):
            yield found.fault(f"{name} must be a table", name)


def near(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the most similar known name, or all of them."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else f"; known are: {', '.join(known)}"


class Family:
    """The documents of one hardware file, itself first. `whole`: all that it extends could be read."""

    def __init__(self, data: bytes, path: Path) -> None:
        first, faults = document(data, path)
        self.documents = [first]
        self.faults: list[Fault] = [*faults]
        self.whole = self._gather() and all(one.raw is not None for one in self.documents)

    @property
    def sha256(self) -> str:
        """The digest of the file; of all of them, when it extends others."""
        digests = [one.sha256 for one in self.documents]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def table(self, name: str) -> Raw:
        """One table, merged key by key."""
        keys = [(key, value) for one in reversed(self.documents) for key, value in one.table(name).items()]
        if name != "hardware":
            return dict(keys)
        own = self.documents[0].table(name)
        return {**{key: value for key, value in keys if key in INHERITED}, **own}

    def has(self, name: str) -> bool:
        """Whether the file, or one that it extends, has this table."""
        return any(isinstance((one.raw or {}).get(name), dict) for one in self.documents)

    def rows(self) -> Iterator[tuple[Document, int, tuple[str, int], object]]:
        """All rows of each kind, those of nearer files first: document, how many are nearer, keys, row."""
        for kind in ROWS:
            for distance, one in enumerate(self.documents):
                found = (one.raw or {}).get(kind)
                for index, raw in enumerate(found if isinstance(found, list) else ()):
                    yield one, distance, (kind, index), raw

    def having(self, *keys: str | int) -> Document:
        """The document that has a table or its key: the nearest, or the file itself where none has it."""
        own = keys[:1] == ("hardware",) and keys[1:2] not in [(name,) for name in INHERITED]
        for length in (2, 1):
            for one in self.documents[:1] if own else self.documents:
                if len(keys) >= length and _has(one, keys[:length]):
                    return one
        return self.documents[0]

    def _gather(self) -> bool:
        while (child := self.documents[-1]).extends:
            try:
                path = child.parent()
                if _same(path, self.documents):
                    raise Unreadable("the files extend each other in a circle")
                parent, faults = document(contents(path), path)
            except Unreadable as error:
                text = f"extends = {child.extends!r}: {error}"
                self.faults.append(child.fault(text, "hardware", "extends"))
                return False
            self.documents.append(parent)
            self.faults += faults
        return True


def _has(one: Document, keys: tuple[str | int, ...]) -> bool:
    table: object = one.raw
    for key in keys:
        if not isinstance(table, dict) or key not in table:
            return False
        table = table[key]
    return True


def _same(path: Path, documents: Iterable[Document]) -> bool:
    try:
        return path.resolve() in [one.path.resolve() for one in documents]
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, or not a path
        raise Unreadable(f"cannot be read: {error}") from error
