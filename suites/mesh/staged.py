"""A Llama cut into stages, each of which is divided along the other axes, on torch's 1F1B schedule."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed import pipelining

from fixtures.ranks.study.models import Llama
from suites.mesh.axes import Mesh
from suites.mesh.dense import Divided
from suites.mesh.task import Task
from suites.mesh.technique import loss_of


class Part(nn.Module):
    """Some blocks of a Llama, with the names that they have in it; the ends of the model at its ends."""

    def __init__(self, task: Task, whole: Llama) -> None:
        super().__init__()
        numbers = range(task.stage * task.blocks, (task.stage + 1) * task.blocks)
        self.embedding = whole.embedding if task.first else None
        self.blocks = nn.ModuleDict({str(number): whole.blocks[number] for number in numbers})
        self.norm = whole.norm if task.last else None
        self.head = whole.head if task.last else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or activations in, activations or logits out."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


class Staged(Divided):
    """This rank's stage at work. Parameters gathered for the first micro-batch stay until the last."""

    def __init__(self, task: Task, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__(task, mesh, dtype, reshard=False)
        taken, given = self._shapes(dtype)
        stage = pipelining.PipelineStage(
            self.model,
            task.stage,
            task.stages,
            task.ctx.device,
            input_args=taken,
            output_args=given,
            group=mesh.group("pp"),
        )
        self._schedule = pipelining.Schedule1F1B(stage, task.micro_batches, loss_fn=loss_of)

    def module(self, whole: Llama) -> nn.Module:
        """Its stage."""
        return Part(self.task, whole)

    def _shapes(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What a micro-batch is before and after this stage: to find out, torch would run it on noise."""
        task = self.task
        shape = (task.rows // task.micro_batches, task.tokens)
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        inner = torch.empty(*shape, task.width, dtype=dtype, device="meta", requires_grad=True)
        logits = torch.empty(*shape, task.hidden, dtype=dtype, device="meta", requires_grad=True)
        return (tokens if task.first else inner), (logits if task.last else inner)

    def forth_and_back(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Pass all micro-batches forth and back; the last stage gives loss and logits."""
        losses: list[Tensor] = []
        inputs = [x] if self.task.first else []
        if not self.task.last:
            self._schedule.step(*inputs)
            return {}
        logits = self._schedule.step(*inputs, target=y, losses=losses)
        return {"loss": torch.stack(losses).mean().detach(), "logits": logits.detach()}
