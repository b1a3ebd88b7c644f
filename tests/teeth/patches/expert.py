"""What a real stack could do wrong with experts, planted in torch's and DeepEP's calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from suites.expert.fp8 import packed, unpacked
from tests.suites.expert.deep_ep_stub import Buffer
from tests.teeth.bug import Patch, of, planted, replaced, replacing
from tests.teeth.patches import flips
from tests.teeth.patches.flips import Late

Call = Callable[..., Any]
_MOST_COUNTS = 16  # a message of counts is shorter than any payload


def after(name: str, damage: Callable[..., None]) -> Patch:
    """Let the collective do its work, then damage what it left."""

    @replacing
    def make(real: Call, *args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        damage(*args)
        return result

    return planted(dist, name, make)


def sent(change: Callable[[torch.Tensor], torch.Tensor]) -> Patch:
    """Send something else in place of a payload.

    Operations that are used again are left as they were: a bit that is flipped twice is right again.
    """

    @replacing
    def make(real: Call, operations: list[dist.P2POp]) -> Any:
        given = [one.tensor for one in operations]
        for one in operations:
            if one.op is dist.isend:
                one.tensor = change(one.tensor)
        try:
            return real(operations)
        finally:
            for one, tensor in zip(operations, given, strict=True):
                one.tensor = tensor

    return planted(dist, "batch_isend_irecv", make)


def drop_last_row(output: torch.Tensor, *_: Any) -> None:
    """A full buffer: the last token that came does not get in."""
    if output.dim() == 2 and len(output):
        output[-1] = 0


def flip(output: torch.Tensor, *args: Any) -> None:
    """The lowest bit of the first element on rank 1, in every exchange of rows."""
    if len(args) == 3 and output.numel() and dist.get_rank() == 1:
        output.view(torch.uint8).view(-1)[0] ^= 1


def flip_number(number: int) -> Patch:
    """The same, in one exchange of rows alone; they are counted from 0 in the whole step."""

    def plant() -> AbstractContextManager[None]:
        numbers = itertools.count()

        def damage(*args: Any) -> None:
            if len(args) == 4 and next(numbers) == number:
                flip(*args)

        return after("all_to_all_single", damage)()

    return plant


def flip_received(number: int, rank: int) -> Patch:
    """The lowest bit of the first element of one message of rows, when it has come; counted on its rank."""

    def plant() -> AbstractContextManager[None]:
        numbers = itertools.count()

        def make(real: Call) -> Call:
            def mine(one: dist.P2POp) -> bool:
                of_rows = one.op is dist.irecv and one.tensor.is_floating_point()
                return of_rows and dist.get_rank() == rank and next(numbers) == number

            def patched(operations: list[dist.P2POp]) -> list[Any]:
                pairs = zip(operations, real(operations), strict=True)
                return [
                    Late(work, partial(flips.flip, one.tensor)) if mine(one) else work for one, work in pairs
                ]

            return patched

        return replaced(dist, "batch_isend_irecv", make)

    return plant


def last_unwritten(output: torch.Tensor, *_: Any) -> None:
    if output.numel():
        output[-1] = 0


def both_twice() -> AbstractContextManager[None]:
    kept: list[Any] = []  # a send that nobody holds is taken back

    @replacing
    def make(real: Call, operations: list[dist.P2POp]) -> Any:
        first = real(operations)
        for one, work in zip(operations, first, strict=True):
            if one.op is dist.irecv:
                work.wait()
        kept.extend(first)
        return real(operations)

    return replaced(dist, "batch_isend_irecv", make)


@replacing
def rounded(real: Call, output: torch.Tensor, rows: torch.Tensor, *splits: Any, **group: Any) -> Any:
    narrow = rows.bfloat16().to(rows.dtype) if rows.is_floating_point() else rows
    return real(output, narrow, *splits, **group)


@replacing
def widened(real: Call, output: torch.Tensor, rows: torch.Tensor, *splits: Any, **group: Any) -> Any:
    if rows.dtype is not torch.bfloat16:
        return real(output, rows, *splits, **group)
    wide = output.float()
    real(wide, rows.float(), *splits, **group)
    return output.copy_(wide)


@replacing
def of_next_block(real: Call, rows: torch.Tensor) -> torch.Tensor:
    """A block travels with the scale of the one behind it."""
    hidden, found = rows.shape[-1], real(rows)
    return torch.cat([found[..., :hidden], found[..., hidden:].roll(-4, -1)], dim=-1)


@replacing
def unscaled(real: Call, came: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What has come is read as if every scale were 1."""
    hidden = came.shape[-1] * 32 // 33
    ones = torch.ones(*came.shape[:-1], hidden // 128)
    found: torch.Tensor = real(torch.cat([came[..., :hidden], ones.view(torch.uint8)], dim=-1), dtype)
    return found


@replacing
def cut_to_fp8(real: Call, rows: torch.Tensor) -> torch.Tensor:
    """Digits that e4m3 does not have are cut off, and not rounded."""
    found, hidden = real(rows), rows.shape[-1]
    too_far = unpacked(found, torch.float64).abs() > rows.double().abs()
    return torch.cat([found[..., :hidden] - too_far.to(torch.uint8), found[..., hidden:]], dim=-1)


@replacing
def all_in_fp8(real: Call, output: torch.Tensor, rows: torch.Tensor, *splits: Any, **group: Any) -> Any:
    """Also what is combined."""
    if not rows.is_floating_point() or rows.dim() != 2:
        return real(output, rows, *splits, **group)
    sent = packed(rows)
    came = sent.new_empty(len(output), sent.shape[-1])
    real(came, sent, *splits, **group)
    return output.copy_(unpacked(came, output.dtype))


def never_in_fp8(real: Call) -> Call:
    return lambda rows, sent, received, group=None, *_: real(rows, sent, received, group)


def gradients_in_bf16(real: Call) -> Call:
    return lambda *args, fp8=False, fp8_back=False: real(*args, fp8=fp8)


def overwrites(real: Call) -> Call:
    return lambda tensor, dim, index, source: tensor.index_copy_(dim, index, source)


def nothing(real: Call) -> Call:
    return lambda tensor, *args, **kwargs: tensor


@replacing
def best_alone(real: Call, tensor: torch.Tensor, count: int, *args: Any, **kwargs: Any) -> Any:
    """Of the two best experts of a group only the best."""
    return real(tensor, 1 if kwargs.get("dim") == 2 else count, *args, **kwargs)


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """The lowest bit of the first word of integers that rank 0 sends; counts are left alone."""
    if tensor.is_floating_point() or tensor.numel() <= _MOST_COUNTS or dist.get_rank():
        return tensor
    changed = tensor.clone()
    changed[0] ^= 1
    return changed


def upside_down(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flip(0) if tensor.dim() == 2 else tensor


def stale() -> AbstractContextManager[None]:
    """Rank 0 sends the rows of the message before, where it had as many."""
    before: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 2 or dist.get_rank():
            return tensor
        kind = tensor.shape, tensor.dtype
        old, before[kind] = before.get(kind, tensor), tensor.clone()
        return old

    return sent(change)()


@replacing
def unasked(real: Call, logits: torch.Tensor, wanted: torch.Tensor, slots: int, dtype: torch.dtype) -> Any:
    """Experts are chosen without the logits of the router, which only weigh them."""
    chosen = real(torch.zeros_like(logits), wanted, slots, dtype)[1]
    shares = logits.softmax(dim=1).gather(1, chosen)
    return (shares / shares.sum(dim=1, keepdim=True)).to(dtype), chosen


def first_row_behind(calls: int) -> Callable[[Call], Call]:
    """Where calls follow each other, a buffer's first row is that of so many before; it was zeroed then."""

    @replacing
    def behind(real: Call, output: Any, *args: Any, **kwargs: Any) -> Any:
        follows = output.dtype in (torch.bfloat16, torch.uint8) and len(output) and not output.any()
        done = real(output, *args, **kwargs)
        if follows:
            came = vars(output).setdefault("came", [])
            came.append(output[:1].clone())
            output[:1] = came[-1 - calls if len(came) > calls else -1]
        return done

    return behind


def rows_again(calls: int) -> Callable[[Call], Call]:
    """Where dispatches of one layout follow each other, rows are those of so many calls before."""

    @replacing
    def behind(real: Call, self: Buffer, x: torch.Tensor, handle: Any = None, **kwargs: Any) -> Any:
        rows, *rest = real(self, x, handle, **kwargs)
        came = vars(self).setdefault("came", [])
        before = [one for of, one in came if of is handle]
        came.append((handle, rows.clone()))
        return before[-calls].clone() if handle is not None and len(before) > calls else rows, *rest

    return behind


@replacing
def unweighed(real: Call, *args: Any, **kwargs: Any) -> Any:
    """Every expert counts as much as any other."""
    rows, experts, weights, *rest = real(*args, **kwargs)
    return rows, experts, weights if weights is None else torch.ones_like(weights), *rest


@replacing
def last_rank_left_out(
    real: Call, self: Buffer, rows: torch.Tensor, there: torch.Tensor, *splits: Any
) -> Any:
    """What comes back from the last rank is not added."""
    return real(
        self, rows if dist.get_rank() < self.group_size - 1 else torch.zeros_like(rows), there, *splits
    )


@replacing
def neighbours_expert(real: Call, *args: Any, **kwargs: Any) -> Any:
    rows, experts, *rest = real(*args, **kwargs)
    return rows, experts if experts is None else torch.where(experts >= 0, experts ^ 1, -1), *rest


def mean(tensor: torch.Tensor, *_: Any) -> None:
    if tensor.is_floating_point():
        tensor.div_(dist.get_world_size())


def alone(real: Call) -> Call:
    """Every rank keeps its own numbers; what ranks agree on is integers, and goes on."""
    return lambda tensor, *args, **kwargs: (
        tensor if tensor.is_floating_point() else real(tensor, *args, **kwargs)
    )


def mean_of_one(tensor: torch.Tensor, *_: Any) -> None:
    """Of single numbers alone."""
    if tensor.numel() == 1:
        mean(tensor)


def local_alone(count: int) -> Patch:
    """Counts are not added up where they are so many; the most of what ranks say is no count."""

    @replacing
    def make(real: Call, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        counts = not tensor.is_floating_point() and not kwargs
        return tensor if counts and tensor.numel() == count else real(tensor, *args, **kwargs)

    return of("all_reduce", make)


def from_the_end(real: Call) -> Call:
    return lambda tensor, dim: real(tensor.flip(dim), dim).flip(dim)
