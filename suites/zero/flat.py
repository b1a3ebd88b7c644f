"""The three stages of ZeRO as the paper defines them, on flat buffers (Rajbhandari et al., arXiv:1910.02054).

The parameters of one block lie in one buffer of P elements, cut into w shards; rank r updates shard r.

    stage  held all the time           backward                          after the update
    1      P params, P grads           reduce-scatter at its end         all-gather
    2      P params, P/w grads         reduce-scatter block by block     all-gather
    3      P/w params, P/w grads       all-gather, reduce-scatter        (forward: all-gather)

The optimizer has P/w of each state in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fixtures.ranks.collectives.calls import renamed
from fixtures.ranks.study import memory
from fixtures.ranks.study.driver import Named
from fixtures.ranks.study.memory import storage_bytes
from fixtures.ranks.study.models import gradient_of
from fixtures.wire.held import Weighed
from suites.zero.training import RULE, Engine, Task


def all_gather(whole: torch.Tensor, part: torch.Tensor) -> None:
    """Join the ranks' parts."""
    renamed("all_gather_single", "all_gather_into_tensor")(whole, part)


def reduce_scatter(part: torch.Tensor, whole: torch.Tensor) -> None:
    """Average over the ranks, one part for each."""
    renamed("reduce_scatter_single", "reduce_scatter_tensor")(part, whole, op=dist.ReduceOp.AVG)


