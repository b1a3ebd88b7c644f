"""Data parallelism as torch ships it: DistributedDataParallel, ZeroRedundancyOptimizer, fully_shard."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fixtures.ranks.groups import lasting, mesh_names
from fixtures.ranks.steps import Context
from fixtures.ranks.study.driver import EXACT, Entries, Named
from fixtures.ranks.study.memory import storage_bytes
from fixtures.ranks.study.models import gradient_of
from fixtures.wire.held import Weighed
from suites.zero import clipping
from suites.zero.training import RULE, Engine, Task

with warnings.catch_warnings():  # torch warns of its own use of torch.jit.script when this is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer

AXES = ("replicate", "shard")  # of a mesh, outermost first
_MEBI = 1 << 20


class Replicated(Engine):
    """DDP with buckets of `bucket_bytes`. Ranks start from different weights: those of rank 0 must win."""

    def __init__(self, task: Task, dtype: torch.dtype, bucket_bytes: int) -> None:
        self.task, self.model = task, task.model(dtype)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.mul_(1 + task.ctx.rank / task.ctx.size)
        self.wrapped = DistributedDataParallel(self.model, bucket_cap_mb=bucket_bytes / _MEBI)
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Every rank updates everything."""
        return RULE.optimizer(self.model.parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forward by DDP, which prepares backward."""
        output: torch.Tensor = self.wrapped(x)
        return output

    def around(self, last: bool) -> AbstractContextManager[object]:
        """Hold back the exchange until the last micro-batch."""
        return nullcontext() if last else self.wrapped.no_sync()


class ShardedOptimizer(Replicated):
    """DDP whose optimizer keeps the states of its own parameters and broadcasts them when updated."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Each parameter belongs to one rank."""
        return ZeroRedundancyOptimizer(
            self.model.parameters(),
            optimizer_class=torch.optim.SGD,
            parameters_as_bucket_view=True,
            lr=RULE.rate,
            momentum=RULE.momentum,
        )


class FullySharded(Engine):
    """fully_shard around each block and the whole; parameters are cut along their first dimension.

    It gathers and reduces by itself, with every micro-batch.
    """

    def __init__(self, task: Task, mesh: DeviceMesh, reshard: bool, dtype: torch.dtype) -> None:
        self.task, self.model = task, task.model(dtype)
        self.mesh = mesh
        for module in (*self.model, self.model):
            self.root = fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=self.policy())
        self.optimizer = RULE.optimizer(self.model.parameters())

    def policy(self) -> MixedPrecisionPolicy:
        """Nothing is cast."""
        return MixedPrecisionPolicy()

    def unsharded_bytes(self) -> int:
        """Bytes of whole parameters now."""
        return storage_bytes([p for p in self.model.parameters() if not isinstance(p, DTensor)])

    def reshard(self) -> None:
        """Free what a forward without a backward left whole."""
        for block in self.model:
            if isinstance(block, FSDPModule):
                block.reshard()

    def held(self) -> Weighed:
        """Each state after resharding; and the whole parameters after forward."""
        self.reshard()
        return {**super().held(), "live unsharded": self.live_bytes}

    def gradients(self) -> Named:
        """Local shards."""
        return {name: local(gradient_of(weight)) for name, weight in self.model.named_parameters()}

    def parameters(self) -> Named:
        """Local shards."""
        return {name: local(weight) for name, weight in self.model.named_parameters()}

    def beside(self, dtype: torch.dtype) -> Entries:
        """Join and clip the gradients of the last step by torch's own functions."""
        return clipping.by_torch(dict(self.model.named_parameters()), self.part) if dtype is EXACT else []

    def part(self, full: Named) -> Named:
        """The same shards of full tensors: those along the mesh's last dimension."""
        shards, own = self.mesh.size(-1), self.mesh.get_local_rank(-1)
        return {name: tensor.chunk(shards)[own] for name, tensor in full.items()}


class Replicas(FullySharded):
    """fully_shard on a mesh of replicas, which add up their shards of the gradients at the end alone."""

    def around(self, last: bool) -> AbstractContextManager[object]:
        """Reduce among the shards with every micro-batch, and among the replicas with the last."""
        self.root.set_requires_all_reduce(last)
        return nullcontext()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a tensor."""
    return distributed(tensor).to_local()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All ranks' shards of a tensor, joined."""
    found: torch.Tensor = distributed(tensor).full_tensor()
    return found.detach()


def distributed(tensor: torch.Tensor) -> DTensor:
    """Refuse a tensor that was to be sharded and is whole."""
    if not isinstance(tensor, DTensor):
        raise TypeError(f"a tensor of shape {list(tensor.shape)} was to be sharded and is whole")
    return tensor


def on_mesh(
    ctx: Context, shape: tuple[int, ...], work: Callable[[DeviceMesh], dict[str, Any]]
) -> dict[str, Any]:
    """Do the work on a mesh of this shape; destroy its groups unless the work fails."""
    ranks, names = torch.arange(ctx.size).view(shape), mesh_names(*AXES[-len(shape) :])
    mesh = DeviceMesh(ctx.device.type, ranks, mesh_dim_names=names)
    groups = [mesh.get_group(number) for number in range(len(shape))]
    with lasting(groups):
        return work(mesh)
