"""Runs each point in a process of its own: one that raises, crashes or hangs is red, and the others go on."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from fixtures.ranks.steps import Context

GREEN, RED, IMPOSSIBLE = "green", "red", "not possible here"
_FORK = multiprocessing.get_context("fork")  # so nothing here may touch CUDA: a fork could not use it then


class Impossible(Exception):
    """This machine lacks what a point needs."""


@dataclass(frozen=True)
class Here:
    """A point's device (None: the machine's first accelerator) and its directory of evidence."""

    place: Path
    asked: str | None = None

    @property
    def device(self) -> torch.device:
        """The device, which nobody uses by asking: what a point starts must find it free."""
        if self.asked is None and not torch.cuda.is_available():
            raise Impossible("torch sees no accelerator: torch.cuda.is_available() is False")
        return torch.device(self.asked or "cuda:0")

    def keep(self, **figures: object) -> None:
        """Write evidence down, whatever becomes of the point."""
        with (self.place / "figures.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(figures, default=str) + "\n")


@dataclass(frozen=True)
class Point:
    """Something to look at: it says in words what it found, and raises where that is not as it should be."""

    name: str
    run: Callable[[Here], str]
    deadline_s: float = 120.0


@dataclass(frozen=True)
class Said:
    """What became of a point."""

    name: str
    colour: str
    words: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.colour:18}{self.name:16}{self.seconds:6.1f} s  {self.words}"


def all_of(points: Sequence[Point], place: Path, asked: str | None = None) -> Iterator[Said]:
    """Run one point after the other; the summary on disk is whole after each."""
    found: list[Said] = []
    for point in points:
        said = _one(point, Here(place / point.name, asked))
        found.append(said)
        text = json.dumps([dataclasses.asdict(one) for one in found], indent=2)
        (place / "summary.json").write_text(text + "\n", encoding="utf-8")
        (place / "summary.txt").write_text("".join(f"{one}\n" for one in found), encoding="utf-8")
        yield said


def status(found: Sequence[Said]) -> int:
    """Say 0 only where there are points and all of them are green: what was not possible was not seen."""
    return int(not found or any(one.colour != GREEN for one in found))


def _one(point: Point, here: Here) -> Said:
    here.place.mkdir(parents=True)
    began = time.monotonic()
    process = _FORK.Process(target=_child, args=(point, here))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 and later warn of fork beside threads
        process.start()
    process.join(point.deadline_s)
    late = process.is_alive()
    with suppress(ProcessLookupError, PermissionError):  # a group of its own: what it started goes too
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.kill()
    process.join()
    seconds = time.monotonic() - began
    if late:
        return Said(point.name, RED, f"no answer within {point.deadline_s:g} s", seconds)
    if process.exitcode == 0 and (here.place / "said.json").exists():
        colour, words = json.loads((here.place / "said.json").read_text(encoding="utf-8"))
        return Said(point.name, colour, words, seconds)
    lines = (here.place / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else "it printed nothing"
    return Said(point.name, RED, f"exit status {process.exitcode}: {last}", seconds)


def _child(point: Point, here: Here) -> None:
    """What the point raises ends this process, and its traceback is the end of the log."""
    os.setpgid(0, 0)
    with (here.place / "log.txt").open("w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    torch.set_num_threads(1)  # the parent's OpenMP threads did not survive the fork
    try:
        said = GREEN, point.run(here)
    except Impossible as why:
        said = IMPOSSIBLE, str(why)
    (here.place / "said.json").write_text(json.dumps(said), encoding="utf-8")
    os._exit(0)  # an ordinary exit may wait for a process group that is left


@contextmanager
def world_of_one(here: Here) -> Iterator[Context]:
    """A process group of this process alone, made as ranks make theirs."""
    device = here.device
    backend, bound = ("gloo", None) if device.type == "cpu" else ("nccl", device)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, device_id=bound)  # type: ignore[attr-defined]
    yield Context(0, 1, backend, device, ["here"], [0], seed=7)
    dist.destroy_process_group()
