"""Bugs of expert parallelism: tokens dropped, swapped or stale, gradients not added up, bits flipped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tests.teeth.bug import Bug, Patch, replaced

Call = Callable[..., Any]
LAYER = {"tokens_per_rank": 16, "experts_per_rank": 4, "top_k": 2, "routing": "skewed"}
TOKENS = {**LAYER, "words": 8}
PARITY = {**LAYER, "hidden": 24, "inner": 12}
LIMITED = {"tokens_per_rank": 16, "experts_per_rank": 4, "top_k": 4, "words": 8, "most_nodes": 2, "groups": 4}
SPEED = {"sizes": {"cpu": [16, 32, 2]}, "experts_per_rank": 4, "iterations": 10, "budget_s": 0.1}
APART = {
    "routing": "balanced",
    "tokens_per_batch": 8,
    "hidden": 16,
    "inner": 8,
    "experts_per_rank": 4,
    "top_k": 2,
    "layers": 2,
    "micro_batches": 2,
    "stage_ms": 0.0,
}
PATTERN = {"sizes": {"cpu": [4096]}, "iterations": 10, "budget_s": 0.1}
_MOST_COUNTS = 16  # a message of counts is shorter than any payload


def _after(name: str, damage: Callable[..., None]) -> Patch:
    """Let the collective do its work, then damage what it left."""

    def make(real: Call) -> Call:
        def patched(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            damage(*args)
            return result

        return patched

    return lambda: replaced(dist, name, make)


def _sent(change: Callable[[torch.Tensor], torch.Tensor]) -> Patch:
    """Send something else in place of a payload."""

    def make(real: Call) -> Call:
        def patched(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return real(change(tensor), *args, **kwargs)

        return patched

    return lambda: replaced(dist, "isend", make)


def _drop_last_row(output: torch.Tensor, *_: Any) -> None:
    """A full buffer: the last token that came does not get in."""
    if output.dim() == 2 and len(output):
        output[-1] = 0


def _flip(output: torch.Tensor, *args: Any) -> None:
    """The lowest bit of the first element on rank 1, in every exchange of rows."""
    if len(args) == 3 and output.numel() and dist.get_rank() == 1:
        output.view(torch.uint8).view(-1)[0] ^= 1


def _flip_once() -> AbstractContextManager[None]:
    """The same, in the first exchange alone."""
    numbers = itertools.count()
    return _after("all_to_all_single", lambda *args: _flip(*args) if _first(args, numbers) else None)()


def _first(args: tuple[Any, ...], numbers: Iterator[int]) -> bool:
    return len(args) == 4 and next(numbers) == 0


def _last_unwritten(output: torch.Tensor, *_: Any) -> None:
    if output.numel():
        output[-1] = 0


def _twice(real: Call) -> Call:
    def patched(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        return real(*args, **kwargs)

    return patched


def _twice_and_wait(real: Call) -> Call:
    def patched(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs).wait()
        return real(*args, **kwargs)

    return patched


@contextmanager
def _both_twice() -> Iterator[None]:
    kept: list[Any] = []  # a send that nobody holds is taken back

    def send_twice(real: Call) -> Call:
        def patched(*args: Any, **kwargs: Any) -> Any:
            kept.append(real(*args, **kwargs))
            return real(*args, **kwargs)

        return patched

    with ExitStack() as stack:
        stack.enter_context(replaced(dist, "isend", send_twice))
        stack.enter_context(replaced(dist, "irecv", _twice_and_wait))
        yield


def _backwards(real: Call) -> Call:
    return lambda tensor, *args, **kwargs: real(tensor, *args, **{**kwargs, "descending": True})


def _rounded(real: Call) -> Call:
    def patched(output: torch.Tensor, rows: torch.Tensor, *splits: Any) -> Any:
        return real(output, rows.bfloat16().to(rows.dtype) if rows.is_floating_point() else rows, *splits)

    return patched


def _overwrites(real: Call) -> Call:
    return lambda tensor, dim, index, source: tensor.index_copy_(dim, index, source)


def _nothing(real: Call) -> Call:
    return lambda tensor, *args, **kwargs: tensor


def _flipped(tensor: torch.Tensor) -> torch.Tensor:
    """The lowest bit of the first word of integers that rank 0 sends; counts are left alone."""
    if tensor.is_floating_point() or tensor.numel() <= _MOST_COUNTS or dist.get_rank():
        return tensor
    changed = tensor.clone()
    changed[0] ^= 1
    return changed


def _upside_down(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flip(0) if tensor.dim() == 2 else tensor


def _stale() -> AbstractContextManager[None]:
    """Rank 0 sends the rows of the message before, where it had as many."""
    before: dict[torch.Size, torch.Tensor] = {}

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 2 or dist.get_rank():
            return tensor
        old, before[tensor.shape] = before.get(tensor.shape, tensor), tensor.clone()
        return old

    return _sent(change)()


def _mean(tensor: torch.Tensor, *_: Any) -> None:
    tensor.div_(dist.get_world_size())


def _swap(owner: Any, name: str, make: Callable[[Call], Call]) -> Patch:
    return lambda: replaced(owner, name, make)


DROPPED, FLIPPED = _after("all_to_all_single", _drop_last_row), _after("all_to_all_single", _flip)
TWICE = _swap(dist, "all_to_all_single", _twice)
BACKWARDS = _swap(torch.Tensor, "argsort", _backwards)
UNWRITTEN = _after("all_to_all_single", _last_unwritten)
BUGS = [
    Bug("a token that does not fit is dropped", "expert.dispatch_combine", TOKENS, DROPPED, ("parity",)),
    Bug("rows are sorted the wrong way round", "expert.dispatch_combine", TOKENS, BACKWARDS, ("parity",)),
    Bug("a low bit is always flipped", "expert.dispatch_combine", TOKENS, FLIPPED, ("wrong", "parity")),
    Bug("a low bit is flipped once", "expert.dispatch_combine", TOKENS, _flip_once, ("repeat",)),
    Bug("every exchange is issued twice", "expert.dispatch_combine", TOKENS, TWICE, ("traffic",)),
    Bug(
        "the router's gradient is not synchronised",
        "expert.parity",
        PARITY,
        _swap(dist, "all_reduce", _nothing),
        ("parity", "traffic"),
    ),
    Bug(
        "the router's gradient is averaged", "expert.parity", PARITY, _after("all_reduce", _mean), ("parity",)
    ),
    Bug(
        "rows travel in bf16",
        "expert.parity",
        PARITY,
        _swap(dist, "all_to_all_single", _rounded),
        ("parity",),
    ),
    Bug("experts get each other's rows", "expert.parity", PARITY, BACKWARDS, ("parity",)),
    Bug("a low bit is flipped once", "expert.parity", PARITY, _flip_once, ("repeat",)),
    Bug(
        "the limit on nodes is not applied",
        "expert.group_limited",
        LIMITED,
        _swap(torch.Tensor, "masked_fill", _nothing),
        ("parity",),
        size=4,
    ),
    Bug(
        "results of a token overwrite each other",
        "expert.group_limited",
        LIMITED,
        _swap(torch.Tensor, "index_add_", _overwrites),
        ("parity",),
        size=4,
    ),
    Bug("a low bit is always flipped", "expert.group_limited", LIMITED, FLIPPED, ("wrong", "parity"), size=4),
    Bug("every exchange is issued twice", "expert.group_limited", LIMITED, TWICE, ("traffic",), size=4),
    Bug("a token that does not fit is dropped", "expert.throughput", SPEED, DROPPED, ("parity",)),
    Bug("a low bit is always flipped", "expert.throughput", SPEED, FLIPPED, ("wrong", "parity")),
    Bug("every exchange is issued twice", "expert.throughput", SPEED, TWICE, ("traffic",)),
    Bug("rows of the micro-batch before are sent", "expert.m2n", APART, _stale, ("parity",)),
    Bug("rows are sent in the wrong order", "expert.m2n", APART, _sent(_upside_down), ("parity",)),
    Bug("a low bit is always flipped", "expert.m2n", APART, _sent(_flipped), ("wrong",)),
    Bug("every message is sent twice", "expert.m2n", APART, _both_twice, ("traffic",)),
    Bug("a low bit is always flipped", "expert.m2n_speed", PATTERN, _sent(_flipped), ("wrong", "parity")),
    Bug("the last word is not written", "expert.m2n_speed", PATTERN, UNWRITTEN, ("wrong", "parity")),
]
