"""What a stack of data parallelism could do wrong: replacements of torch's calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint

from suites.zero import policies, wrapped
from tests.teeth.bug import Patch, replaced
from tests.teeth.patches.flips import transient

Call = Callable[..., Any]


def of(name: str, make: Callable[[Call], Call]) -> Patch:
    """Replace a call of torch.distributed."""
    return lambda: replaced(dist, name, make)


class _Done:
    """Stands for work that was asked for and never done."""

    def wait(self) -> None:
        """At once."""


def dropped(_original: Call) -> Call:
    return lambda *_, **__: _Done()


def dropped_in_groups(original: Call) -> Call:
    """The whole world's calls are done, those among some of its ranks are not."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if kwargs.get("group") is None else _Done()

    return call


def summed(original: Call) -> Call:
    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "op": dist.ReduceOp.SUM})

    return call


def twice(original: Call) -> Call:
    def call(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        return original(*args, **kwargs)

    return call


def rotated(original: Call) -> Call:
    """The output begins one shard too late: chunk r holds what rank r + 1 sent."""

    def call(whole: torch.Tensor, part: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        done = original(whole, part, *args, **kwargs)
        with torch.no_grad():
            whole.data.copy_(whole.data.roll(-part.numel(), 0))
        return done

    return call


def next_shard(original: Call) -> Call:
    """A rank is handed the shard of the one after it."""

    def call(part: torch.Tensor, whole: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(part, whole.roll(-part.numel(), 0), *args, **kwargs)

    return call


def only_with_grad(original: Call) -> Call:
    """What backward asks for is not done: there grad mode is off."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if torch.is_grad_enabled() else None

    return call


def narrowed(original: Call) -> Call:
    """Reduce in bf16 whatever is wider."""

    def call(part: torch.Tensor, whole: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not part.dtype.is_floating_point:
            return original(part, whole, *args, **kwargs)
        low = part.to(torch.bfloat16)
        done = original(low, whole.to(torch.bfloat16), *args, **kwargs)
        part.copy_(low)
        return done

    return call


def flipped_always(original: Call) -> Call:
    """The lowest bit of the first element flips on rank 1, always."""

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        done = original(tensor, *args, **kwargs)
        if dist.get_rank() == 1 and not kwargs.get("async_op"):
            tensor.data.reshape(-1).view(torch.uint8)[0] ^= 1
        return done

    return call


def next_root(original: Call) -> Call:
    def call(tensor: torch.Tensor, src: int = 0, *args: Any, **kwargs: Any) -> Any:
        return original(tensor, (src + 1) % dist.get_world_size(), *args, **kwargs)

    return call


def bare(hook: Call) -> Call:
    """Hide a hook's annotations: DDP reads them, and here they are strings."""
    return lambda state, bucket: hook(state, bucket)  # noqa: PLW0108 - the hook itself has them


def hooked(hook: Call) -> Patch:
    """DDP exchanges buckets by this hook."""

    def make(original: Call) -> Call:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.register_comm_hook(None, bare(hook))

        return init

    return lambda: replaced(DistributedDataParallel, "__init__", make)


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
    return lambda: replaced(DistributedDataParallel, name, make)


def one_bucket(original: Call) -> Call:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "bucket_cap_mb": 25})

    return init


def never_freed() -> AbstractContextManager[Any]:
    def make(original: Call) -> Call:
        return lambda storage, size: original(storage, size) if size else None

    return replaced(torch.UntypedStorage, "resize_", make)


def kept_whole() -> AbstractContextManager[Any]:
    """fully_shard is told to reshard after forward, and does not."""

    def make(original: Call) -> Call:
        def call(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **{**kwargs, "reshard_after_forward": False})

        return call

    return replaced(wrapped, "fully_shard", make)


def policy(**changed: Any) -> Patch:
    """fully_shard is told other dtypes than it was to be told."""

    def make(original: Call) -> Call:
        return lambda **asked: original(**{**asked, **changed})

    return lambda: replaced(policies, "MixedPrecisionPolicy", make)


def kept_when_prefetched(name: str) -> Patch:
    """A block that was asked for ahead of time is kept whole until backward."""

    def make(original: Call) -> Call:
        def ask(self: Any, modules: Any) -> None:
            original(self, modules)
            for module in modules:
                module.set_reshard_after_forward(False)

        return ask

    return lambda: replaced(FSDPModule, name, make)


def checkpointed(make: Callable[[Call], Call]) -> Patch:
    return lambda: replaced(checkpoint, "checkpoint", make)


def not_at_all(_original: Call) -> Call:
    return lambda function, *args, **_: function(*args)


def generator_lost(original: Call) -> Call:
    """Masks are drawn anew for the second forward."""
    return lambda *args, **kwargs: original(*args, preserve_rng_state=False, **kwargs)


def narrow_input(original: Call) -> Call:
    """What is kept for the second forward is rounded to bf16."""

    def call(function: Call, x: torch.Tensor, **kwargs: Any) -> Any:
        return original(lambda low: function(low.to(x.dtype)), x.to(torch.bfloat16), **kwargs)

    return call


def other_input(original: Call) -> Call:
    """The second forward is not the first: it computes on half the input."""

    def call(function: Call, x: torch.Tensor, **kwargs: Any) -> Any:
        count = itertools.count()
        return original(lambda again: function(again / (1 + min(next(count), 1))), x, **kwargs)

    return call
