"""The same layers as torch ships them: plans for `parallelize_module`, and a layer under one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
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

from suites.tensor.technique import Layer, Weights, full

Tensor = torch.Tensor
Plan = Mapping[str, Any]


def block_plan() -> Plan:
    """Column and row; q, k, v, gate and up each all-reduce their own gradient of their shared input."""
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


@dataclass(kw_only=True)
class Planned(Layer):
    """The whole model under a plan. `cuts`: of input and output alone; gradients are compared whole.

    `parallel_loss`: cross-entropy on logits that stay split, forward and backward.
    """

    plan: Callable[[], Plan]
    parallel_loss: bool = False

    def make(self, dtype: torch.dtype) -> tuple[Weights, Callable[[Tensor], Tensor]]:
        """Parallelize the model."""
        mesh = init_device_mesh(self.ctx.device.type, (self.ctx.size,))
        model = parallelize_module(deepcopy(self.whole).to(dtype), mesh, dict(self.plan()))
        return dict(model.named_parameters()), lambda x: full(model(x))

    def around(self) -> AbstractContextManager[Any]:
        """The context that makes the loss parallel."""
        return loss_parallel() if self.parallel_loss else nullcontext()
