"""What the mixture-of-experts meshes train, and the unsharded run that they must equal.

A small Llama with a mixture of experts in every block learns next tokens by SGD with momentum. The batch has
`rows` sequences for each micro-batch of each data shard; every rank's loss is the mean over its own tokens,
of which all ranks of a stage have equally many, so the mean of their losses is that of the batch. Which
expert a token gets follows from preferences that outweigh every logit, and that differ from step to
step: rounding changes no choice, and every rank can compute the routing of all ranks. Weights are numbers
that bf16 holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fixtures.ranks.exact.payload import key
from fixtures.ranks.steps import Context
from fixtures.ranks.study import models
from fixtures.ranks.study.driver import TRAINED, Named
from suites.context.layout import zigzag
from suites.context.ring_attention import wide
from suites.expert.layer import Unsharded
from suites.expert.parity import DECIDES
from suites.expert.routing import Shape
from suites.mesh.moe.issued import LAYERS, VOCABULARY, Sizes
from suites.mesh.technique import RULE, loss_of, stacked, trained
from suites.tensor.regions import Group

_WEIGHTS, _TOKENS = 740, 741


@dataclass(frozen=True)
class Task(Sizes):
    """The same problem on every rank."""

    ctx: Context = field(kw_only=True)

    def __post_init__(self) -> None:
        """Refuse sizes that do not divide; the error names all of them."""
        axes, dims, faults = self.axes, self.dims, []
        if LAYERS % axes.stages:
            faults.append(f"{LAYERS} blocks do not divide among {axes.stages} stages")
        if dims.length % (2 * axes.context * axes.tensor):
            faults.append(
                f"{dims.length} positions do not divide into two chunks for each of "
                f"{axes.context} x {axes.tensor} ranks"
            )
        if dims.kv_heads % axes.tensor or dims.heads % dims.kv_heads or dims.width % dims.heads:
            faults.append(
                f"{dims.width} channels, {dims.heads} heads and {dims.kv_heads} key-value heads do not "
                f"divide each other and among {axes.tensor} ranks"
            )
        if dims.micro_batches < axes.stages:
            faults.append(f"{dims.micro_batches} micro-batches do not fill {axes.stages} stages")
        if dims.top_k > self.experts:
            faults.append(f"a token cannot have {dims.top_k} of {self.experts} experts")
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def sequences(self) -> int:
        """Rows of the whole batch."""
        return self.axes.data * self.dims.micro_batches * self.dims.rows

    # who has what

    def positions(self) -> list[Tensor]:
        """Positions of each part of a sequence; a piece from the front and one from the back."""
        return zigzag(self.dims.length, self.axes.context)

    def own_positions(self, rank: int) -> Tensor:
        """Positions that a rank has between the attentions."""
        _, _, context, tensor = self.axes.coordinates(rank)
        return Group(tensor, self.axes.tensor).part(self.positions()[context], 0)

    def own(self, whole: Tensor) -> Tensor:
        """This rank's rows and positions of (rows, length, ...), all micro-batches."""
        last = self.dims.micro_batches - 1
        rows = whole[self.rows_of(self.ctx.rank, 0).start : self.rows_of(self.ctx.rank, last).stop]
        return rows[:, self.own_positions(self.ctx.rank).to(whole.device)]

    # data

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Tokens of all ranks, and the tokens that follow them."""
        seed = key(self.ctx.seed, _TOKENS, number) >> 1
        both = models.tokens(seed, self.sequences, self.dims.length + 1, VOCABULARY).to(self.ctx.device)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    @property
    def shape(self) -> Shape:
        """An expert layer for one whole sequence."""
        dims = self.dims
        return Shape(dims.length, dims.width, dims.inner, self.experts, dims.top_k)

    def preferences(self, layer: int, rows: range, step: int) -> Tensor:
        """What the tokens of whole sequences prefer in a block and a step: (rows, length, experts)."""
        best = torch.tensor([self.chosen(layer, row, step) for row in rows])
        steps = DECIDES * torch.arange(self.dims.top_k, 0, -1, dtype=torch.float64)
        found = torch.zeros(*best.shape[:2], self.experts, dtype=torch.float64)
        return found.scatter_(2, best, steps.expand_as(best))

    def wanted(self, rank: int, layer: int, micro_batch: int, step: int) -> Tensor:
        """What a rank's own tokens prefer: (tokens, experts), on the CPU."""
        whole = self.preferences(layer, self.rows_of(rank, micro_batch), step)
        return whole[:, self.own_positions(rank)].flatten(0, 1)

    # the unsharded model

    def model(self, dtype: torch.dtype) -> models.Llama:
        """The same weights on every rank and in every dtype; routers at least in fp32."""
        dims = self.dims
        with models.seeded(key(self.ctx.seed, _WEIGHTS) >> 1):
            model = models.Llama(VOCABULARY, dims.width, LAYERS, dims.heads, dims.kv_heads, dims.inner)
            for block in model.blocks:
                block.mlp = Unsharded(self.shape, torch.empty(0))
        model = model.to(TRAINED).to(self.ctx.device, dtype)
        for layer in mixtures(model):
            layer.router.to(wide(dtype))
        return model


def mixtures(model: models.Llama) -> list[Unsharded]:
    """The expert layers of a whole model."""
    return [layer for layer in model.modules() if isinstance(layer, Unsharded)]


def unsharded(task: Task, dtype: torch.dtype) -> Named:
    """Train on the whole batch, alone; keep this rank's losses and its stage's outputs."""
    model, steps = task.model(dtype), []
    optimizer = RULE.optimizer(model.parameters())
    stage = task.axes.coordinates(task.ctx.rank)[0]
    leaves = -1 if stage == task.axes.stages - 1 else task.blocks_of(stage)[-1]
    for number in range(task.dims.steps):
        for block, layer in enumerate(mixtures(model)):
            whole = task.preferences(block, range(task.sequences), number)
            layer.wanted = whole.flatten(0, 1).to(task.ctx.device)
        inputs, targets = task.batch(number)
        optimizer.zero_grad()
        found = _through(model, inputs)
        torch.autograd.backward(loss_of(found[-1], targets))
        loss = _losses(task, found[-1].detach(), targets)
        steps.append({"loss": loss, "forward": task.own(found[leaves].detach())})
        optimizer.step()
    return stacked(steps) | trained(dict(model.named_parameters()))


def _through(model: models.Llama, numbers: Tensor) -> list[Tensor]:
    """The output of each block, and the logits."""
    x, found = model.embedding(numbers), []
    for block in model.blocks:
        x = block(x)
        found.append(x)
    return [*found, model.head(model.norm(x))]


def _losses(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of this rank's tokens in each of its micro-batches."""
    own = zip(*(torch.split(task.own(one), task.dims.rows) for one in (logits, targets)), strict=True)
    return torch.stack([loss_of(part, wanted) for part, wanted in own])
