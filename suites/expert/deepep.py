"""DeepEP's dispatch and combine, as calls with a gradient and as something to time.

deepseek-ai/DeepEP@189df34 deep_ep/buffers/legacy.py, and README.md, "Example use in model training": the
gradient of a dispatch is a combine, and that of a combine is a dispatch by the same handle. A token goes
once to every rank that has one of its experts; it arrives with the numbers of its experts there (-1:
elsewhere) and their weights; a combine adds up what comes back from those ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fixtures.ranks import timing
from fixtures.ranks.engines import engine
from fixtures.ranks.steps import Context, Unsupported
from suites.tensor.regions import met

_NEEDS = ("Buffer",)
_BF16_BYTES = 2
# What the library says of a number of ranks that it has no kernels for (Buffer.get_dispatch_config).
_NO_KERNELS = "Unsupported number of EP ranks"


@dataclass(frozen=True)
class Arrived:
    """What a dispatch brought to this rank: tokens, local experts and weights, and how to send them back."""

    rows: Tensor
    experts: Tensor
    weights: Tensor
    per_expert: list[int]
    handle: Any


class Engine:
    """One buffer of DeepEP, and the calls that are made on it. All of them wait until they are complete."""

    def __init__(self, ctx: Context, module: Any, hidden: int) -> None:  # noqa: ANN401
        self.ctx, self.index_type = ctx, getattr(module, "topk_idx_t", torch.int64)
        group = dist.group.WORLD
        self.buffer: Any = module.Buffer(group, *_buffer_bytes(module, ctx.size, hidden * _BF16_BYTES))

    def dispatch(self, rows: Tensor, weights: Tensor, chosen: Tensor, experts: int) -> Arrived:
        """Send every token to the ranks of its experts."""
        chosen = chosen.to(self.index_type).contiguous()
        per_rank, per_node, per_expert, there, _ = self.buffer.get_dispatch_layout(chosen, experts)
        came, local, with_weights, counts, handle, _ = self.buffer.dispatch(
            rows.contiguous(),
            topk_idx=chosen,
            topk_weights=weights.float().contiguous(),
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=there,
            num_tokens_per_expert=per_expert,
        )
        timing.complete(self.ctx)
        return Arrived(came, local.to(torch.int64), with_weights, counts, handle)

    def again(self, rows: Tensor, handle: Any) -> Tensor:  # noqa: ANN401
        """Send other rows the way of an earlier dispatch."""
        came: Tensor = self.buffer.dispatch(rows.contiguous(), handle=handle)[0]
        return came

    def combine(
        self,
        rows: Tensor,
        handle: Any,  # noqa: ANN401
        weights: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Send rows (and their weights) back, and add up those of a token."""
        summed, weighed, _ = self.buffer.combine(rows.contiguous(), handle, topk_weights=weights)
        return summed, weighed


@contextmanager
def opened(ctx: Context, name: str, hidden: int) -> Iterator[Engine]:
    """Open the engine where every rank has it; n/a where none has, or it has no kernels for this world."""
    module = engine(ctx, name, _NEEDS)
    try:
        made = Engine(ctx, module, hidden)
    except AssertionError as refused:
        if str(refused).startswith(_NO_KERNELS):
            raise Unsupported(f"{name}: {refused}") from refused
        raise
    yield made
    timing.barrier(ctx)  # nobody frees its memory while another still reads it
    del made.buffer


def _buffer_bytes(module: Any, ranks: int, hidden_bytes: int) -> tuple[int, int]:  # noqa: ANN401
    """As many bytes as the library's own settings for this number of ranks ask for."""
    configs = (module.Buffer.get_dispatch_config(ranks), module.Buffer.get_combine_config(ranks))
    inside = [config.get_nvl_buffer_size_hint(hidden_bytes, ranks) for config in configs]
    across = [config.get_rdma_buffer_size_hint(hidden_bytes, ranks) for config in configs]
    return max(inside), max(across)


class _Dispatch(torch.autograd.Function):
    """Send rows and weights; add up their gradients on the way back."""

    @staticmethod
    def forward(  # noqa: PLR0917 - the arguments of a torch.autograd.Function
        ctx: Any,  # noqa: ANN401
        rows: Tensor,
        weights: Tensor,
        chosen: Tensor,
        experts: int,
        made: Engine,
        kept: list[Any],
    ) -> tuple[Tensor, Tensor]:
        found = made.dispatch(rows, weights, chosen, experts)
        ctx.engine, ctx.kept, ctx.handle = made, kept, found.handle
        kept.append(found)
        return found.rows, found.weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor, of_weights: Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        back, weights = ctx.engine.combine(grad, ctx.handle, of_weights.contiguous())
        ctx.kept += [back, weights]
        return back, weights, None, None, None, None


def dispatched(  # noqa: PLR0917 - what goes, where to, by what, where it is noted
    rows: Tensor, weights: Tensor, chosen: Tensor, experts: int, made: Engine, kept: list[Any]
) -> tuple[Tensor, Tensor, Arrived]:
    """A dispatch with a gradient: rows and weights that arrived, and where they belong. `kept` has it all."""
    came, with_weights = _Dispatch.apply(rows, weights, chosen, experts, made, kept)  # type: ignore[no-untyped-call]
    found: Arrived = kept[-1]
    return came, with_weights, found


def combined(rows: Tensor, handle: Any, made: Engine, kept: list[Any]) -> Tensor:  # noqa: ANN401
    """A combine with a gradient, which goes to every summand of a row."""

    def forth(given: Tensor) -> Tensor:
        summed, _ = made.combine(given, handle)
        kept.append(summed.clone())
        return summed

    def back(grad: Tensor) -> Tensor:
        there = made.again(grad, handle)
        kept.append(there)
        return there

    return met(rows, forth, back)
