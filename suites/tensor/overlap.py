"""Tensor parallel layers whose communication overlaps with their matrix products.

torch's fused operations cut a product into one piece per rank, so that the next piece arrives while this one
is computed: all_gather and product forward, product and reduce_scatter on the way back (torch.distributed.
_symmetric_memory; Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large
Deep Learning Models", 2023). GPUs read each other's memory for it; on CPUs torch's own unfused version of the
same operations runs, which overlaps nothing and sends the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from fixtures.ranks.collectives.calls import Call
from fixtures.ranks.collectives.collectives import Collective
from fixtures.ranks.engines import engine
from fixtures.ranks.groups import lasting
from fixtures.ranks.steps import Context, Unsupported
from fixtures.ranks.study import parity
from fixtures.ranks.study.driver import EXACT, Entries, Run, run_once
from fixtures.ranks.study.overlap import in_turn
from fixtures.ranks.study.pattern import ITERATIONS, Move
from suites.tensor import blocks
from suites.tensor.blocks import SEQUENCE, Split
from suites.tensor.regions import Group, all_gather, reduce_scatter
from suites.tensor.technique import SIZE_BYTES, Functional

_MODULE = "torch.distributed._symmetric_memory"
_GATHER, _SCATTER = "_fused_all_gather_matmul", "_fused_matmul_reduce_scatter"
_NEEDED = ("enable_symm_mem_for_group", *(f"{name}_fallback" for name in (_GATHER, _SCATTER)))
_SCALES = {"cpu": (256, 256, 512), "cuda": (8192, 4096, 14336)}  # tokens, width and hidden features in all
_COLUMNS = 64  # of the matrix into which an exact payload is shaped


@dataclass(frozen=True)
class Fused:
    """The two operations in a group; `name` is torch's name of the group."""

    symmetric: Any
    group: Group
    name: str

    def gather(self, x: Tensor, factors: list[Tensor], dim: int = SEQUENCE) -> tuple[Tensor, list[Tensor]]:
        """The parts of x joined along `dim`, and their products with the factors."""
        call = self._call(_GATHER, x)
        whole, products = call(x.contiguous(), factors, dim, self.name, return_A=True)
        return whole, products

    def scatter(self, x: Tensor, factor: Tensor, dim: int = SEQUENCE) -> Tensor:
        """This rank's part along `dim` of the sum of all ranks' products."""
        found: Tensor = self._call(_SCATTER, x)(x.contiguous(), factor, "sum", dim, self.name)
        return found

    def _call(self, name: str, x: Tensor) -> Any:  # noqa: ANN401 - functions of torch's
        if x.is_cuda:
            return getattr(torch.ops.symm_mem, name.removeprefix("_"))
        return getattr(self.symmetric, f"{name}_fallback")


@contextmanager
def fused(ctx: Context, group: Group) -> Iterator[Fused]:
    """Make the operations usable in this world, or say why there are none."""
    symmetric = engine(ctx, _MODULE, _NEEDED)
    if ctx.device.type != "cuda":
        yield Fused(symmetric, group, dist.distributed_c10d._get_default_group().group_name)
        return
    _refuse_far_memory(ctx)
    handle = _group_of_its_own(ctx)
    with lasting([handle]):
        symmetric.enable_symm_mem_for_group(handle.group_name)
        yield Fused(symmetric, group, handle.group_name)
        symmetric._group_name_to_workspace_tensor.pop(handle.group_name, None)


def _refuse_far_memory(ctx: Context) -> None:
    """Raise Unsupported where GPUs cannot map each other's memory; all ranks decide the same."""
    if len(set(ctx.hosts)) > 1:
        raise Unsupported("fused operations read the memory of GPUs in the same node; this world has several")
    own = ctx.local_ranks[ctx.rank]
    reached = all(torch.cuda.can_device_access_peer(own, peer) for peer in ctx.local_ranks if peer != own)
    everywhere = torch.tensor([int(reached)], device=ctx.device)
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
    if not int(everywhere):
        raise Unsupported("fused operations read other GPUs' memory; some GPUs of this node cannot")


_made = [0]


def _group_of_its_own(ctx: Context) -> Any:  # noqa: ANN401 - a process group
    """Make a group with a name that no earlier world of these ranks has used.

    torch numbers groups from 0 again in every world, and keeps what it mapped under a group's name for ever.
    """
    number = torch.tensor([_made[0] + 1], device=ctx.device)
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    _made[0] = int(number)
    counter: Any = dist.distributed_c10d._world
    counter.group_count = max(counter.group_count, 1000 * _made[0])
    return dist.new_group(list(range(ctx.size)))


