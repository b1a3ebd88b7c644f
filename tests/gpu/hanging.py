"""A hang on one card, ended as the suite ends any: by a deadline, with stack and flight recorder."""

from __future__ import annotations

import time
from unittest import mock

from fixtures.cluster.cluster import Cluster, Settings
from fixtures.cluster.contact import THIS_MACHINE
from fixtures.cluster.job import WITHOUT_GPUS
from fixtures.cluster.measurement import Answer, CaseRequest, Measurement, Unchecked, World
from fixtures.transport import bundle
from reports.record import JobRecord
from tests.gpu.frame import Here

DEADLINE_S, STUCK_S = 5.0, 600.0
FREE_S = 60.0  # what the next job on the same card may take to start, its import of torch included
# On a GPU a collective is issued behind a kernel that spins; gloo's ends, and its rank goes on waiting.
STEP = """
import torch
import torch.distributed as dist

from fixtures.ranks import timing
from fixtures.ranks.steps import Context, step
from fixtures.ranks.study.calibrated import Pace


@step
def behind(ctx: Context, *, seconds: float) -> dict:
    pace, one = Pace(ctx.device), torch.ones(1, device=ctx.device)
    if ctx.device.type == "cuda":
        pace.spend(seconds)
    dist.all_reduce(one)
    if ctx.device.type == "cpu":
        pace.spend(seconds)
    timing.complete(ctx)
    return {}
"""


def hang(here: Here) -> str:
    """A collective that does not complete is told as a hang, and the card is free for the next job."""
    hidden = WITHOUT_GPUS if here.asked == "cpu" else {}
    if not hidden:
        here.keep(device=here.device)
    files = {**bundle.files(), "suites/stuck/__init__.py": "", "suites/stuck/steps.py": STEP}
    records: list[object] = []
    settings = Settings(run_id="gpu", logs=here.place / "logs", env=hidden)
    with mock.patch.object(bundle, "files", return_value=files):
        cluster = Cluster(None, settings, records.append, print)
        cluster.open()
    try:
        first = _ask(cluster, "nodes.present", {})
        assert isinstance(first, Measurement), f"a job does not start: {first}"
        told, seconds = _timed(cluster, "stuck.behind", {"seconds": STUCK_S})
        again, next_s = _timed(cluster, "nodes.present", {})
    finally:
        cluster.close("the point is over")
    jobs = [vars(record) for record in records if isinstance(record, JobRecord)]
    here.keep(ended_s=seconds, next_s=next_s, told=told, detail=getattr(told, "detail", ""), jobs=jobs)
    return seen(first, told, again, seconds, next_s)


def seen(first: Measurement, told: Answer, again: Answer, seconds: float, next_s: float) -> str:
    """What must be said of it, by whom, and how soon."""
    assert isinstance(told, Unchecked), f"a hang was answered by {told}"
    assert told.sign == "hang", f"a hang is called {told.sign!r}: {told}"
    assert "in behind" in told.detail, f"the stack does not show the step: {told.detail}"
    assert ":all_reduce" in told.detail, f"the flight recorder has no all_reduce: {told.detail}"
    assert seconds >= DEADLINE_S, f"it was ended after {seconds:.1f} s, before its deadline"
    assert isinstance(again, Measurement), f"the card is not free: {again}"
    assert again.job != first.job, "the job that hung went on"
    assert [one.device for one in again.ranks] == [one.device for one in first.ranks], f"elsewhere: {again}"
    assert next_s <= FREE_S, f"the next job began after {next_s:.1f} s"
    return f"ended after {seconds:.1f} s, and the card was used again {next_s:.1f} s later"


def _timed(cluster: Cluster, step: str, parameters: dict[str, float]) -> tuple[Answer, float]:
    began = time.monotonic()
    return _ask(cluster, step, parameters), time.monotonic() - began


def _ask(cluster: Cluster, step: str, parameters: dict[str, float]) -> Answer:
    node = THIS_MACHINE.name
    request = CaseRequest(step, World((node,)), parameters, DEADLINE_S)
    [answer] = cluster.run([request], {}, {node: 1})
    return answer
