"""Bring a lab up and take it down, from a process that stays in its own namespaces."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.lab.faults.fabric_faults import FabricFaults
from tests.lab.faults.hardware_faults import HardwareFaults
from tests.lab.faults.limit_faults import LimitFaults, remove_groups
from tests.lab.faults.node_faults import NodeFaults
from tests.lab.handle import LabError
from tests.lab.parts.files import PLAN, make_directory, remove_directory
from tests.lab.plan import Plan

_REPOSITORY = Path(__file__).resolve().parents[2]
_DOWN_S = 30.0


class Lab(FabricFaults, NodeFaults, LimitFaults, HardwareFaults):
    """A running lab. `Lab(directory)` uses one that another process has brought up."""

    driver: subprocess.Popen[str] | None = None  # only where it was brought up

    @classmethod
    @contextlib.contextmanager
    def up(
        cls, nodes: int, rate: str | None = None, slots: int = 1, directory: Path | None = None
    ) -> Iterator[Lab]:
        """Bring up a lab, yield it, and leave nothing of it.

        It lives in its own driver process, which ends it when this process ends in any way. What a killed
        driver could not remove is removed here.
        """
        plan = Plan(nodes, rate, slots)
        place = make_directory(directory)
        try:
            (place / PLAN).write_text(json.dumps(asdict(plan)))
            lab = cls(place)
            with _driver(place) as lab.driver:
                try:
                    yield lab
                finally:
                    lab._end_started()
        finally:
            remove_directory(place)
            remove_groups(place, plan.names)


@contextlib.contextmanager
def _driver(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the driver, and end it by closing its standard input (the end of this process does so too)."""
    argv = ["unshare", "--net", "--", sys.executable, "-m", "tests.lab.driver", str(place)]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as log,  # not in the directory, which a failed driver removes
        subprocess.Popen(
            argv, cwd=_REPOSITORY, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "up":
                process.wait(_DOWN_S)
                log.seek(0)
                raise LabError(f"the lab did not come up: {log.read().strip() or 'its driver was killed'}")
            yield process
        finally:
            process.stdin.close()
            try:
                process.wait(_DOWN_S)
            except subprocess.TimeoutExpired:
                process.kill()  # its nodes end with it
