"""Expert parallelism with fully_shard around it: the most common way to train large mixtures on GPUs.

Experts are distributed along ep. fully_shard cuts an expert's weights among its replicas (edp), and all
others among all ranks (dp_cp), each weight by rows; if they do not divide, the last ranks have fewer. What
one fully_shard gathers at once is a group; each has 2 all_gather (forward, and backward again) and
1 reduce_scatter in fp32 per micro-batch, of its weights with padded rows (arXiv:2304.11277, section 3):

    dp_cp   per block its attention and norms, and its router; embedding, last norm and head
    edp     per block all experts of the rank

fully_shard gives the mean over a group's ranks. That is right for dense weights; an expert has seen the
tokens of its whole set, so its gradient is divided by all ranks (torchtitan's `set_gradient_divide_factor`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from fixtures.ranks.groups import mesh_names
from fixtures.ranks.study.driver import Named
from fixtures.ranks.study.memory import local
from fixtures.ranks.study.models import gradient_of
from suites.context.ring_attention import wide
from suites.mesh.layout import shard
from suites.mesh.moe.grid import Grid
from suites.mesh.moe.held import fully_sharded
from suites.mesh.moe.run import SHARDED, Mixture
from suites.mesh.moe.stage import is_expert
from suites.mesh.moe.task import Task
from suites.mesh.moe.training import Trainer
from suites.mesh.technique import RULE


class FullySharded(Trainer):
    """One rank's part, as torch's fully_shard divides it."""

    def __init__(self, task: Task, grid: Grid, dtype: torch.dtype) -> None:
        super().__init__(task, grid, dtype)
        policy = MixedPrecisionPolicy(reduce_dtype=wide(dtype))
        everyone, replicas = (self._mesh(line) for line in ("dp_cp", "edp"))
        for block in self.stage.blocks.values():
            mixture: Any = block.mlp
            fully_shard(list(mixture.experts), mesh=replicas, reshard_after_forward=True, mp_policy=policy)
            for module in (mixture, block):  # a router alone has a dtype of its own
                fully_shard(module, mesh=everyone, reshard_after_forward=True, mp_policy=policy)
        fully_shard(self.stage, mesh=everyone, reshard_after_forward=True, mp_policy=policy)
        weights = self.weights()
        self.optimizer = RULE.optimizer(one for name, one in weights.items() if not is_expert(name))
        self.optimizer.add_param_group({"params": [one for name, one in weights.items() if is_expert(name)]})

    def _mesh(self, line: str) -> DeviceMesh:
        group, kind = self.grid.group(line).handle, self.task.ctx.device.type
        return DeviceMesh.from_group(group, kind, mesh_dim_names=mesh_names(line))

    def part(self, whole: Named) -> dict[str, Tensor]:
        """This rank's losses, its stage's outputs, and its rows of each weight and gradient."""
        return {
            what: self._rows(what, tensor) if ":" in what else tensor
            for what, tensor in super().part(whole).items()
        }

    def _rows(self, name: str, whole: Tensor) -> Tensor:
        group = self.grid.group("edp" if is_expert(name) else "dp_cp")
        rows = shard(len(whole), group.rank, group.size)
        return whole[rows.start : rows.stop]

    def synchronise(self) -> None:
        """Correct the divisor of experts, the only thing left."""
        for name, weight in self.weights().items():
            if is_expert(name):
                local(gradient_of(weight)).mul_(self.grid.group("edp").size / self.task.axes.stage_ranks)


class ShardedMixture(Mixture):
    """The mixture of experts whose weights are all sharded."""

    patterns, engine, weighed = SHARDED, FullySharded, staticmethod(fully_sharded)
