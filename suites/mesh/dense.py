"""A small Llama divided along the axes of a mesh: tensor parallel, ring attention, fully_shard."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from fixtures.ranks.study import memory
from fixtures.ranks.study.driver import Entries, Named
from fixtures.ranks.study.models import Attention, Block, Llama
from fixtures.ranks.study.updates import Updates
from suites.context.layout import Layout as Sequence
from suites.context.layout import Span
from suites.context.ring_attention import Tally, WrittenOut, ring_attention
from suites.mesh.axes import Mesh
from suites.mesh.layout import shard
from suites.mesh.task import Task
from suites.mesh.technique import RULE, loss_of
from suites.tensor.regions import Group
from suites.tensor.technique import block_plan
from suites.zero import clipping

# The dimension of a Linear's or Embedding's weight that tensor parallelism cuts; norms are whole.
CUT = {"embedding": 0, "head": 0, "q": 0, "k": 0, "v": 0, "o": 1, "gate": 0, "up": 0, "down": 1}


class RingedAttention(Attention):
    """The reference's attention on a part of the sequence: keys and values pass from rank to rank."""

    def __init__(self, whole: Attention, sequence: Sequence, group: Group) -> None:
        nn.Module.__init__(self)
        self.channels, self.sequence, self.group = whole.channels, sequence, group
        self.q, self.k, self.v, self.o = whole.q, whole.k, whole.v, whole.o

    def forward(self, x: Tensor) -> Tensor:
        """Attend over all of the sequence with this rank's queries, whose positions the ring knows."""
        q, k, v = self.project(x, self.sequence.queries.positions)
        found = ring_attention(q, torch.stack((k, v)), WrittenOut(self.sequence, Tally()), self.group)
        out: Tensor = self.o(self.merge(found))
        return out


def divided(task: Task, mesh: Mesh, model: nn.Module, reshard: bool) -> None:
    """Divide a model, or a stage of one, along every axis of several ranks except pp.

    `reshard`: gathered parameters are freed after forward and gathered again for backward.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if task.layout.size("cp") > 1:
        group = Group(task.layout.place(task.ctx.rank, "cp"), task.layout.size("cp"), mesh.group("cp"))
        # Which rank of this rank's ring has which positions, zig-zag.
        spans = tuple(Span.of(positions, task.ctx.device) for positions in task.positions)
        sequence = Sequence(spans[group.rank], spans, causal=True)
        for block in blocks:
            block.attention = RingedAttention(block.attention, sequence, group)
    if task.tp > 1:
        parallelize_module(model, mesh.axis("tp"), plan_of(model))
        model.register_forward_hook(lambda _module, _inputs, out: out.clone())  # gathered logits are a view
    # With one rank too: it brings gradients into the layout of their parameters.
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh.shards, reshard_after_forward=reshard)


def plan_of(model: nn.Module) -> dict[str, ParallelStyle]:
    """Split embedding and head by words, blocks by heads and hidden features; logits are gathered."""
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if isinstance(module, Block):
            plan |= {f"{name}.{part}": style for part, style in block_plan().items()}
        if name == "embedding":
            plan[name] = RowwiseParallel(input_layouts=Replicate())
        if name == "head":
            plan[name] = ColwiseParallel(output_layouts=Replicate())
    return plan


def is_cut(grad: Tensor) -> bool:
    """Whether a distributed gradient is divided along tp too, and not only by fully_shard."""
    return isinstance(grad, DTensor) and grad.device_mesh.ndim > 1


class Divided:
    """One rank's part of the whole model."""

    updates: Updates

    def __init__(self, task: Task, mesh: Mesh, dtype: torch.dtype, reshard: bool = True) -> None:
        self.task = task
        self.model = self.module(task.model(dtype))
        divided(task, mesh, self.model, reshard)
        self.optimizer = RULE.optimizer(self.model.parameters())
        self.norms = clipping.clip(self.optimizer, task.clip, self._counts)
        self.waiting_bytes = 0  # of parameters that are held between forward and backward
        self.model.register_forward_hook(self._wait)

    def module(self, whole: Llama) -> nn.Module:
        """The module that is divided: here the whole model."""
        return whole

    def _counts(self, grad: Tensor) -> bool:
        """Whether a gradient counts in the norm here: one that is whole along tp counts on one rank."""
        return self.task.layout.place(self.task.ctx.rank, "tp") == 0 or is_cut(grad)

    def _wait(self, *_: object) -> None:
        self.waiting_bytes = memory.parameter_bytes(self.model)

    def step(self, number: int) -> dict[str, Tensor]:
        """Train with this rank's tokens; give loss and logits where this rank has them."""
        x, y = (self.task.own(one) for one in self.task.batch(number))
        self.optimizer.zero_grad()
        found = self.forth_and_back(x, y)
        self.optimizer.step()
        return found | clipping.of_norms(self.norms[-1:])

    def forth_and_back(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Forward and backward."""
        logits = self.model(x)
        found = loss_of(logits, y)
        torch.autograd.backward(found)
        return {"loss": found.detach(), "logits": logits.detach()}

    def weights(self) -> dict[str, nn.Parameter]:
        """The weights of this rank's part of the model."""
        return dict(self.model.named_parameters())

    def part(self, whole: Named) -> dict[str, Tensor]:
        """This rank's tensor-parallel part of each weight and gradient, and of that its shard of rows."""
        task, own = self.task, self.weights()
        found = {what: whole[what] for what in ("loss", "logits") if task.last}
        found |= {"norm": whole["norm"]} if task.clip else {}
        trained = {what: one for what, one in whole.items() if what.partition(":")[2] in own}
        return found | self.share(trained)

    def share(self, whole: Named) -> dict[str, Tensor]:
        """The same of whole weights, or of their gradients."""
        task, place, found = self.task, self.task.layout.place(self.task.ctx.rank, "tp"), {}
        for what, tensor in whole.items():
            dim = CUT.get(what.rpartition(":")[2].split(".")[-2])
            cut = tensor if dim is None else tensor.chunk(task.tp, dim)[place]
            rows = shard(len(cut), task.shard, task.shards)
            found[what] = cut[rows.start : rows.stop]
        return found

    def clipped(self) -> Entries:
        """Join and clip the gradients of the last step by torch's own functions: those on all of the mesh."""
        weights = {name: one for name, one in self.weights().items() if isinstance(one, DTensor)}
        axes = max(one.device_mesh.ndim for one in weights.values())
        whole_mesh = {name: one for name, one in weights.items() if one.device_mesh.ndim == axes}
        return clipping.by_torch(whole_mesh, self.share)
