"""A pipeline on torch's own schedules: its stages are recorded, and can be given a known length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study import at_size
from fixtures.ranks.study.models import Mlp
from suites.pipeline.issued import HIDDEN
from suites.pipeline.recorder import Held, Recorder, in_this_thread
from suites.pipeline.schedules import BACKWARD, FORWARD, INPUT, PLANS, WEIGHT, Shape

ACTIVATION, GRADIENT = "activations", "gradients"  # what an edge carries forth and back
loss = F.mse_loss  # a mean over the micro-batch; torch's schedules divide the sum of its gradients by m


class Layer(Mlp):
    """One stage: an MLP beside a residual, without which gradients fade in a long pipeline."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the same shape."""
        return x + super().forward(x)


@dataclass(frozen=True)
class Problem:
    """A model with one layer per stage, and a batch: the same on every rank, in every dtype and place."""

    modules: list[Layer]
    inputs: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def make(cls, ctx: Context, shape: Shape, width: int, rows: int, dtype: torch.dtype) -> Problem:
        """Draw it on the device, `rows` rows per micro-batch, in numbers that bf16 holds."""
        modules = [
            at_size.made(partial(Layer, width, HIDDEN * width), key(ctx.seed, 1, stage), ctx.device, dtype)
            for stage in range(shape.stages)
        ]
        size = 2, shape.micro_batches * rows, width
        inputs, targets = at_size.drawn(key(ctx.seed, 2), size, ctx.device).to(dtype)
        return cls(modules, inputs.clone(), targets.clone())


class RecordedStage(pipelining.PipelineStage):
    """torch's stage, recorded."""

    recorder: Recorder

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Note the buffers that the activations of a micro-batch arrive in."""
        return self._expects(ACTIVATION, fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Note the buffers that the gradients of a micro-batch arrive in."""
        return self._expects(GRADIENT, bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Contact neighbours first only with NCCL, whose communicators need it.

        A V schedule of torch 2.10 sends to its own rank there, which gloo cannot.
        """
        ops: list[dist.P2POp] = []
        return super()._get_init_p2p_neighbors_ops() if self.device.type == "cuda" else ops

    def _expects(self, kind: str, chunk: int, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        self.recorder.expect(kind, self.stage_index, chunk, [op.tensor for op in ops])
        return ops

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's
        """Do a forward."""
        with self.recorder.doing(FORWARD, self.stage_index, fwd_chunk_id), self.recorder.held.forward():
            self.recorder.receive(ACTIVATION, self.stage_index, fwd_chunk_id)
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: torch.Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """Do a backward, whole or for the input alone."""
        with self.recorder.doing(BACKWARD if full_backward else INPUT, self.stage_index, bwd_chunk_id):
            self.recorder.receive(GRADIENT, self.stage_index, bwd_chunk_id)
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Do the weights' part of a backward."""
        with self.recorder.doing(WEIGHT, self.stage_index, bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)


class Pipeline:
    """This rank's stages of a model under a schedule, with the batch that goes through them."""

    def __init__(
        self, ctx: Context, group: dist.ProcessGroup, schedule: str, shape: Shape, problem: Problem
    ) -> None:
        plan = PLANS[schedule]
        self.ctx, self.group, self.shape, self.problem = ctx, group, shape, problem
        self.stages = plan.stages_of(shape, ctx.rank)
        self.modules = {stage: problem.modules[stage] for stage in self.stages}
        parameters = [one for module in self.modules.values() for one in module.parameters()]
        self.recorder = Recorder(ctx, Held([*parameters, problem.inputs]))
        staged = [self._stage(stage) for stage in self.stages]
        make: Callable[..., Any] = getattr(pipelining, plan.torch_name)
        single = staged[0] if plan.chunks == 1 else staged
        self._schedule = make(single, shape.micro_batches, loss_fn=loss)

    def _stage(self, stage: int) -> RecordedStage:
        batch = self.problem.inputs
        shape = batch.shape[0] // self.shape.micro_batches, batch.shape[1]
        made = RecordedStage(
            self.modules[stage],
            stage,
            self.shape.stages,
            self.ctx.device,
            input_args=meta(shape, batch.dtype, stage > 0),
            output_args=meta(shape, batch.dtype),
            group=self.group,
        )
        made.recorder = self.recorder
        return made

    def step(self) -> list[torch.Tensor]:
        """Run all micro-batches forth and back; the losses are on the rank of the last stage."""
        inputs, targets = self.problem.inputs, self.problem.targets
        for module in self.modules.values():
            module.zero_grad()
        first, last = 0 in self.stages, self.shape.stages - 1 in self.stages
        self.recorder.begin()
        return stepped(self._schedule, self.recorder, inputs if first else None, targets if last else None)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Copy the gradients of this rank's stages, by name."""
        return gradients(self.modules)


def meta(shape: tuple[int, ...], dtype: torch.dtype, has_gradient: bool = True) -> torch.Tensor:
    """Give torch the shape of a micro-batch; to find it out, torch would need numpy and a forward."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=has_gradient)


def stepped(
    schedule: Any,  # noqa: ANN401 - torch's
    recorder: Recorder,
    inputs: torch.Tensor | None,
    targets: torch.Tensor | None,
) -> list[torch.Tensor]:
    """Run torch's schedule once and give the losses: the first stage has the inputs, the last the targets."""
    losses: list[torch.Tensor] = []
    with waits_seen(recorder), in_this_thread():
        schedule.step(
            *([] if inputs is None else [inputs]),
            target=targets,
            losses=None if targets is None else losses,
            return_outputs=False,
        )
    return losses


@contextmanager
def waits_seen(recorder: Recorder) -> Iterator[None]:
    """Let the recorder time torch's schedules while they wait for peers, which torch does not report."""
    original = schedules._wait_batch_p2p

    def wait(work: list[dist.Work]) -> None:
        with recorder.waiting():
            original(work)

    schedules._wait_batch_p2p = wait
    try:
        yield
    finally:
        schedules._wait_batch_p2p = original


def gradients(modules: dict[int, Layer]) -> dict[str, torch.Tensor]:
    """Copy gradients, named by stage."""
    return {
        f"grad:{stage}.{name}": gradient_of(one).clone()
        for stage, module in modules.items()
        for name, one in module.named_parameters()
    }


def gradient_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's gradient; NaN, always wrong, if it is missing."""
    return torch.full_like(tensor, torch.nan) if tensor.grad is None else tensor.grad
