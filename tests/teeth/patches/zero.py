"""What a stack of data parallelism could do wrong: replacements of torch's calls."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint

from fixtures.ranks.study.pattern import LARGEST_BYTES
from tests.teeth.bug import Maker, Patch, instead_of, planted, replaced, replacing, told
from tests.teeth.patches.flips import transient

Call = Callable[..., Any]


SUMMED = told(op=dist.ReduceOp.SUM)


class _Done:
    """Stands for work that was asked for and never done."""

    def wait(self) -> None:
        """At once."""


def dropped(_original: Call) -> Call:
    return lambda *_, **__: _Done()


@replacing
def dropped_in_groups(original: Call, *args: Any, **kwargs: Any) -> Any:
    """The whole world's calls are done, those among some of its ranks are not."""
    return original(*args, **kwargs) if kwargs.get("group") is None else _Done()


@replacing
def twice(original: Call, *args: Any, **kwargs: Any) -> Any:
    original(*args, **kwargs)
    return original(*args, **kwargs)


@replacing
def rotated(original: Call, whole: torch.Tensor, part: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The output begins one shard too late: chunk r holds what rank r + 1 sent."""
    done = original(whole, part, *args, **kwargs)
    with torch.no_grad():
        whole.data.copy_(whole.data.roll(-len(part), 0))
    return done


@replacing
def next_shard(original: Call, part: torch.Tensor, whole: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A rank is handed the shard of the one after it."""
    return original(part, whole.roll(-len(part), 0), *args, **kwargs)


@replacing
def only_with_grad(original: Call, *args: Any, **kwargs: Any) -> Any:
    """What backward asks for is not done: there grad mode is off."""
    return original(*args, **kwargs) if torch.is_grad_enabled() else None


@replacing
def narrowed(original: Call, part: torch.Tensor, whole: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Reduce in bf16 whatever is wider."""
    if not part.dtype.is_floating_point:
        return original(part, whole, *args, **kwargs)
    low = part.to(torch.bfloat16)
    done = original(low, whole.to(torch.bfloat16), *args, **kwargs)
    part.copy_(low)
    return done


@replacing
def flipped_always(original: Call, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The lowest bit of the first element flips on rank 1, always."""
    done = original(tensor, *args, **kwargs)
    if dist.get_rank() == 1 and not kwargs.get("async_op"):
        tensor.data.reshape(-1).view(torch.uint8)[0] ^= 1
    return done


@replacing
def next_root(original: Call, tensor: torch.Tensor, src: int = 0, *args: Any, **kwargs: Any) -> Any:
    return original(tensor, (src + 1) % dist.get_world_size(), *args, **kwargs)


def bare(hook: Call) -> Call:
    """Hide a hook's annotations: DDP reads them, and here they are strings."""
    return lambda state, bucket: hook(state, bucket)  # noqa: PLW0108 - the hook itself has them


def hooked(hook: Call) -> Patch:
    """DDP exchanges buckets by this hook."""

    @replacing
    def make(original: Call, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(None, bare(hook))

    return planted(DistributedDataParallel, "__init__", make)


def transient_in_bucket(number: int) -> Patch:
    """The lowest bit of one element flips once, in what the so-manyth bucket comes back as."""

    @contextmanager
    def patch() -> Iterator[None]:
        with hooked(mean_hook)(), transient("all_reduce", number)():
            yield

    return patch


def sum_hook(_state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    return future(reduced(bucket.buffer()))


def mean_hook(_state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """What DDP does without a hook, through a call that can be replaced."""
    return future(reduced(bucket.buffer()).div_(dist.get_world_size()))


def bf16_hook(_state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    mean = reduced(bucket.buffer().to(torch.bfloat16)) / dist.get_world_size()
    return future(mean.to(bucket.buffer().dtype))


def late_hook(_state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """The bucket that is ready last is not exchanged."""
    mean = bucket.buffer() if bucket.is_last() else reduced(bucket.buffer()) / dist.get_world_size()
    return future(mean)


def reduced(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor


def future(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(value)
    return future


def for_good(_original: Call) -> Call:
    """The last micro-batch is not synchronised either."""

    @contextmanager
    def no_sync(self: Any) -> Iterator[None]:
        self.require_backward_grad_sync = False
        yield

    return no_sync


def ddp(name: str, make: Callable[[Call], Call]) -> Patch:
    return planted(DistributedDataParallel, name, make)


def kept_when_prefetched(name: str) -> Patch:
    """A block that was asked for ahead of time is kept whole until backward."""

    @replacing
    def make(original: Call, self: Any, modules: Any) -> None:
        original(self, modules)
        for module in modules:
            module.set_reshard_after_forward(False)

    return planted(FSDPModule, name, make)


def checkpointed(make: Callable[[Call], Call]) -> Patch:
    return planted(checkpoint, "checkpoint", make)


def not_at_all(_original: Call) -> Call:
    return lambda function, *args, **_: function(*args)


@replacing
def narrow_input(original: Call, function: Call, x: torch.Tensor, **kwargs: Any) -> Any:
    """What is kept for the second forward is rounded to bf16."""
    return original(lambda low: function(low.to(x.dtype)), x.to(torch.bfloat16), **kwargs)


@replacing
def other_input(original: Call, function: Call, x: torch.Tensor, **kwargs: Any) -> Any:
    """The second forward is not the first: it computes on half the input."""
    count = itertools.count()
    return original(lambda again: function(again / (1 + min(next(count), 1))), x, **kwargs)


def after_step(leave: Callable[[Any], None]) -> Callable[[type[torch.optim.Optimizer]], Patch]:
    """Do this to an optimizer of some type whenever it has made a step."""

    @replacing
    def make(original: Call, self: Any, *args: Any, **kwargs: Any) -> Any:
        done = original(self, *args, **kwargs)
        leave(self)
        return done

    return lambda optimizer: planted(optimizer, "step", make)


@after_step
def state_for_all(optimizer: Any) -> None:
    """Beside its share of a state, an optimizer keeps as much as all ranks' shares."""
    for weight, state in optimizer.state.items():
        state["of all ranks"] = torch.zeros(dist.get_world_size(), *weight.shape, dtype=weight.dtype)


@instead_of(torch.Tensor, "register_post_accumulate_grad_hook")
def reduced_late(original: Call, self: torch.Tensor, hook: Call) -> Any:
    """What is to happen as soon as a gradient is there happens when backward is over."""

    def late(weight: torch.Tensor) -> None:
        Variable._execution_engine.queue_callback(lambda: hook(weight))

    return original(self, late)


@replacing
def narrow_model(original: Call, self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """A model that is to be kept in fp32 is kept in bf16."""
    narrow = [torch.bfloat16 if value is torch.float32 else value for value in args]
    done: torch.nn.Module = original(self, *narrow, **kwargs)
    return done


@contextmanager
def no_masters() -> Iterator[None]:
    """What is to be kept wide, masters and sums of gradients, is kept in bf16."""

    @replacing
    def of_masters(original: Call, self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        narrow = self.dtype is torch.bfloat16 and torch.float32 in args
        return self if narrow else original(self, *args, **kwargs)

    @replacing
    def of_sums(original: Call, like: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        narrow = like.dtype is torch.bfloat16
        zeros: torch.Tensor = original(like, **{**kwargs, "dtype": like.dtype} if narrow else kwargs)
        return zeros

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

    return planted(torch.UntypedStorage, "resize_", make)


@after_step
def shares_of_whole(optimizer: Any) -> None:
    """A rank's share of the gradients is a view of the whole, which lives as long as the share does."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            whole = weight.grad.new_zeros(dist.get_world_size() * weight.grad.numel())
            whole[: weight.grad.numel()] = weight.grad.reshape(-1)
            weight.grad.data = whole[: weight.grad.numel()].view(weight.grad.shape)


@after_step
def copies_of_shares(optimizer: Any) -> None:
    """Every step leaves a copy of what it updated, which nobody asks for."""
    optimizer.copies = [
        weight.detach().clone() for group in optimizer.param_groups for weight in group["params"]
    ]


def gathered_cached(name: str) -> Patch:
    """The last two blocks that were gathered are kept."""

    def make(original: Call) -> Call:
        cache: deque[torch.Tensor] = deque(maxlen=2)

        def gather(whole: torch.Tensor, part: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            done = original(whole, part, *args, **kwargs)
            cache.append(whole.detach().clone())
            return done

        return gather

    return planted(dist, name, make)


def own_summands_in_turn(reductions: int, steps: int) -> Maker:
    """Every second step of a run a rank gets back its own gradients; a step has so many reductions."""

    def make(original: Call) -> Call:
        number = itertools.count()

        def reduce(output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            own = input.detach().reshape(dist.get_world_size(), -1)[dist.get_rank()].clone()
            done = original(output, input, *args, **kwargs)
            if input.nbytes < LARGEST_BYTES["cpu"] and next(number) // reductions % steps % 2:
                if done is not None:
                    done.wait()
                output.detach().view(-1).copy_(own)
            return done

        return reduce

    return make


@after_step
def state_in_bf16(optimizer: Any) -> None:
    """Beside its state, an optimizer of bf16 weights keeps another, and where no one looks."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    optimizer.more = [torch.zeros_like(one) for one in weights if one.dtype is torch.bfloat16]


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
