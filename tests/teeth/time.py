"""Bugs that cost nothing but time: what should hide waits, what should be quick is late. Nothing is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.fsdp import FSDPModule

from fixtures.ranks.study.calibrated import calibrated_work
from suites.context.test_context import RINGS
from suites.expert.test_expert import GROUPS, IN_TURN, NORMAL, PARITY, PATTERN, TOKENS
from suites.pipeline.test_pipeline import SCHEDULES
from suites.zero.test_zero import OVERLAP, STEPS
from tests.teeth.bug import Bug, Patch, never, of, one_in, planted, replacing
from tests.teeth.patches.flips import Late
from tests.teeth.patches.zero import hooked, mean_hook

Call = Callable[..., Any]
_ROUTED = [*TOKENS[:2], *PARITY[:2], *GROUPS, *PATTERN]
_CASES = {case.step: case.parameters for case in [*STEPS, *OVERLAP, *RINGS, *SCHEDULES, *NORMAL, *_ROUTED]}
_LATE_S, _HAND_OVER_S, _EXCHANGE_S = 0.02, 0.01, 0.03
_STAGE_S = 0.02
_STALL_S, _CALLS = 0.3, 24  # six of twenty samples have one


def late(seconds: float, rank: int | None = None) -> Callable[[Call], Call]:
    """A call returns so much later, on one rank or on all."""

    @replacing
    def make(original: Call, *args: Any, **kwargs: Any) -> Any:
        done = original(*args, **kwargs)
        if rank in (None, dist.get_rank()):
            calibrated_work(time.perf_counter() + seconds)
        return done

    return make


@replacing
def waited_for(original: Call, operations: list[Any]) -> list[Any]:
    """Sends and receives are over when the call returns."""
    for work in original(operations):
        work.wait()
    return []


@replacing
def hand_over_late(original: Call, operations: list[Any]) -> Any:
    """What is received comes so much later."""
    works = original(operations)
    if any(one.op is dist.irecv for one in operations):
        return [*works[:-1], Late(works[-1], lambda: calibrated_work(time.perf_counter() + _HAND_OVER_S))]
    return works


@replacing
def sends_in_turn(original: Call, operations: list[Any]) -> Any:
    """A side that has sent does nothing until the other has worked."""
    works = original(operations)
    if any(one.op is dist.isend and one.tensor.is_floating_point() for one in operations):
        calibrated_work(time.perf_counter() + _STAGE_S)
    return works


def bug(step: str, name: str, patch: Patch, red: str = "time") -> Bug:
    """Plant a bug in a step as the suite plans it."""
    return Bug(name, step, _CASES[step], patch, (red,), timed=True)


BUGS = [
    bug("zero.overlap", "buckets are exchanged one by one", hooked(mean_hook)),
    bug(
        "zero.fsdp_prefetch",
        "prefetch is ignored",
        planted(FSDPModule, "set_modules_to_forward_prefetch", never),
        "parity",
    ),
    bug("zero.zero3", "a gather is late on one rank", of("all_gather_single", late(_LATE_S, rank=1))),
    bug(
        "zero.zero3",
        "now and then a gather stalls on one rank",
        of("all_gather_single", one_in(_CALLS, late(_STALL_S, rank=1))),
    ),
    bug("expert.throughput", "exchanges are late", of("all_to_all_single", late(_EXCHANGE_S))),
    *(
        bug(case.step, "exchanges are late on one rank", of("all_to_all_single", late(_LATE_S, rank=1)))
        for case in _ROUTED[1::2] + _ROUTED[4:5]
    ),
    bug("context.ring", "a ring waits before it computes", of("batch_isend_irecv", waited_for)),
    bug("pipeline.one_f_one_b", "hand-overs are late", of("batch_isend_irecv", hand_over_late)),
    bug(
        "pipeline.zbv",
        "hand-overs keep one rank for longer than its stages last",
        planted(pipelining.schedules, "_batch_p2p", late(2 * _LATE_S, rank=1)),
    ),
    *(
        Bug(
            f"sides take turns with {case.words[-1]}",
            case.step,
            case.parameters,
            of("batch_isend_irecv", sends_in_turn),
            ("time",),
            timed=True,
        )
        for case in IN_TURN[:2]
    ),
]
