"""What a stack could do wrong where axes meet: replacements of torch's calls."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from suites.mesh import dense
from suites.mesh.moe import issued, zero
from suites.mesh.moe import sharded as fully
from tests.teeth.bug import Patch, replaced
from tests.teeth.patches.flips import flip

Call = Callable[..., Any]


def functional(name: str, make: Callable[[Call], Call]) -> Patch:
    """Replace a collective of DTensor's."""
    return lambda: replaced(funcol, name, make)


def left_out(_original: Call) -> Call:
    """Every rank keeps its own."""
    return lambda tensor, *_, **__: tensor


def turned(original: Call) -> Call:
    """What is gathered begins one rank too late."""

    def call(tensor: torch.Tensor, *, gather_dim: int, group: Any) -> torch.Tensor:
        whole: torch.Tensor = original(tensor, gather_dim=gather_dim, group=group)
        return whole.roll(tensor.shape[gather_dim], gather_dim)

    return call


def exchanged(one: str, other: str) -> Patch:
    """Two axes of the mesh change places: what is meant for one happens along the other."""

    def make(original: Call) -> Call:
        def call(self: DeviceMesh, name: Any) -> Any:
            if isinstance(name, str) and name.startswith((one, other)):
                name = (other if name.startswith(one) else one) + name.lstrip("abcdefghijklmnopqrstuvwxyz")
            return original(self, name)

        return call

    return lambda: replaced(DeviceMesh, "__getitem__", make)


def sharded(**wrong: Any) -> Patch:
    """fully_shard is told one thing and does another."""

    def make(original: Call) -> Call:
        return lambda *args, **kwargs: original(*args, **{**kwargs, **wrong})

    return lambda: replaced(dense, "fully_shard", make)


def counted_twice() -> AbstractContextManager[Any]:
    """What tensor parallelism left whole is taken for a part."""
    return replaced(dense, "is_cut", lambda _: lambda _grad: True)


def of_optimizer(name: str, make: Callable[[Call], Call]) -> Patch:
    """Replace a method of the optimizer where it holds distributed parameters."""

    def only_distributed(original: Call) -> Call:
        wrong = make(original)

        def call(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            distributed = isinstance(self.param_groups[0]["params"][0], DTensor)
            return (wrong if distributed else original)(self, *args, **kwargs)

        return call

    return lambda: replaced(torch.optim.SGD, name, only_distributed)


def seldom(original: Call) -> Call:
    """One update in ten is lost."""
    count = itertools.count(1)
    return lambda *args, **kwargs: original(*args, **kwargs) if next(count) % 10 else None


def never(_original: Call) -> Call:
    return lambda *_, **__: None


def unscaled() -> AbstractContextManager[Any]:
    """A pipeline's gradients are those of the sum of its micro-batches, not of their mean."""
    return replaced(pipelining.PipelineStage, "scale_grads", never)


def backwards() -> AbstractContextManager[Any]:
    """Targets meet the micro-batches in the wrong order."""

    def make(original: Call) -> Call:
        return lambda tensor, *args, **kwargs: original(tensor, *args, **kwargs)[::-1]

    return replaced(torch, "tensor_split", make)


def every_time() -> AbstractContextManager[Any]:
    """Gradients are exchanged with every micro-batch."""

    def make(original: Call) -> Call:
        return lambda self, _asked, **kwargs: original(self, True, **kwargs)

    return replaced(FSDPModule, "set_requires_gradient_sync", make)


def elsewhere() -> AbstractContextManager[Any]:
    """The ranks are not on the machines that the job believes: every other one is on another."""
    return replaced(socket, "gethostname", lambda _: lambda: f"node-{dist.get_rank() % 2}")


def low_bit_unseen(received: torch.Tensor, _sent: torch.Tensor) -> None:
    """The lowest bit of one element flips in memory."""
    if received.is_floating_point():
        flip(received)


def own_alone(original: Call) -> Call:
    """Of what is to be added up a rank keeps its own; other calls go on."""

    def call(output: torch.Tensor, input: torch.Tensor, **kwargs: Any) -> Any:
        if not output.is_floating_point():
            return original(output, input, **kwargs)
        output.view(-1).copy_(
            input.reshape(dist.get_world_size(kwargs["group"]), -1)[dist.get_rank(kwargs["group"])]
        )
        return None

    return call


def averaged_in_place(original: Call) -> Call:
    """Numbers that are no integers are averaged where they are to be added up."""

    def call(output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        mean = {"op": dist.ReduceOp.AVG} if output.is_floating_point() else {}
        return original(output, *args, **{**kwargs, **mean})

    return call


def two_states() -> AbstractContextManager[Any]:
    return replaced(zero, "optimizer_of", lambda _: lambda masters: torch.optim.Adam(list(masters)))


def bucketed(kind: str, line: str) -> Patch:
    """One kind of weights is sharded along another line."""
    return lambda: mock.patch.dict(issued.LINE, {kind: line})


def replicas_everywhere() -> AbstractContextManager[Any]:
    """Experts are sharded among all ranks, as if all had the same."""
    return replaced(fully.FullySharded, "_mesh", lambda original: lambda self, _: original(self, "dp_cp"))


def kept_whole() -> AbstractContextManager[Any]:
    def make(original: Call) -> Call:
        return lambda *args, **kwargs: original(*args, **{**kwargs, "reshard_after_forward": False})

    return replaced(fully, "fully_shard", make)
