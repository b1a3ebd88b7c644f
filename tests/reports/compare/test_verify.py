"""Whatever is changed in a journal, a verdict or a list is noticed, and the place is named."""

from __future__ import annotations

import random
import re
from pathlib import Path

from reports import answer, verdict_file
from reports.compare import verify
from reports.decision import decide
from reports.journal import scan
from reports.render import load
from tests.reports import making

FILES = ("results.jsonl", "verdict.json", "accepted.txt", "rejected.txt", "unproven.txt")


def finished(directory: Path) -> dict[str, bytes]:
    """A run that is over, without its page; gives what its files hold."""
    path = making.save(making.rejected(), directory)
    records = load(path)
    (directory / "verdict.json").write_text(verdict_file.text(records, decide(records), scan(path).last))
    answer.write_lists(directory, decide(records))
    return {name: (directory / name).read_bytes() for name in FILES}


def faults(directory: Path) -> list[str]:
    return list(verify.faults(directory, scan(directory / FILES[0])))


def edited(data: bytes, draw: random.Random) -> tuple[bytes, int]:
    """One edit anywhere, and the line in which it begins."""
    at = draw.randrange(len(data))
    lines = data.splitlines(keepends=True)
    line = data[:at].count(b"\n")
    how = draw.choice(["flip", "cut", "add", "drop", "double", "empty", "end"])
    if how == "end":
        return data[:at], line + 1
    if how in ("flip", "cut", "add"):
        byte = bytes([data[at] ^ 1 << draw.randrange(7)])
        rest = {"flip": byte + data[at + 1 :], "cut": data[at + 1 :], "add": byte + data[at:]}[how]
        return data[:at] + rest, line + 1
    lines[line : line + 1] = {"drop": [], "double": [lines[line]] * 2, "empty": [b"\n"]}[how]
    return b"".join(lines), line + 1


def test_a_run_that_nobody_touched_has_no_faults(tmp_path: Path) -> None:
    finished(tmp_path)
    assert faults(tmp_path) == []


def test_any_edit_is_noticed_and_located(tmp_path: Path) -> None:
    """Of a changed line that or the next one is named; of one that is gone at the end, the one before it."""
    files, draw = finished(tmp_path), random.Random(11)  # noqa: S311 - where to edit is no secret
    for name, data in files.items():
        for _ in range(60):
            found, line = edited(data, draw)
            if found == data:
                continue
            (tmp_path / name).write_bytes(found)
            said = "\n".join(faults(tmp_path))
            named = [int(number) for number in re.findall(rf"^{name}, line (\d+): ", said, re.MULTILINE)]
            near = {line, line + 1, min(line, len(found.splitlines()))}
            assert near.intersection(named), (line, found, said)
        (tmp_path / name).write_bytes(data)


def test_a_file_that_is_gone_is_said(tmp_path: Path) -> None:
    for name in finished(tmp_path).keys() - {"results.jsonl"}:
        (tmp_path / name).unlink()
        assert f"{name} cannot be read: No such file or directory" in faults(tmp_path)
