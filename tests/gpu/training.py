"""Points about training: traffic and memory in a world that torch makes up, and steps in one that is real."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import torch.distributed as dist

from fixtures.check.plan import Case
from fixtures.ranks.steps import REGISTRY, Context, Unsupported
from fixtures.ranks.study.fitting import DoesNotFit
from suites.expert import test_expert
from suites.tensor import test_tensor
from suites.zero import test_zero
from tests.fixtures.ranks.gloo_world import context
from tests.gpu.frame import Here, Impossible, world_of_one
from tests.suites import parallel
from tests.suites import test_closed_forms as closed_forms
from tests.suites.fake_world import assert_closed_forms
from thresholds.hardware import MODELS

RANKS, RANK = 8, 0  # to whose experts somebody sends: torch's fake group refuses to send an empty tensor
# Steps whose collectives are torch's own, which leaves them out of a world of one: `counting` counts them.
BY_TORCH = (
    *("zero.fsdp", "zero.fsdp_mixed", "zero.fsdp_prefetch", "zero.hsdp"),
    *("tensor.dtensor", "tensor.dtensor_sequence", "tensor.loss_parallel"),
)
# Two ranks are needed to shard among some and copy among others, to gather ahead, and to replicate heads; the
# ceiling of `mixed_precision` has room for what two of them make.
FROM_TWO_ON = ("hsdp", "fsdp_prefetch", "replicated", "mixed_precision")
SMALL = [*test_zero.STEPS, *test_tensor.STEPS, *test_expert.PARITY]
SMALL = [one for one in SMALL if one.words[-1] not in FROM_TWO_ON]
AT_SIZE = [*test_zero.AT_SIZE, *test_tensor.AT_SIZE, *test_expert.AT_SIZE]
# Where steps time their collectives alone, which need two ranks.
SENT = ("suites.zero.steps", "suites.zero.answers", "suites.tensor.technique")


def counting(here: Here, families: Collection[str] = tuple(closed_forms.CASES)) -> str:
    """On one of 8 ranks, with tensors on the device, all steps issue and hold what closed forms say."""
    device, seen = here.device, 0
    backend = "gloo" if device.type == "cpu" else "nccl"
    dist.init_process_group("fake", rank=RANK, world_size=RANKS)

    def placed(rank: int, size: int) -> Context:
        return replace(context(rank, size), backend=backend, device=device)

    for name in families:
        with mock.patch.object(closed_forms, "context", placed):
            found = closed_forms.accounts(RANKS, RANK, name)
        here.keep(family=name, found=found)
        assert found, f"{name} counts no step"
        assert_closed_forms(found, len(found))
        seen += len(found)
    assert seen, "no step was counted"
    return f"{seen} runs of a step issue and hold what the closed forms say, on rank {RANK} of {RANKS}"


def small(here: Here, cases: Sequence[Case] = SMALL) -> str:
    """Small steps in every dtype that they run in, twice, beside the unsharded model."""
    return _steps(here, [(case.step, case.parameters) for case in cases])


def at_size(here: Here, cases: Sequence[Case] = AT_SIZE) -> str:
    """Steps at the size of training: compared with the unsharded model, timed, and their peak."""
    backend = "gloo" if here.device.type == "cpu" else "nccl"
    return _steps(here, [(case.step, parallel.sized(case, 1, MODELS[backend])) for case in cases])


def _steps(here: Here, cases: Sequence[parallel.Case]) -> str:
    """Run them in a world of one; what one of them cannot do here is said once no other is wrong."""
    parallel.load([step for step, _ in cases])
    faults: list[str] = []
    lacking: list[str] = []
    peaks = 0
    with world_of_one(here) as ctx, ExitStack() as left_out:
        for module in SENT:
            left_out.enter_context(mock.patch(f"{module}.sent", return_value={"figures": {}}))
        for step, parameters in cases:
            try:
                told = REGISTRY[step](ctx, **parameters)
            except (DoesNotFit, Unsupported) as why:
                lacking.append(f"{step}: {why}")
                continue
            here.keep(step=step, parameters=parameters, told=told)
            faults += judged(step, parameters, told, ctx.backend)
            peaks += any(entry["what"].startswith("peak") for entry in told.get("memory", ()))
        weighed = ctx.device.type == "cpu" or not any(given.get("at_size") for _, given in cases)
    assert not faults, "; ".join(faults)
    assert peaks or weighed, "no step has a peak by the allocator"
    if lacking:
        raise Impossible("; ".join(lacking))
    return f"{len(cases)} runs of a step are right, {peaks} of them with a peak"


def judged(
    step: str, parameters: Mapping[str, Any], told: Mapping[str, Any], backend: str = "gloo"
) -> list[str]:
    """What the suite's own judges have against an answer; of nothing they have nothing to judge."""
    left_out = {"traffic"} if step in BY_TORCH else set()
    if not told.get("figures"):
        left_out.add("figures")  # those of a pattern, which was not timed
    kept = {part: said for part, said in told.items() if part not in left_out}
    missing = {"parity", "repeat", "memory", "traffic"} - told.keys()
    red = parallel.red(step, [kept], parameters, backend=backend)
    return [
        f"{step}: {part}: {words}" for part, words in {**dict.fromkeys(missing, "missing"), **red}.items()
    ]
