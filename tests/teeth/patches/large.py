"""What goes wrong with large messages alone, between a collective and who reads what it brought."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed import pipelining
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from suites.context import ring_attention
from tests.teeth.bug import Maker, Patch, planted, replacing
from tests.teeth.patches.zero import future, hooked, reduced

LARGE_BYTES, EDGE_BYTES = 1 << 15, 1 << 12
WORD = 8  # numbers of 16 bits
Call = Callable[..., Any]
Spoil = Callable[[torch.Tensor, torch.Tensor], None]  # what came, and what stood there before


def large(tensor: torch.Tensor, least_bytes: int = LARGE_BYTES) -> bool:
    return tensor.is_floating_point() and tensor.numel() * tensor.element_size() > least_bytes


def unfinished(came: torch.Tensor, before: torch.Tensor) -> None:
    """It is read before the last quarter has come."""
    late = came.numel() // 4
    came.view(-1)[-late:] = before.view(-1)[-late:]


def swapped(came: torch.Tensor, before: torch.Tensor) -> None:
    """It is sent in two chunks, and the second is put where the first belongs."""
    half = came.numel() // 2
    came.view(-1)[: 2 * half] = came.view(-1)[: 2 * half].roll(half)


def cut_off(came: torch.Tensor, before: torch.Tensor) -> None:
    """What does not fill a chunk is lost."""
    kept = LARGE_BYTES // came.element_size()
    came.view(-1)[kept:] = before.view(-1)[kept:]


def tail_lost(came: torch.Tensor, before: torch.Tensor) -> None:
    """Of 16-bit numbers, what does not fill a word of 16 bytes is lost."""
    left = came.numel() % WORD
    if left and came.element_size() == 2:
        came.view(-1)[-left:] = before.view(-1)[-left:]


def in_output(spoil: Spoil) -> Maker:
    """Spoil what a call writes into its first argument, where that is large."""

    @replacing
    def make(original: Call, output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        before = output.detach().clone()
        done = original(output, *args, **kwargs)
        if large(output):
            with torch.no_grad():
                spoil(output.detach(), before)
        return done

    return make


def in_result(spoil: Spoil, least_bytes: int = LARGE_BYTES) -> Maker:
    """Spoil what a call gives, where that is large; before it there were zeros."""

    @replacing
    def make(original: Call, *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if large(found, least_bytes):
            with torch.no_grad():
                spoil(found.detach(), torch.zeros_like(found))
        return found

    return make


def of_the_run_before(calls: int) -> Maker:
    """Give what a call gave so many calls before, where that is large: a run has so many."""

    def make(original: Call) -> Call:
        kept: list[torch.Tensor] = []

        def call(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            if large(found):
                kept.append(found.detach().clone())
                with torch.no_grad():
                    found.copy_(kept[-calls - 1 :][0] if len(kept) > calls else found)
            return found

        return call

    return make


def copied_out(spoil: Spoil, least_bytes: int = LARGE_BYTES) -> Patch:
    """fully_shard deals out what it gathered."""

    @replacing
    def make(original: Call, result: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(result.all_gather_work, torch.distributed.Work):
            result.all_gather_work.wait()
        if large(result.all_gather_output, least_bytes):
            whole = result.all_gather_output
            spoil(whole, torch.zeros_like(whole))
        return original(result, *args, **kwargs)

    return planted(_fsdp_param_group, "foreach_all_gather_copy_out", make)


def in_bucket(spoil: Spoil) -> Patch:
    """DDP puts a bucket back."""

    def hook(_state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        before = bucket.buffer().clone()
        mean = reduced(bucket.buffer()).div_(torch.distributed.get_world_size())
        if large(mean, 2 * LARGE_BYTES):
            spoil(mean, before)
        return future(mean)

    return hooked(hook)


def in_blocks(spoil: Spoil, least_bytes: int = LARGE_BYTES - 1) -> Patch:
    """A ring hands over a block."""

    @replacing
    def make(original: Call, *args: Any, **kwargs: Any) -> Iterator[Any]:
        before = None
        for source, block in original(*args, **kwargs):
            mine = block
            if before is not None and large(block, least_bytes):
                mine = block.clone()
                spoil(mine, before)
            before = block.clone()
            yield source, mine

    return planted(ring_attention, "visits", make)


def over_edge(name: str, spoil: Spoil) -> Patch:
    """A stage takes what has come over an edge."""

    @replacing
    def make(original: Call, *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        for one in found:
            if large(one, EDGE_BYTES):
                spoil(one.detach(), torch.zeros_like(one))
        return found

    return planted(pipelining.PipelineStage, name, make)
