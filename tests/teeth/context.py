"""What a real stack could do wrong under context parallelism."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor.experimental._context_parallel import _attention, _load_balancer

from suites.context.ring_attention import GRADIENTS, KEYS
from tests.teeth.bug import Bug, Patch, instead_of, planted, replaced, replacing
from tests.teeth.patches.expert import both_twice
from tests.teeth.patches.memory import behind_its_part, kept_whole, received_kept
from tests.teeth.patches.narrow import added_up_narrow, narrow_sum

SIZES = {"batch": 2, "tokens": 6, "heads": 4, "kv_heads": 2, "dim": 8}
GATHERS, PASSES = ({**SIZES, "kv_heads": 4, "rotation": name} for name in ("allgather", "alltoall"))
CAUSAL = {**SIZES, "causal": True}
FULL = {**SIZES, "causal": False}
HEADS = {"batch": 2, "tokens": 6, "heads_per_rank": 2, "kv_heads": 0, "dim": 8, "causal": True}
GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
SCATTER = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
EXCHANGE = "all_to_all_single"

Change = Callable[[torch.Tensor, torch.Tensor], None]  # what is received, what was sent


# how a bug is planted


def instead(name: str, change: Change) -> Patch:
    """In the place of a collective."""

    def make(_: Any) -> Callable[..., None]:
        return lambda received, sent, *args, **kwargs: change(received, sent)

    return planted(dist, name, make)


def meant(only: Sequence[int], ranks: Sequence[int]) -> Callable[[], bool]:
    """Whether the next call is one of these (from 1), or any; and on one of these ranks, or on any."""
    calls = itertools.count(1)
    return lambda: (next(calls) in only or not only) and (not ranks or dist.get_rank() in ranks)


def after(name: str, change: Change, only: Sequence[int] = (), ranks: Sequence[int] = ()) -> Patch:
    """After a collective: after these of its calls (from 1), on these ranks, or all."""

    chosen = meant(only, ranks)

    @replacing
    def make(original: Any, received: torch.Tensor, sent: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        original(received, sent, *args, **kwargs)
        if chosen():
            change(received, sent)

    return planted(dist, name, make)


def passing(
    change: Change,
    tags: Sequence[int] = (KEYS, GRADIENTS),
    only: Sequence[int] = (),
    ranks: Sequence[int] = (),
) -> Patch:
    """After a pass of the ring: of these kinds, after these of them (from 1), on these ranks, or all."""

    chosen = meant(only, ranks)

    @replacing
    def make(original: Any, operations: list[Any]) -> list[Any]:
        for work in original(operations):
            work.wait()
        receive, send = operations
        if receive.tag in tags and chosen():
            change(receive.tensor, send.tensor)
        return []

    return planted(dist, "batch_isend_irecv", make)


def in_place_of_passing(tag: int) -> Patch:
    """No pass of this kind leaves the rank: it takes its own for what the rank before sent."""

    @replacing
    def make(original: Any, operations: list[Any]) -> Any:
        receive, send = operations
        if receive.tag != tag:
            return original(operations)
        receive.tensor.copy_(send.tensor)
        return []

    return planted(dist, "batch_isend_irecv", make)


def unmasked() -> AbstractContextManager[Any]:
    """Masks that hide nothing."""
    return replaced(torch.Tensor, "masked_fill_", lambda _: lambda scores, mask, value: scores)


def larger_norm() -> AbstractContextManager[Any]:
    """Blocks are merged by the larger of their norms, not by the norm of both."""
    return replaced(torch, "logaddexp", lambda _: torch.maximum)


@instead_of(torch, "cat")
def neighbours(original: Any, tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """A rank's two chunks lie side by side in the sequence, not as far from its two ends."""
    if tensors[0].dtype != torch.int64 or len(tensors) != 2:
        return original(tensors, *args, **kwargs)
    first, each = 2 * int(tensors[0][0]), tensors[0].numel()
    return torch.arange(first, first + 2 * each)


@instead_of(torch.Tensor, "movedim")
def interleaved(original: Any, tensor: Any, source: Any, target: Any) -> Any:
    """Heads that come back are taken one of each rank, not rank by rank."""
    return original(tensor, source, 2 if (source, target) == (0, 1) else target)


def of_torchs_passes(change: Change, only: Sequence[int] = ()) -> Patch:
    """After a pass of torch's own ring: after these of them (from 1), on rank 0, or after all of them."""

    chosen = meant(only, (0,) if only else ())

    @replacing
    def make(original: Any, sent: torch.Tensor, *args: Any) -> torch.Tensor:
        received: torch.Tensor = original(sent, *args).wait()
        if chosen():
            change(received, sent)
        return received

    return planted(functional, "permute_tensor", make)


@instead_of(functional, "all_gather_single")
def gathered_the_other_way(original: Any, sent: Any, *args: Any, **kwargs: Any) -> Any:
    """What torch gathers lies in another order."""
    return original(sent, *args, **kwargs).roll(sent.numel())


