"""A Llama on all axes of a mesh; if it is cut into stages, they run torch's 1F1B schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed import pipelining

from fixtures.ranks.study.driver import EXACT, Entries, Named, Run
from fixtures.ranks.study.models import Llama
from suites.mesh.axes import Mesh
from suites.mesh.dense import Divided
from suites.mesh.issued import holds, lines
from suites.mesh.task import Task, unsharded
from suites.mesh.technique import Combined, Issued, loss_of
from suites.pipeline.stages import meta


class Part(nn.Module):
    """Some blocks of a Llama, by their names in it; the first and the last stage have the model's ends."""

    def __init__(self, whole: Llama, numbers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = whole.embedding if first else None
        self.blocks = nn.ModuleDict({str(number): whole.blocks[number] for number in numbers})
        self.norm = whole.norm if last else None
        self.head = whole.head if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or activations in, activations or logits out."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def forms(
    shape: tuple[int, int], dtype: torch.dtype, *, width: int, words: int, first: bool, last: bool
) -> tuple[Tensor, Tensor]:
    """Shapes of a micro-batch of (rows, tokens) before and after a stage: tokens, activations or logits."""
    taken = meta(shape, torch.int64, False) if first else meta((*shape, width), dtype)
    return taken, meta((*shape, words if last else width), dtype)


class Staged(Divided):
    """This rank's stage. Parameters gathered for the first micro-batch stay until the last."""

    def __init__(self, task: Task, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__(task, mesh, dtype, reshard=False)
        shape = task.rows // task.micro_batches, task.tokens
        taken, given = forms(
            shape, dtype, width=task.width, words=task.words, first=task.first, last=task.last
        )
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
        """This rank's stage."""
        task = self.task
        numbers = range(task.stage * task.blocks, (task.stage + 1) * task.blocks)
        return Part(whole, numbers, first=task.first, last=task.last)

    def forth_and_back(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Pass all micro-batches forth and back; the last stage gives loss and logits."""
        losses: list[Tensor] = []
        inputs = [x] if self.task.first else []
        if not self.task.last:
            self._schedule.step(*inputs)
            return {}
        logits = self._schedule.step(*inputs, target=y, losses=losses)
        return {"loss": torch.stack(losses).mean().detach(), "logits": logits.detach()}


class Dense(Combined[Divided]):
    """A small Llama on all axes of a mesh; a stage's parameters stay gathered between its micro-batches."""

    def __init__(self, task: Task, mesh: Mesh, dtypes: Sequence[torch.dtype]) -> None:
        self.task, self.mesh, self.dtypes = task, mesh, dtypes
        self.ctx, self.steps, self.adding = task.ctx, task.steps, task.ctx.size // task.stages
        self.staged = "pp" in task.layout.names

    def make(self, dtype: torch.dtype) -> Divided:
        """Make this rank's part of a stage, or of the whole model."""
        return (Staged if self.staged else Divided)(self.task, self.mesh, dtype)

    def reference(self, dtype: torch.dtype) -> Named:
        """Train the whole model alone."""
        return unsharded(self.task, dtype)

    def issued(self, dtype: torch.dtype) -> Issued:
        """What each technique exchanges along its axis, and among which ranks."""
        rank, layout = self.ctx.rank, self.task.layout
        found = lines(self.task, dtype.itemsize)
        return {
            label: (next(one for one in layout.groups(*axes) if rank in one), calls)
            for label, (axes, calls) in found.items()
        }

    def holds(self, dtype: torch.dtype) -> Mapping[str, int]:
        """A rank's part of the parameters."""
        return holds(self.task, dtype.itemsize)

    def beside(self, dtype: torch.dtype, run: Run[Divided]) -> Entries:
        """Compare what torch makes of distributed gradients, too."""
        return super().beside(dtype, run) + (run.kept.clipped() if dtype is EXACT else [])

    def found(self, engine: Divided) -> dict[str, int]:
        """Add the parameters that are held between forward and backward."""
        return {**super().found(engine), "params between forward and backward": engine.waiting_bytes}
