"""What raises, crashes, hangs or says nothing is red, what cannot be done is not green; others go on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from fixtures.node.processes import stat_fields, wait_until
from tests.gpu import __main__ as command
from tests.gpu.frame import (
    GREEN,
    IMPOSSIBLE,
    RED,
    Here,
    Impossible,
    Point,
    Said,
    all_of,
    status,
    world_of_one,
)


def fine(here: Here) -> str:
    print("looked")
    here.keep(seconds=1.5)
    return "all is well"


def raises(here: Here) -> str:
    raise ValueError("the clocks differ")


def crashes(here: Here) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "unreached"


def hangs(here: Here) -> str:
    if not os.fork():
        signal.pause()  # what a point started goes with it
    (here.place / "group").write_text(str(os.getpgrp()))
    signal.pause()
    return "unreached"


def leaves(here: Here) -> str:
    os._exit(0)


def lacks(here: Here) -> str:
    raise Impossible("no second card")


def meets(here: Here) -> str:
    with world_of_one(here) as ctx:
        one = torch.full((1,), 3.0, device=ctx.device)
        torch.distributed.all_reduce(one)
    return f"{ctx.backend} {one.item()}"


POINTS = [Point(point.__name__, point) for point in (fine, raises, crashes, leaves, lacks, meets)]


def test_each_point_is_what_became_of_it_and_the_next_one_is_looked_at(tmp_path: Path) -> None:
    found = list(all_of([*POINTS[:2], Point("hangs", hangs, 1.0), *POINTS[2:]], tmp_path, "cpu"))
    assert [(one.name, one.colour, one.words) for one in found] == [
        ("fine", GREEN, "all is well"),
        ("raises", RED, "exit status 1: ValueError: the clocks differ"),
        ("hangs", RED, "no answer within 1 s"),
        ("crashes", RED, "exit status -9: it printed nothing"),
        ("leaves", RED, "exit status 0: it printed nothing"),
        ("lacks", IMPOSSIBLE, "no second card"),
        ("meets", GREEN, "gloo 3.0"),
    ]
    assert status(found) == 1
    assert [one["name"] for one in json.loads((tmp_path / "summary.json").read_text())] == [
        one.name for one in found
    ]
    assert (tmp_path / "summary.txt").read_text().splitlines() == [str(one) for one in found]
    assert (tmp_path / "fine" / "log.txt").read_text() == "looked\n"
    assert json.loads((tmp_path / "fine" / "figures.jsonl").read_text()) == {"seconds": 1.5}
    group = int((tmp_path / "hangs" / "group").read_text())
    assert wait_until(lambda: no_one_in(group), 5)


def no_one_in(group: int) -> bool:
    """No process of the group is left; what is dead and waits for its parent is gone."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    fields = [stat_fields(pid) for pid in pids]
    return not any(len(one) > 2 and int(one[2]) == group and one[0] != "Z" for one in fields)


@pytest.mark.parametrize(
    ("colours", "said"), [((GREEN, GREEN), 0), ((GREEN, RED), 1), ((GREEN, IMPOSSIBLE), 1), ((), 1)]
)
def test_only_what_was_seen_to_be_right_is_green(colours: tuple[str, ...], said: int) -> None:
    assert status([Said("point", colour, "", 0.0) for colour in colours]) == said


def test_without_an_accelerator_the_command_says_so_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("fixtures.node.inventory.tools.PATHS", ())
    assert command.main([str(tmp_path / "found")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:18].strip() for line in lines[:-1]] == [IMPOSSIBLE] * len(command.POINTS)
    assert [line for line in lines[1:-1] if "torch sees no accelerator" not in line] == []
    assert lines[-1] == f"evidence: {tmp_path / 'found'}"