def seen_by_all() -> AbstractContextManager[Any]:
    """Torch hides nothing of a rank's own block."""
    behind = _attention._CausalBehavior.NOT_IS_CAUSAL
    return replaced(_attention, "_is_causal_behavior", lambda _: lambda **_: behind)


@instead_of(_load_balancer._HeadTailLoadBalancer, "_generate_indices")
def not_dealt(_original: Any, self: Any, restore: Any = False) -> Any:
    """Ranks have positions in a row, and attend as if they were dealt out."""
    return torch.arange(self.seq_length).unsqueeze(0)


def added_up_in_bf16() -> AbstractContextManager[Any]:
    """Torch merges blocks, and passes gradients on, as narrow as they are."""
    return mock.patch.object(_attention._cp_options, "convert_to_f32", False)


def first_for_ever(original: Any) -> Any:
    """The keys and values that another rank sent first are used for ever."""
    kept: dict[Any, torch.Tensor] = {}

    def next_buffer(self: Any) -> torch.Tensor:
        came = original(self)
        return kept.setdefault((came.shape, came.dtype, self._idx), came.clone()).clone()

    return next_buffer


@instead_of(_attention._SDPAMerger, "results")
def output_kept_whole(original: Any, self: Any) -> Any:
    """A rank's output is a view of all ranks', which therefore stays."""
    return tuple(behind_its_part(one) for one in original(self))


# what happens to the data


