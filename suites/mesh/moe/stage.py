"""A rank's part of the mixture-of-experts Llama: the blocks of its stage, its heads, its experts.

Between the attentions a rank has `tokens` positions of its sequences. Attention gathers them along tp, so
that every rank of the line has the whole part of the sequence for its share of the heads, and gathers keys
and values along cp (Llama 3's context parallelism: "The Llama 3 Herd of Models", 2024, section 3.3.2).
Experts take the positions as they are: the sequence is split along tp and experts are not, so every rank
dispatches other tokens (Megatron-Core requires sequence parallelism for expert with tensor parallelism).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixtures.ranks.study import models
from suites.expert.layer import Sharded, Unsharded
from suites.mesh.moe.grid import Grid
from suites.mesh.moe.task import Task
from suites.mesh.staged import Part
from suites.tensor.blocks import Split
from suites.tensor.regions import Group, gather_from_sequence

_KEPT_SEQUENCE = 3  # the dimension of stacked keys and values that context parallelism splits


class Stage(Part):
    """A rank's stage. `micro_batch` is the next one; `left` are the stage's outputs, by micro-batch."""

    def __init__(self, task: Task, grid: Grid, dtype: torch.dtype) -> None:
        stage, _, context, _ = task.place
        numbers = task.blocks_of(stage)
        super().__init__(task.model(dtype), numbers, first=stage == 0, last=stage == task.axes.stages - 1)
        self.context = context
        self.tensor, self.expert, self.along = (grid.group(line) for line in ("tp", "ep", "cp"))
        self.positions = [positions.to(task.ctx.device) for positions in task.positions()]
        self.task = task
        self.wanted = {
            (number, i): task.wanted(task.ctx.rank, number, i, 0).to(task.ctx.device)
            for number in numbers
            for i in range(task.dims.micro_batches)
        }
        for number in numbers:
            block = self._block(number)
            block.mlp, block.forward = self._experts(block.mlp), partial(self._through, block, number)
        for name, weight in self.weights().items():
            weight.data = share(name, weight.data, self.tensor).clone()
        self.micro_batch = 0
        self.left: list[Tensor] = []

    def _block(self, number: int) -> Any:  # noqa: ANN401 - a Block whose experts may be sharded
        return self.blocks[str(number)]

    def _experts(self, whole: Unsharded) -> nn.Module:
        """This rank's experts; all of them where ep has one rank."""
        if self.expert.size == 1:
            return whole
        wanted = next(iter(self.wanted.values()))
        return Sharded(whole, wanted, self.expert.rank, self.expert.size, self.expert.handle)

    def prefer(self, step: int) -> None:
        """Put the preferences of a step in the place of those before."""
        for (number, i), wanted in self.wanted.items():
            wanted.copy_(self.task.wanted(self.task.ctx.rank, number, i, step))

    def weights(self) -> dict[str, nn.Parameter]:
        """This rank's parameters by their names in the whole model."""
        found = {}
        for name, weight in self.named_parameters():
            parts = name.split(".")
            if "experts" in parts:
                place = parts.index("experts") + 1
                local = len(self._block(int(parts[1])).mlp.experts)
                parts[place] = str(self.expert.rank * local + int(parts[place]))
            found[".".join(parts)] = weight
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Run one micro-batch, and keep its output."""
        x = super().forward(x)
        self.left.append(x.detach())
        return x

    def _through(self, block: Any, number: int, x: Tensor) -> Any:  # noqa: ANN401
        """Forward of one block, with the preferences of this micro-batch for its experts."""
        x = x + self._attend(block.attention, block.attention_norm(x))
        block.mlp.wanted = self.wanted[number, self.micro_batch]
        return x + block.mlp(block.mlp_norm(x).flatten(0, 1)).view_as(x)

    def _attend(self, layer: models.Attention, x: Tensor) -> Tensor:
        """Attention of this rank's heads and positions over all positions."""
        meet = Split(self.tensor) if self.tensor.size > 1 else None
        weights = layer.q.weight, layer.k.weight, layer.v.weight
        parts = meet.read(x, *weights) if meet else [functional.linear(x, weight) for weight in weights]
        own = everyone = self.positions[self.context]
        q, k, v = (part.view(*part.shape[:2], -1, layer.channels).transpose(1, 2) for part in parts)
        kept = torch.stack((models.rotary(k, own), v))
        if self.along.size > 1:
            everyone = torch.cat(self.positions)
            kept = gather_from_sequence(kept, _KEPT_SEQUENCE, self.along)
        found = models.attend(models.rotary(q, own), kept[0], kept[1], models.causal(own, everyone))
        out = functional.linear(layer.merge(found), layer.o.weight)
        return meet.add(out) if meet else out


def is_expert(name: str) -> bool:
    """Whether a parameter belongs to an expert, and not to all ranks of a stage."""
    return ".experts." in name


def is_split(name: str) -> bool:
    """Whether a parameter is split along tp."""
    return ".attention." in name


def share(name: str, whole: Tensor, tensor: Group) -> Tensor:
    """This rank's part of a parameter along tp: rows of q, k and v, columns of o."""
    return tensor.part(whole, 1 if ".o." in name else 0) if is_split(name) else whole
