"""Corrupt data that arrive at a node; `patch_torch` runs this text after `import torch` on the node.

Every collective and every receive is waited for, and then bits of what arrived are flipped. The suite's code
on the node cannot notice: the flips are underneath torch's Python functions and DDP's reducer in C++, and
dispatch modes that watch torch's operations do not see them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.utils._python_dispatch import _disable_current_modes

C10D: Any = _distributed_c10d
LIBRARY: Any = torch.library.Library
Spoil = Callable[[torch.Tensor, int], None]  # what arrived, and its number within the step

# c10d's operations whose output is their first argument.
COLLECTIVES = (
    *("allreduce_", "broadcast_", "_allgather_base_", "allgather_", "allgather_into_tensor_coalesced_"),
    *("_reduce_scatter_base_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_"),
    *("alltoall_base_", "alltoall_"),
)
FUNCTIONAL = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "broadcast",
)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
LEAST = 64  # elements: smaller messages (times, counts, sizes) are left alone, so that steps go on
KEPT: list[Any] = []  # torch unregisters a library's operators when the library is deleted


# what is flipped


def once(tensor: torch.Tensor, number: int) -> None:
    """Flip the lowest bit of one element of one exchange of each step."""
    if number == 2:
        flip(tensor, tensor.numel() // 2, 0)


def always(tensor: torch.Tensor, number: int) -> None:
    """Flip the lowest bit of the same element of every exchange."""
    flip(tensor, 17, 0)


def above(tensor: torch.Tensor, number: int) -> None:
    """Flip the sign of the largest number of every exchange of floats; integers arrive as they were."""
    if tensor.is_floating_point():
        flip(tensor, int(tensor.abs().argmax()), 8 * tensor.element_size() - 1)


def flip(tensor: torch.Tensor, place: int, bit: int) -> None:
    """Flip one bit of one element in memory."""
    dense = tensor.contiguous()
    element = dense.view(BITS[dense.element_size()]).view(-1)[place]
    top = bit == 8 * dense.element_size() - 1
    element ^= -(1 << bit) if top else 1 << bit
    if dense.data_ptr() != tensor.data_ptr():
        tensor.copy_(dense)


# how data are intercepted


class Arrivals:
    """Counts what arrives in one run of a step, and corrupts it."""

    def __init__(self, spoil: Spoil) -> None:
        self._spoil, self._step, self._count = spoil, sys._getframe(), 0

    def __call__(self, tensors: Iterable[torch.Tensor]) -> None:
        """Corrupt what arrived, if it arrived in a step."""
        step = _running_step()
        if step is None:
            return
        if step is not self._step:
            self._step, self._count = step, 0
        with _disable_current_modes():
            for tensor in tensors:
                # Bytes are pickled objects: corrupted ones would end the rank.
                if tensor.numel() >= LEAST and tensor.dtype != torch.uint8:
                    self._count += 1
                    self._spoil(tensor.detach(), self._count)


def _running_step() -> FrameType | None:
    """The step that this rank runs: a function of suites/*/steps.py."""
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        found = frame if name.startswith("suites.") and name.endswith(".steps") else found
        frame = frame.f_back
    return found


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _collective(arrived: Arrivals, name: str) -> Callable[..., Any]:
    operation = getattr(torch.ops.c10d, name).default

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            result = operation(*args, **kwargs)
        works = result[-1] if isinstance(result, tuple) else result
        C10D.Work.unbox(works).wait()
        outputs = list(_tensors(args[0]))
        arrived(outputs)
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(outputs)
        # The work itself may copy its output again when it is waited for again, as gloo's reduce_scatter.
        ended = C10D._create_work_from_future(done).boxed()
        return (*result[:-1], ended) if isinstance(result, tuple) else ended

    return call


def _functional(arrived: Arrivals, name: str) -> Callable[..., Any]:
    operation = getattr(torch.ops._c10d_functional, name).default

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            result = torch.ops._c10d_functional.wait_tensor(operation(*args, **kwargs))
        arrived([result])
        return result

    return call


class _Received:
    """A receive under way; what arrived is corrupted when it is waited for."""

    def __init__(self, work: Any, tensor: torch.Tensor, arrived: Arrivals) -> None:
        self._work, self._tensor, self._arrived = work, [tensor], arrived

    def wait(self, *args: Any) -> Any:
        """Wait, and corrupt once."""
        done = self._work.wait(*args)
        self._arrived([self._tensor.pop()] if self._tensor else [])
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _receives(arrived: Arrivals) -> None:
    later, now = dist.irecv, dist.recv

    def irecv(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return _Received(later(tensor, *args, **kwargs), tensor, arrived)

    def recv(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        source = now(tensor, *args, **kwargs)
        arrived([tensor])
        return source

    for module in (dist, dist.distributed_c10d):
        setattr(module, "irecv", irecv)  # noqa: B010 - a module of torch's
        setattr(module, "recv", recv)  # noqa: B010


def plant(spoil: Spoil) -> None:
    """Intercept everything that arrives at this node's ranks from others."""
    arrived = Arrivals(spoil)
    for space, names, made in (
        ("c10d", COLLECTIVES, _collective),
        ("_c10d_functional", FUNCTIONAL, _functional),
    ):
        library = LIBRARY(space, "IMPL")
        for name in names:
            library.impl(name, made(arrived, name), "AutogradCPU")
        KEPT.append(library)
    _receives(arrived)