def own(received: torch.Tensor, sent: torch.Tensor) -> None:
    """A rank takes its own for everybody's."""
    received.copy_(torch.cat([sent] * (received.shape[0] // sent.shape[0])))


def own_part(received: torch.Tensor, sent: torch.Tensor) -> None:
    """A rank's own contribution is taken for the sum."""
    received.copy_(sent.reshape(-1, *received.shape)[dist.get_rank()])


def shifted(received: torch.Tensor, sent: torch.Tensor) -> None:
    """Every part is taken for that of the rank after it."""
    received.copy_(received.reshape(dist.get_world_size(), -1).roll(1, 0).reshape(received.shape))


def rounded(received: torch.Tensor, sent: torch.Tensor) -> None:
    """Values lose what bf16 does not hold."""
    if received.is_floating_point():
        received.copy_(received.bfloat16())


def stale(received: torch.Tensor, sent: torch.Tensor) -> None:
    """The block before is used again."""
    received.copy_(sent)


def halves(received: torch.Tensor, sent: torch.Tensor) -> None:
    """The two chunks of a block change places."""
    if received.dim() == 5:
        received.copy_(received.roll(received.shape[3] // 2, 3))


def low_bit(received: torch.Tensor, sent: torch.Tensor) -> None:
    """One bit flips, the lowest of one element."""
    _flip(received, 0)


def high_bit(received: torch.Tensor, sent: torch.Tensor) -> None:
    """One bit flips, high in the mantissa of one fp64 element."""
    if received.dtype == torch.float64:
        _flip(received, 48)


def _flip(tensor: torch.Tensor, bit: int) -> None:
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    tensor.view(kinds[tensor.element_size()]).view(-1)[0] ^= 1 << bit


# the bugs. Of a step's run, the first forward and backward are the first calls.

GATHERED, RING, ZIGZAG, ULYSSES = "context.all_gather_kv", "context.ring", "context.zigzag", "context.ulysses"
TORCH = "context.torch_ring"
KEPT = kept_whole(lambda tensor: tensor.dim() == 5)  # keys and values, stacked
KEPT_IN_BF16 = kept_whole(lambda tensor: tensor.dim() == 5 and tensor.dtype == torch.bfloat16)
FIRST_KEYS = planted(_attention._AllGatherRotater, "next_buffer", first_for_ever)
SUMMED_NARROW: Patch = planted(dist, SCATTER, added_up_narrow)
# One stale pass for parity is in the second run: the first, with other inputs, is not compared.
BUGS = [
    Bug("missing all-gather", GATHERED, CAUSAL, instead(GATHER, own), ("parity", "traffic", "wrong")),
    Bug("gathered in the wrong order", GATHERED, CAUSAL, after(GATHER, shifted), ("parity", "wrong")),
    Bug("future keys not masked", GATHERED, CAUSAL, unmasked, ("parity",)),
    Bug("gradients not summed", GATHERED, FULL, instead(SCATTER, own_part), ("parity", "traffic", "wrong")),
    Bug("gradients summed in bf16", GATHERED, FULL, after(SCATTER, rounded), ("parity",)),
    Bug("bf16 gradients summed in bf16", GATHERED, FULL, SUMMED_NARROW, ("parity",), narrow=True),
    *(
        Bug(name, step, sizes, passing(narrow_sum, (GRADIENTS,)), ("parity",), ranks, narrow=True)
        for name, step, sizes, ranks in (
            ("bf16 gradients summed in bf16", RING, CAUSAL, 2),
            ("bf16 gradients summed in bf16", ZIGZAG, SIZES, 2),
            ("bf16 gradients summed in bf16, four blocks", RING, FULL, 4),
        )
    ),
    Bug("a bit flips once", GATHERED, FULL, after(SCATTER, low_bit, (1,), (1,)), ("repeat",)),
    Bug("a bit flips always", GATHERED, FULL, after(GATHER, low_bit, (), (1,)), ("wrong",)),
    Bug("gathered keys kept with their buffer", GATHERED, CAUSAL, KEPT, ("memory",)),
    Bug("keys of all ranks kept", RING, CAUSAL, KEPT, ("memory",)),
    Bug("keys of all ranks kept in bf16", RING, CAUSAL, KEPT_IN_BF16, ("memory",), narrow=True),
    Bug("keys of all ranks kept", ZIGZAG, SIZES, KEPT, ("memory",)),
    Bug("keys of all ranks kept", ULYSSES, HEADS, KEPT, ("memory",)),
    Bug("gathered sequences are kept", ULYSSES, HEADS, received_kept(EXCHANGE), ("memory",)),
    Bug("stale block", RING, CAUSAL, passing(stale, (KEYS,)), ("parity", "wrong")),
    Bug("one stale block", RING, FULL, passing(stale, (KEYS,), (8,)), ("parity",), 4),
    Bug("future keys not masked", RING, CAUSAL, unmasked, ("parity",)),
    Bug("merged by the larger norm", RING, CAUSAL, larger_norm, ("parity",)),
    Bug("gradients stay", RING, CAUSAL, in_place_of_passing(GRADIENTS), ("parity", "traffic", "wrong")),
    Bug("keys in bf16 on the wire", RING, FULL, passing(rounded, (KEYS,)), ("parity",)),
    Bug("every block passed twice", RING, CAUSAL, both_twice, ("traffic",)),
    Bug("a bit flips once", RING, FULL, passing(low_bit, (GRADIENTS,), (2,), (0,)), ("repeat",)),
    Bug("a bit flips always", RING, FULL, passing(low_bit, (KEYS,), (), (0,)), ("wrong",)),
    Bug("a high bit flips", RING, FULL, passing(high_bit, (KEYS,), (), (0,)), ("parity",)),
    Bug("chunks side by side", ZIGZAG, SIZES, neighbours, ("parity",)),
    Bug("chunks change places", ZIGZAG, SIZES, passing(halves, (KEYS,)), ("parity",)),
    Bug("future keys not masked", ZIGZAG, SIZES, unmasked, ("parity",)),
    Bug("stale gradient", ZIGZAG, SIZES, passing(stale, (GRADIENTS,), (4,)), ("parity",)),
    Bug("a bit flips once", ZIGZAG, SIZES, passing(low_bit, (GRADIENTS,), (2,), (1,)), ("repeat",)),
    Bug("a bit flips always", ZIGZAG, SIZES, passing(low_bit, (GRADIENTS,), (), (1,)), ("wrong",)),
    Bug("missing exchange", ULYSSES, HEADS, instead(EXCHANGE, stale), ("parity", "traffic", "wrong")),
    Bug("exchanged in the wrong order", ULYSSES, HEADS, after(EXCHANGE, shifted), ("parity", "wrong")),
    Bug("heads interleaved on the way back", ULYSSES, HEADS, interleaved, ("parity",)),
    Bug("future keys not masked", ULYSSES, HEADS, unmasked, ("parity",)),
    Bug("exchanged in bf16", ULYSSES, HEADS, after(EXCHANGE, rounded), ("parity",)),
    Bug("a bit flips once", ULYSSES, HEADS, after(EXCHANGE, low_bit, (4,), (0,)), ("repeat",)),
    Bug("a bit flips always", ULYSSES, HEADS, after(EXCHANGE, low_bit, (), (0,)), ("wrong",)),
    Bug("gathered in the wrong order", TORCH, GATHERS, gathered_the_other_way, ("parity",)),
    Bug("stale block", TORCH, PASSES, of_torchs_passes(stale), ("parity",)),
    Bug("gradients stay", TORCH, GATHERS, of_torchs_passes(stale), ("parity",)),
    Bug("a bit flips once", TORCH, GATHERS, of_torchs_passes(low_bit, (2,)), ("repeat",)),
    Bug("a bit flips always", TORCH, PASSES, after(EXCHANGE, low_bit, (), (0,)), ("wrong",)),
    Bug("gradients in bf16 on the wire", TORCH, GATHERS, added_up_in_bf16, ("traffic",)),
    Bug("the first keys for ever", TORCH, GATHERS, FIRST_KEYS, ("parity",)),
    Bug("positions in a row", TORCH, GATHERS, not_dealt, ("parity",)),
    Bug("future keys not masked", TORCH, PASSES, seen_by_all, ("parity",)),
    Bug("output kept with its buffer", TORCH, PASSES, output_kept_whole, ("memory",)),
]
