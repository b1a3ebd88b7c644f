"""The same layers as torch ships them: plans for `parallelize_module`, and how one of its models is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from fixtures.ranks.steps import Context
from suites.tensor.trial import Cut, Ran, Trial, as_input, direction_for, full, settle, settled

Tensor = torch.Tensor
Plan = Mapping[str, Any]
Around = Callable[[], AbstractContextManager[Any]]


def block_plan() -> Plan:
    """Column and row; q, k, v, gate and up each gather their own gradient of the activations they share."""
    column = {name: ColwiseParallel() for name in ("attention.q", "attention.k", "attention.v")}
    column |= {name: ColwiseParallel() for name in ("mlp.gate", "mlp.up")}
    return column | {name: RowwiseParallel() for name in ("attention.o", "mlp.down")}


def sequence_plan() -> Plan:
    """The sequence split at the norms; gathered once before attention and once before the MLP."""
    plan: dict[str, Any] = dict(block_plan())
    plan |= {name: SequenceParallel() for name in ("attention_norm", "mlp_norm")}
    plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.o", "mlp.down")}
    plan["attention"] = PrepareModuleInput(
        input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
    )
    plan["mlp"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    return plan


def head_plan() -> Plan:
    """The head split by words; the logits stay split."""
    return {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}


def parallel_trial(
    ctx: Context,
    whole: nn.Module,
    x: Tensor,
    plan: Callable[[], Plan],
    *,
    traffic: Mapping[str, tuple[int, int]],
    elements: int,
    cuts: Mapping[str, Cut] | None = None,
    around: Around = nullcontext,
) -> Trial:
    """Run `whole` under a plan. `cuts`: of input and output alone; gradients are compared whole."""
    direction = direction_for(whole, x)
    held = cuts or {}
    ready = partial(
        _ready, ctx=ctx, whole=whole, x=x, direction=direction, cuts=held, plan=plan, around=around
    )
    return Trial(whole, x, direction, ready, traffic, elements, held)


def loss_split() -> AbstractContextManager[Any]:
    """Cross-entropy on logits that stay split, forward and backward."""
    return loss_parallel()


def _ready(
    dtype: torch.dtype,
    *,
    ctx: Context,
    whole: nn.Module,
    x: Tensor,
    direction: Tensor,
    cuts: Mapping[str, Cut],
    plan: Callable[[], Plan],
    around: Around,
) -> Callable[[], Ran]:
    mesh = init_device_mesh(ctx.device.type, (ctx.size,))
    model = parallelize_module(deepcopy(whole).to(dtype), mesh, dict(plan()))
    mine = as_input(cuts["input"](x) if "input" in cuts else x, dtype)
    goal = cuts["forward"](direction) if "forward" in cuts else direction

    def run() -> dict[str, Tensor]:
        with around():
            return settle(full(model(mine)), goal, mine)

    return lambda: settled(run, model.named_parameters())
