"""A small Llama divided along the axes of a mesh: tensor parallel, ring attention, fully_shard."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from fixtures.ranks.study import memory
from fixtures.ranks.study.models import Attention, Block, loss
from suites.context.layout import Layout as Sequence
from suites.context.layout import Span
from suites.context.ring_attention import RingAttention, Tally, apply
from suites.mesh.axes import Mesh
from suites.mesh.task import Results, Task, gradients, optimizer_of, parameters
from suites.tensor.dtensor import block_plan

# The dimension of a Linear's or Embedding's weight that tensor parallelism cuts; norms are whole.
CUT = {"embedding": 0, "head": 0, "q": 0, "k": 0, "v": 0, "o": 1, "gate": 0, "up": 0, "down": 1}


class RingedAttention(Attention):
    """The reference's attention on a part of the sequence: keys and values pass from rank to rank."""

    def __init__(self, whole: Attention, sequence: Sequence) -> None:
        nn.Module.__init__(self)
        self.channels, self.sequence = whole.channels, sequence
        self.q, self.k, self.v, self.o = whole.q, whole.k, whole.v, whole.o

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Attend over all of the sequence with this rank's queries, whose positions the ring knows."""
        q, k, v = self.project(x, self.sequence.queries.positions)
        found = apply(RingAttention, q, torch.stack((k, v)), self.sequence, Tally())
        out: Tensor = self.o(self.merge(found))
        return out


def divided(task: Task, mesh: Mesh, model: nn.Module, reshard: bool) -> None:
    """Divide a model, or a stage of one, along every axis of several ranks; pipelines are others' business.

    `reshard`: gathered parameters are freed after forward and gathered again for backward.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if task.layout.size("cp") > 1:
        sequence = sequence_of(task, mesh)
        for block in blocks:
            block.attention = RingedAttention(block.attention, sequence)
    if task.tp > 1:
        parallelize_module(model, mesh.axis("tp"), plan_of(model))
        model.register_forward_hook(lambda _module, _inputs, out: out.clone())  # joined logits are a view
    shards = sharding(task, mesh)  # of one rank too: it brings gradients into the layout of their parameters
    for block in blocks:
        fully_shard(block, mesh=shards, reshard_after_forward=reshard)
    fully_shard(model, mesh=shards, reshard_after_forward=reshard)


def sharding(task: Task, mesh: Mesh) -> DeviceMesh:
    """The ranks among which fully_shard deals out parameters: dp; or dp and cp together, which are all."""
    if task.layout.size("cp") == 1:
        return mesh.axis("dp")
    return mesh.everyone("dp_cp")


def sequence_of(task: Task, mesh: Mesh) -> Sequence:
    """Who has which positions, zig-zag, among the ranks of this rank's ring."""
    spans = tuple(Span.of(positions, task.ctx.device) for positions in task.positions)
    own = task.layout.place(task.ctx.rank, "cp")
    return Sequence(own, spans[own], spans, causal=True, group=mesh.group("cp"))


def plan_of(model: nn.Module) -> dict[str, ParallelStyle]:
    """Embedding and head by words, blocks by heads and hidden features; logits are joined."""
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if isinstance(module, Block):
            plan |= {f"{name}.{part}": style for part, style in block_plan().items()}
        if name == "embedding":
            plan[name] = RowwiseParallel(input_layouts=Replicate())
        if name == "head":
            plan[name] = ColwiseParallel(output_layouts=Replicate())
    return plan


def part(task: Task, results: Results, names: Iterable[str]) -> dict[str, Tensor]:
    """What this rank is to hold of whole results: its tensor-parallel part, and of that its shard of rows."""
    rank, layout = task.ctx.rank, task.layout
    shard = layout.place(rank, "dp") * layout.size("cp") + layout.place(rank, "cp")
    found = {}
    for name in names:
        whole, dim = results[name], CUT.get(name.partition(":")[2].split(".")[-2])
        if dim is not None:
            whole = whole.chunk(task.tp, dim)[layout.place(rank, "tp")]
        found[name] = whole.chunk(task.shards)[shard]
    return found


def held(tensors: Results) -> dict[str, Tensor]:
    """What this rank does hold of distributed tensors."""
    return {
        name: tensor.to_local() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()
    }


class Divided:
    """The whole model, divided, at work on one rank."""

    def __init__(self, task: Task, mesh: Mesh, dtype: torch.dtype, reshard: bool = True) -> None:
        self.task = task
        self.model: nn.Module = task.model(dtype)
        divided(task, mesh, self.model, reshard)
        self.optimizer = optimizer_of(list(self.model.parameters()))
        self.waiting_bytes = 0

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Forward, backward and update with this rank's tokens; give its loss and logits."""
        self.optimizer.zero_grad()
        logits = self.model(x)
        found = loss(logits, y)
        self.waiting_bytes = memory.parameter_bytes(self.model)
        torch.autograd.backward(found)
        self.optimizer.step()
        return found.detach(), logits.detach()

    def results(self) -> dict[str, Tensor]:
        """Gradients and parameters that this rank holds."""
        return held({**gradients(self.model), **parameters(self.model)})

    def expected(self, whole: Results) -> dict[str, Tensor]:
        """The same of whole results, with this rank's loss and logits."""
        names = [name for name in whole if name not in ("loss", "logits")]
        return {"loss": whole["loss"], "logits": whole["logits"], **part(self.task, whole, names)}