class FlatBlock:
    """A block whose parameters are views of one flat buffer, and this rank's shard of it."""

    def __init__(self, module: nn.Module, rank: int, size: int) -> None:
        self.module, self.rank, self.size = module, rank, size
        self.weights = list(module.parameters())
        self.names = [name for name, _ in module.named_parameters()]
        elements = sum(weight.numel() for weight in self.weights)
        if elements % size:
            raise ValueError(f"a block of {elements} parameters cannot be cut into {size} equal shards")
        self.full = torch.cat([weight.detach().reshape(-1) for weight in self.weights])
        self.full_bytes = self.full.untyped_storage().nbytes()
        for weight, view in zip(self.weights, self.views(self.full), strict=True):
            weight.data = view
        self.shard = nn.Parameter(self.cut(self.full))
        self.grad: torch.Tensor | None = None

    def cut(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's shard of a flat buffer: a view."""
        length = flat.numel() // self.size
        return flat.detach().narrow(0, self.rank * length, length)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parameters' places in a flat buffer."""
        pieces = torch.split(flat, [weight.numel() for weight in self.weights])
        return [piece.view(weight.shape) for piece, weight in zip(pieces, self.weights, strict=True)]

    def gather(self) -> None:
        """Make the parameters whole again from all ranks' shards."""
        all_gather(self.full, self.shard.detach())

    def expect_gradients(self) -> None:
        """Give backward one flat buffer to add the gradients into, unless there is one."""
        if self.grad is not None:
            return
        self.grad = torch.zeros(self.full.shape, dtype=self.full.dtype, device=self.full.device)
        for weight, view in zip(self.weights, self.views(self.grad), strict=True):
            weight.grad = view

    def reduce(self) -> None:
        """Average the gradients, add them to those of this rank's shard, and free the whole ones."""
        if self.grad is None:
            raise RuntimeError("gradients are reduced before there are any")
        part = torch.empty_like(self.shard)
        reduce_scatter(part, self.grad)
        self.shard.grad = part if self.shard.grad is None else self.shard.grad.add_(part)
        self.grad = None
        for weight in self.weights:
            weight.grad = None


class Zero1(Engine):
    """Stage 1: the optimizer's states are sharded."""

    def __init__(self, task: Task, dtype: torch.dtype) -> None:
        self.task, self.model = task, task.model(dtype)
        self.blocks = [FlatBlock(block, task.ctx.rank, task.ctx.size) for block in self.model]
        self.optimizer = RULE.optimizer([block.shard for block in self.blocks])
        self.live_peak_bytes = self.gradient_peak_bytes = 0
        self.prepare()

    def prepare(self) -> None:
        """Put in place what the stage does during forward and backward."""

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Keep all gradients until the end of the last micro-batch, then reduce them."""
        for block in self.blocks:
            block.expect_gradients()
        torch.autograd.backward(loss)
        self.watch()
        for block in reversed(self.blocks) if last else ():
            block.reduce()

    def publish(self) -> None:
        """Gather the updated parameters on all ranks."""
        for block in self.blocks:
            block.gather()

    def watch(self) -> None:
        """Keep the peaks of whole gradients and parameters."""
        whole = storage_bytes([block.grad for block in self.blocks if block.grad is not None])
        self.gradient_peak_bytes = max(self.gradient_peak_bytes, whole)
        self.live_peak_bytes = max(self.live_peak_bytes, self.unsharded_bytes())

    def unsharded_bytes(self) -> int:
        """Bytes of whole parameters now."""
        return storage_bytes([block.full for block in self.blocks])

    def gradients(self) -> Named:
        """Shards, by block."""
        return {str(number): gradient_of(block.shard) for number, block in enumerate(self.blocks)}

    def parameters(self) -> Named:
        """Shards, by block. The output shows whether the other ranks' shards arrived."""
        return {str(number): block.shard for number, block in enumerate(self.blocks)}

    def part(self, full: Named) -> Named:
        """The same shards of full tensors."""
        flats = [
            torch.cat([full[f"{number}.{name}"].reshape(-1) for name in block.names])
            for number, block in enumerate(self.blocks)
        ]
        return {str(number): self.blocks[number].cut(flat) for number, flat in enumerate(flats)}

    def held(self) -> Weighed:
        """Reduced gradients, and more: "live unsharded" are whole parameters, after forward."""
        params = storage_bytes([tensor for block in self.blocks for tensor in (block.full, block.shard)])
        kept = [block.grad for block in self.blocks if block.grad is not None]
        grads = storage_bytes([*kept, *(gradient_of(block.shard) for block in self.blocks)])
        return {
            "params": params,
            "grads": grads,
            "grads before they are reduced": self.gradient_peak_bytes,
            "optimizer": memory.optimizer_bytes(self.optimizer),
            "live unsharded": self.live_bytes,
            "live unsharded at most": self.live_peak_bytes,
        }


class Zero2(Zero1):
    """Stage 2: gradients are sharded too; a block's whole gradients live until the last is accumulated."""

    def prepare(self) -> None:
        """Reduce a block as soon as its last gradient is accumulated."""
        self._hooks = []
        for block in self.blocks:
            block.module.register_forward_hook(self._before_backward(block))
            for weight in block.weights:
                hook = weight.register_post_accumulate_grad_hook(self._count(block))  # type: ignore[no-untyped-call]
                self._hooks.append(hook)
        self.missing = {id(block): 0 for block in self.blocks}

    def close(self) -> None:
        """Remove the weights' hooks: they keep this engine, and Python does not see who keeps them."""
        for hook in self._hooks:
            hook.remove()

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """The hooks do the rest, with every micro-batch."""
        torch.autograd.backward(loss)

    def enter(self, block: FlatBlock) -> None:
        """Backward is about to enter a block."""
        block.expect_gradients()
        self.missing[id(block)] = len(block.weights)

    def leave(self, block: FlatBlock) -> None:
        """All gradients of a block are accumulated."""
        self.watch()
        block.reduce()

    def _before_backward(self, block: FlatBlock) -> Callable[[nn.Module, Any, torch.Tensor], None]:
        def after_forward(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            if output.requires_grad:
                output.register_hook(lambda _grad: self.enter(block))  # type: ignore[no-untyped-call]

        return after_forward

    def _count(self, block: FlatBlock) -> Callable[[torch.Tensor], None]:
        def accumulated(_weight: torch.Tensor) -> None:
            self.missing[id(block)] -= 1
            if not self.missing[id(block)]:
                self.leave(block)

        return accumulated


class Zero3(Zero2):
    """Stage 3: parameters are sharded too, and whole only while their block computes."""

    def prepare(self) -> None:
        """Gather before a block's forward and again before its backward; free after each."""
        for block in self.blocks:
            block.shard = nn.Parameter(block.shard.detach().clone())
            self._free(block)
            block.module.register_forward_pre_hook(lambda _module, _inputs, block=block: self._fill(block))
        super().prepare()
        for block in self.blocks:
            block.module.register_forward_hook(
                lambda _module, _inputs, _output, block=block: self._free(block)
            )
        self.optimizer = RULE.optimizer([block.shard for block in self.blocks])

    def enter(self, block: FlatBlock) -> None:
        """The parameters are needed again."""
        self._fill(block)
        super().enter(block)

    def leave(self, block: FlatBlock) -> None:
        """The parameters are not needed any more."""
        super().leave(block)
        self._free(block)

    def publish(self) -> None:
        """The next forward gathers."""

    def _fill(self, block: FlatBlock) -> None:
        block.full.untyped_storage().resize_(block.full_bytes)
        block.gather()
        self.live_peak_bytes = max(self.live_peak_bytes, self.unsharded_bytes())

    def _free(self, block: FlatBlock) -> None:
        block.full.untyped_storage().resize_(0)
