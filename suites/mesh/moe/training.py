"""Train a rank's part of the mixture of experts: micro-batches through the stages, then reduce gradients.

A micro-batch's loss on one rank is the mean over the rank's own tokens, so the loss of the batch is the mean
over the S = D C T ranks of a stage, and every gradient is a sum over tokens divided by S:

    attention, split along tp   has seen all tokens of its line: summed over dp_cp
    norms, router, ends         saw this rank's tokens: summed along tp, then over dp_cp
    experts                     saw the tokens of all ranks of their set: summed over edp alone

each divided by S, not by the size of the group that it was summed over. (Megatron-Core's
DistributedDataParallel does the same: experts' gradients are scaled by 1 over data x context and summed over
edp.) Sums of bf16 gradients are made in fp32, as there.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B

from fixtures.ranks.study.driver import Named
from fixtures.ranks.study.models import gradient_of
from fixtures.ranks.study.updates import Updates
from suites.context.ring_attention import wide
from suites.mesh.moe.grid import Grid
from suites.mesh.moe.issued import VOCABULARY
from suites.mesh.moe.stage import Stage, is_expert, is_split, share
from suites.mesh.moe.task import Task
from suites.mesh.staged import forms
from suites.mesh.technique import RULE, loss_of
from suites.pipeline.recorder import Held, Recorder, in_this_thread
from suites.pipeline.stages import RecordedStage, stepped


class Trainer:
    """One rank's part of the model."""

    updates: Updates

    def __init__(self, task: Task, grid: Grid, dtype: torch.dtype) -> None:
        self.task, self.grid = task, grid
        self.stage = Stage(task, grid, dtype)
        self.optimizer = RULE.optimizer(self.stage.parameters())
        self.recorder = Recorder(task.ctx, Held(list(self.stage.parameters())))
        self.schedule = self._schedule(dtype) if task.axes.stages > 1 else None

    @property
    def first(self) -> bool:
        """Whether this rank reads the tokens."""
        return self.stage.embedding is not None

    @property
    def last(self) -> bool:
        """Whether this rank has the loss."""
        return self.stage.head is not None

    def weights(self) -> dict[str, nn.Parameter]:
        """The weights of the stage."""
        return self.stage.weights()

    def part(self, whole: Named) -> dict[str, Tensor]:
        """This rank's losses, its stage's outputs, and its share of each weight and gradient."""
        found = {what: whole[what] for what in ("forward", *["loss"] * self.last)}
        for kind, name in itertools.product(("grad", "param"), self.weights()):
            found[f"{kind}:{name}"] = share(name, whole[f"{kind}:{name}"], self.stage.tensor)
        return found

    def step(self, number: int) -> dict[str, Tensor]:
        """Forward and backward of all micro-batches, reduce gradients, update; give outputs and losses."""
        inputs, targets = (self.task.own(one) for one in self.task.batch(number))
        self.optimizer.zero_grad()
        self.stage.left.clear()
        self.stage.prefer(number)
        self.recorder.begin()
        with in_this_thread():
            if self.schedule is None:
                losses = self._alone(inputs, targets)
            else:  # 1F1B divides the gradients by the number of micro-batches
                own = inputs if self.first else None, targets if self.last else None
                losses = stepped(self.schedule, self.recorder, *own)
        self.synchronise()
        self.optimizer.step()
        left = {"forward": torch.cat(self.stage.left)}
        return left | {"loss": torch.stack(losses)} if losses else left

    def _alone(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """One micro-batch after another, where there is one stage."""
        losses, rows = [], self.task.dims.rows
        for i, (x, y) in enumerate(zip(torch.split(inputs, rows), torch.split(targets, rows), strict=True)):
            self.stage.micro_batch = i
            losses.append(loss_of(self.stage(x), y))
            torch.autograd.backward(losses[-1] / self.task.dims.micro_batches)
        return losses

    def _schedule(self, dtype: torch.dtype) -> Schedule1F1B:
        """Make torch's schedule around the stage, with given shapes."""
        task, group = self.task, self.grid.group("pp")
        shape, width = (task.dims.rows, task.tokens), task.dims.width
        taken, given = forms(shape, dtype, width=width, words=VOCABULARY, first=self.first, last=self.last)
        stage = _MicroBatched(
            self.stage,
            group.rank,
            group.size,
            task.ctx.device,
            input_args=taken,
            output_args=given,
            group=group.handle,
        )
        stage.recorder = self.recorder
        return Schedule1F1B(stage, task.dims.micro_batches, loss_fn=loss_of)

    def synchronise(self) -> None:
        """Make every gradient that of the whole batch."""
        weights = self.weights()
        shared = [one for name, one in weights.items() if not (is_expert(name) or is_split(name))]
        dense = [one for name, one in weights.items() if not is_expert(name)]
        experts = [one for name, one in weights.items() if is_expert(name)]
        for name, members in (("tp", shared), ("dp_cp", dense), ("edp", experts)):
            group = self.grid.group(name)
            if group.size > 1:
                _summed([gradient_of(one) for one in members], group.handle)
        for weight in weights.values():
            gradient_of(weight).div_(self.task.axes.stage_ranks)


class _MicroBatched(RecordedStage):
    """A stage that tells its module which micro-batch comes next."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's
        """Do a forward."""
        module: Any = self.submod
        module.micro_batch = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)


def _summed(gradients: list[Tensor], group: dist.ProcessGroup) -> None:
    """All-reduce gradients in one bucket."""
    bucket = torch.cat([one.flatten().to(wide(one.dtype)) for one in gradients])
    dist.all_reduce(bucket, group=group)
    totals = torch.split(bucket, [one.numel() for one in gradients])
    for one, total in zip(gradients, totals, strict=True):
        one.copy_(total.view_as(one))
