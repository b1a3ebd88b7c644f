"""A Llama cut into stages, each of which is divided along the other axes, on torch's 1F1B schedule."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed import pipelining

from fixtures.ranks.study import memory
from fixtures.ranks.study.models import Llama, loss
from suites.mesh.axes import Mesh
from suites.mesh.dense import divided, held, part
from suites.mesh.task import Results, Task, gradients, optimizer_of, parameters


class Part(nn.Module):
    """Some blocks of a Llama, with the names that they have in it; the ends of the model at its ends."""

    def __init__(self, whole: Llama, index: int, stages: int) -> None:
        super().__init__()
        each = len(whole.blocks) // stages
        numbers = range(index * each, (index + 1) * each)
        self.embedding = whole.embedding if index == 0 else None
        self.blocks = nn.ModuleDict({str(number): whole.blocks[number] for number in numbers})
        self.norm = whole.norm if index == stages - 1 else None
        self.head = whole.head if index == stages - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or activations in, activations or logits out."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


class Staged:
    """This rank's stage at work. Parameters gathered for the first micro-batch stay until the last."""

    def __init__(self, task: Task, mesh: Mesh, dtype: torch.dtype, micro_batches: int) -> None:
        self.task, stages = task, task.layout.size("pp")
        self.index = task.layout.place(task.ctx.rank, "pp")
        self.last = self.index == stages - 1
        self.model: nn.Module = Part(task.model(dtype), self.index, stages)
        divided(task, mesh, self.model, reshard=False)
        self.optimizer = optimizer_of(list(self.model.parameters()))
        self.waiting_bytes = 0
        self.model.register_forward_hook(self._wait)
        taken, given = self._shapes(dtype, micro_batches)
        stage = pipelining.PipelineStage(
            self.model,
            self.index,
            stages,
            task.ctx.device,
            input_args=taken,
            output_args=given,
            group=mesh.group("pp"),
        )
        self._schedule = pipelining.Schedule1F1B(stage, micro_batches, loss_fn=loss)

    def _shapes(self, dtype: torch.dtype, micro_batches: int) -> tuple[Tensor, Tensor]:
        """What a micro-batch is before and after this stage: to find out, torch would run it on noise."""
        task = self.task
        shape = (task.rows // micro_batches, task.tokens)
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        inner = torch.empty(*shape, task.width, dtype=dtype, device="meta", requires_grad=True)
        logits = torch.empty(*shape, task.hidden, dtype=dtype, device="meta", requires_grad=True)
        return (tokens if self.index == 0 else inner), (logits if self.last else inner)

    def _wait(self, *_: object) -> None:
        self.waiting_bytes = memory.parameter_bytes(self.model)

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Pass all micro-batches forth and back, and update; the last stage gives loss and logits."""
        self.optimizer.zero_grad()
        losses: list[Tensor] = []
        inputs = [x] if self.index == 0 else []
        if self.last:
            logits = self._schedule.step(*inputs, target=y, losses=losses)
        else:
            self._schedule.step(*inputs)
        self.optimizer.step()
        return (torch.stack(losses).mean(), logits.detach()) if self.last else (None, None)

    def results(self) -> dict[str, Tensor]:
        """Gradients and parameters of its stage that this rank holds."""
        return held({**gradients(self.model), **parameters(self.model)})

    def expected(self, whole: Results) -> dict[str, Tensor]:
        """The same of whole results; loss and logits are the last stage's."""
        own = {name for name, _ in self.model.named_parameters()}
        found = part(self.task, whole, [name for name in whole if name.partition(":")[2] in own])
        return {"loss": whole["loss"], "logits": whole["logits"], **found} if self.last else found