class _Gathered(Function):
    """Column-parallel layers on a sequence that is split: `gathered_linear`, fused both ways.

    Forward: all_gather of x with the products. Backward: all_gather of x again, for the weights' gradients,
    and one product of all layers' gradients side by side with their weights, reduce_scattered.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, ops: Fused, *weights: Tensor) -> Any:  # noqa: ANN401 - autograd's context
        ctx.save_for_backward(x, *weights)
        ctx.ops = ops
        return tuple(ops.gather(x, [weight.t() for weight in weights])[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        x, *weights = ctx.saved_tensors
        whole = all_gather(x, SEQUENCE, ctx.ops.group).flatten(0, -2)
        found = ctx.ops.scatter(torch.cat(grads, -1), torch.cat(weights))
        return (found, None, *(grad.flatten(0, -2).t() @ whole for grad in grads))


class _Scattered(Function):
    """A row-parallel layer whose sum is split by sequence. Backward: all_gather of the gradient, fused."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ops: Fused, weight: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        ctx.ops = ops
        return ops.scatter(x, weight.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        whole, (found,) = ctx.ops.gather(grads[0], [weight])
        return found, None, whole.flatten(0, -2).t() @ x.flatten(0, -2)


def mlp(ops: Fused, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """SwiGLU over this rank's hidden features, of a sequence that is split."""
    opened, passed = _Gathered.apply(x, ops, gate, up)  # type: ignore[no-untyped-call]
    found: Tensor = _Scattered.apply(functional.silu(opened) * passed, ops, down)  # type: ignore[no-untyped-call]
    return found


@dataclass(kw_only=True)
class FusedMlp(Functional):
    """An MLP on a split sequence with fused operations, compared with the one without."""

    ops: Fused

    def beside(self, dtype: torch.dtype, run: Run[Sequence[Tensor]]) -> Entries:
        """Compare with the unfused layers, in fp64."""
        if dtype is not EXACT:
            return []
        unfused = replace(self, forward=lambda w, x: blocks.mlp(Split(self.ops.group), x, *w.values()))
        right = run_once(unfused, dtype).results
        return [parity.entry(f"{what}, unfused", run.results[what], right[what]) for what in right]

    def exchange(self, kind: str) -> Collective:
        """Make one through the fused operations."""
        return Move(kind, SIZE_BYTES[self.ctx.device.type], call=self._moved).exchange(self.ctx, "fp64")

    def _moved(self, call: Call) -> None:
        """Gather with a product, or reduce after one: with the identity matrix, which changes no number."""
        columns = math.gcd(call.sent.numel(), call.received.numel(), _COLUMNS)
        matrix, received = call.sent.view(-1, columns), call.received.view(-1, columns)
        one = torch.eye(columns, dtype=matrix.dtype, device=matrix.device)
        if call.sent.numel() < call.received.numel():
            received.copy_(self.ops.gather(matrix, [one], 0)[0])
        else:
            received.copy_(self.ops.scatter(matrix, one, 0))

    def figures(self) -> Mapping[str, float]:
        """Measure how much is hidden."""
        return {"overlap": overlap(self.ctx, self.ops)}


def overlap(ctx: Context, ops: Fused) -> float:
    """How much of the communication hides behind the products of a forward pass."""
    tokens, width, hidden = _SCALES[ctx.device.type]
    dtype = torch.float32 if ctx.device.type == "cpu" else torch.bfloat16
    mine, part = tokens // ctx.size or 1, hidden // ctx.size or 1

    def made(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=ctx.device)

    x, column, row = made(1, mine, width), made(width, part), made(part, width)
    whole, summand = made(1, mine * ctx.size, width), made(1, mine * ctx.size, width)

    def moving() -> None:
        all_gather(x, SEQUENCE, ops.group)
        reduce_scatter(summand, SEQUENCE, ops.group)

    runs = (
        lambda: whole @ column @ row,
        moving,
        lambda: ops.scatter(ops.gather(x, [column])[1][0], row),
    )
    ctx.progress.phase("overlap")
    for run in runs:
        run()
    return in_turn(ctx, runs, ITERATIONS)["overlap"]
