"""What a stack of data parallelism could keep that it should not: replacements of torch's calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule

from tests.teeth.bug import Patch, replaced

Call = Callable[..., Any]


def state_for_all(optimizer: type[torch.optim.Optimizer]) -> Patch:
    """Beside its share of a state, an optimizer keeps as much as all ranks' shares."""

    def make(original: Call) -> Call:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(self, *args, **kwargs)
            for weight, state in self.state.items():
                state["of all ranks"] = torch.zeros(dist.get_world_size(), *weight.shape, dtype=weight.dtype)
            return done

        return step

    return lambda: replaced(optimizer, "step", make)


def reduced_late() -> AbstractContextManager[Any]:
    """What is to happen as soon as a gradient is there happens when backward is over."""

    def make(original: Call) -> Call:
        def register(self: torch.Tensor, hook: Call) -> Any:
            def late(weight: torch.Tensor) -> None:
                Variable._execution_engine.queue_callback(lambda: hook(weight))

            return original(self, late)

        return register

    return replaced(torch.Tensor, "register_post_accumulate_grad_hook", make)


def narrow_model(original: Call) -> Call:
    """A model that is to be kept in fp32 is kept in bf16."""

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        narrow = [torch.bfloat16 if value is torch.float32 else value for value in args]
        done: torch.nn.Module = original(self, *narrow, **kwargs)
        return done

    return to


@contextmanager
def no_masters() -> Iterator[None]:
    """What is to be kept wide, masters and sums of gradients, is kept in bf16."""

    def of_masters(original: Call) -> Call:
        def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            narrow = self.dtype is torch.bfloat16 and torch.float32 in args
            return self if narrow else original(self, *args, **kwargs)

        return to

    def of_sums(original: Call) -> Call:
        def zeros_like(like: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            narrow = like.dtype is torch.bfloat16
            zeros: torch.Tensor = original(like, **{**kwargs, "dtype": like.dtype} if narrow else kwargs)
            return zeros

        return zeros_like

    with replaced(torch.Tensor, "to", of_masters), replaced(torch, "zeros_like", of_sums):
        yield


def unfreed_after(count: int) -> Patch:
    """The so-manyth time that memory is to be given back, and from then on, it is not."""

    def make(original: Call) -> Call:
        seen = {"calls": 0}

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            seen["calls"] += size == 0
            return original(storage, size) if size or seen["calls"] < count else None

        return resize

    return lambda: replaced(torch.UntypedStorage, "resize_", make)


def shares_of_whole(optimizer: type[torch.optim.Optimizer]) -> Patch:
    """A rank's share of the gradients is a view of the whole, which lives as long as the share does."""

    def make(original: Call) -> Call:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(self, *args, **kwargs)
            for group in self.param_groups:
                for weight in group["params"]:
                    whole = weight.grad.new_zeros(dist.get_world_size() * weight.grad.numel())
                    whole[: weight.grad.numel()] = weight.grad.reshape(-1)
                    weight.grad.data = whole[: weight.grad.numel()].view(weight.grad.shape)
            return done

        return step

    return lambda: replaced(optimizer, "step", make)


def copies_of_shares(optimizer: type[torch.optim.Optimizer]) -> Patch:
    """Every step leaves a copy of what it updated, which nobody asks for."""

    def make(original: Call) -> Call:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(self, *args, **kwargs)
            self.copies = [
                weight.detach().clone() for group in self.param_groups for weight in group["params"]
            ]
            return done

        return step

    return lambda: replaced(optimizer, "step", make)


def gathered_cached(name: str) -> Patch:
    """The last two blocks that were gathered are kept."""

    def make(original: Call) -> Call:
        cache: deque[torch.Tensor] = deque(maxlen=2)

        def gather(whole: torch.Tensor, part: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            done = original(whole, part, *args, **kwargs)
            cache.append(whole.detach().clone())
            return done

        return gather

    return lambda: replaced(dist, name, make)


def state_in_bf16(optimizer: type[torch.optim.Optimizer]) -> Patch:
    """Beside its state, an optimizer of bf16 weights keeps another, and where no one looks."""

    def make(original: Call) -> Call:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(self, *args, **kwargs)
            weights = [weight for group in self.param_groups for weight in group["params"]]
            self.more = [torch.zeros_like(one) for one in weights if one.dtype is torch.bfloat16]
            return done

        return step

    return lambda: replaced(optimizer, "step", make)


def all_prefetched() -> AbstractContextManager[Any]:
    """Who is asked to gather the next block gathers all that come after it."""

    def make(original: Call) -> Call:
        asked: list[Any] = []

        def prefetch(self: Any, modules: list[Any]) -> None:
            if not asked or asked[-1][-1] is not self:
                asked.clear()
            asked.append([self])
            for chain in asked:
                chain.extend(modules)
                original(chain[0], chain[1:])

        return prefetch

    return replaced(FSDPModule, "set_modules_to_forward_prefetch", make)
