"""A module with as much of DeepSpeed's interface as the step uses, over torch.distributed, plain and small.

Names and meanings as in deepspeed 0.19.8: runtime/engine.py, runtime/zero, utils/groups.py and
utils/tensor_fragment.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fixtures.ranks.collectives.calls import renamed


class Engine:
    """Parameters lie one after the other in one flat buffer; each rank updates its part of it, in fp32."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> None:
        assert config["gradient_clipping"] == 0
        assert config["gradient_accumulation_steps"] == 1
        self.model, self.stage = model, config["zero_optimization"]["stage"]
        self.weights = list(model.parameters())
        self.shapes = [weight.shape for weight in self.weights]
        flat = torch.cat([weight.detach().float().reshape(-1) for weight in self.weights])
        self.master = nn.Parameter(flat.chunk(dist.get_world_size())[dist.get_rank()].clone())
        optimizer.param_groups[0]["params"] = [self.master]
        named = "fp32_partitioned_groups_flat" if self.stage == 3 else "single_partition_of_fp32_groups"
        self.optimizer = SimpleNamespace(optimizer=optimizer, **{named: [self.master]})
        for weight in self.weights:
            weight.engine = self  # type: ignore[attr-defined]
            if self.stage == 3:
                weight.ds_tensor = weight.detach().reshape(-1).chunk(dist.get_world_size())[0]  # type: ignore[attr-defined]

    def __call__(self, x: Tensor) -> Tensor:
        if self.stage == 3:
            self.fill()
        output: Tensor = self.model(x)
        return output

    def fill(self) -> None:
        """Make the parameters whole from everybody's part."""
        part = self.master.detach().to(self.weights[0].dtype)
        pieces = torch.split(self.whole(part), [shape.numel() for shape in self.shapes])
        for weight, piece in zip(self.weights, pieces, strict=True):
            weight.data = piece.view(weight.shape)

    def whole(self, part: Tensor) -> Tensor:
        joined = part.new_empty(part.numel() * dist.get_world_size())
        renamed("all_gather_single", "all_gather_into_tensor")(joined, part)
        return joined

    def backward(self, loss: Tensor) -> None:
        if self.stage == 3:
            self.fill()
        torch.autograd.backward(loss)
        grads = [weight.grad for weight in self.weights if weight.grad is not None]
        flat = torch.cat([grad.float().reshape(-1) for grad in grads])
        for weight in self.weights:
            weight.grad = None
        if self.stage == 3:
            own = torch.empty_like(self.master)
            renamed("reduce_scatter_single", "reduce_scatter_tensor")(own, flat)
        else:
            dist.all_reduce(flat)
            own = flat.chunk(dist.get_world_size())[dist.get_rank()]
        self.master.grad = own / dist.get_world_size()

    def step(self) -> None:
        self.optimizer.optimizer.step()
        if self.stage != 3:
            self.fill()

    def destroy(self) -> None:
        for weight in self.weights:
            del weight.engine  # type: ignore[attr-defined]


def initialize(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], dist_init_required: bool
) -> tuple[Engine, Any, None, None]:
    assert not dist_init_required
    groups._WORLD_GROUP = dist.new_group()
    engine = Engine(model, optimizer, config)
    return engine, engine.optimizer, None, None


def part_of(weight: Any, whole: Tensor) -> Tensor:
    engine = weight.engine
    index = next(number for number, one in enumerate(engine.weights) if one is weight)
    pieces: tuple[Tensor, ...] = torch.split(whole, [shape.numel() for shape in engine.shapes])
    return pieces[index].view(engine.shapes[index])


def safe_get_full_grad(weight: Any) -> Tensor | None:
    grad = weight.engine.master.grad
    return None if grad is None else part_of(weight, weight.engine.whole(grad))


def safe_get_full_fp32_param(weight: Any) -> Tensor | None:
    return part_of(weight, weight.engine.whole(weight.engine.master.detach()))


groups = SimpleNamespace(_WORLD_GROUP=None)
utils = SimpleNamespace(
    groups=groups,
    safe_get_full_grad=safe_get_full_grad,
    safe_get_full_fp32_param=safe_get_full_fp32_param,
)
comm = SimpleNamespace(comm=SimpleNamespace(cdb=None))
