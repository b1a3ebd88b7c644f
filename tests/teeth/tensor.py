"""What a real stack could do wrong under tensor and sequence parallelism."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.distributed import _symmetric_memory as symmetric
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, loss, style

from suites.tensor.test_tensor import BLOCK, HALF, HEADS, LAYER
from tests.teeth.bug import Bug, Patch, instead_of, planted, replaced, replacing
from tests.teeth.patches import narrow
from tests.teeth.patches.flips import flip
from tests.teeth.patches.memory import inputs_copied, kept_whole, weights_kept_whole

GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
SCATTER = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
Tensor = torch.Tensor
Choice = Callable[[Tensor, dict[str, Any]], bool]  # of an all_reduce: its tensor and its keywords


def is_activation(tensor: Tensor) -> bool:
    """What the harness itself agrees on is whole numbers or single ones."""
    return tensor.is_floating_point() and tensor.ndim > 0


def in_backward() -> bool:
    """Whether autograd is running now."""
    return torch._C._current_graph_task_id() != -1


# how a bug is planted


def all_reduce(change: Callable[[Any, Tensor, dict[str, Any]], None], choice: Choice) -> Patch:
    """In the place of the chosen all_reduces of activations, weights and statistics."""

    @replacing
    def make(original: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        if is_activation(tensor) and choice(tensor, kwargs):
            change(functools.partial(original, *args), tensor, kwargs)
        else:
            original(tensor, *args, **kwargs)

    return planted(dist, "all_reduce", make)


def dropped(choice: Choice) -> Patch:
    """Leave these all_reduces out."""
    return all_reduce(lambda original, tensor, kwargs: None, choice)


def rotated(name: str) -> Patch:
    """Deliver everybody's part one place too far: gathered after the call, scattered before it."""

    @replacing
    def make(original: Any, received: Tensor, sent: Tensor, *args: Any, **kwargs: Any) -> None:
        if not is_activation(sent):
            original(received, sent, *args, **kwargs)
        elif received.numel() < sent.numel():
            original(received, sent.roll(received.shape[0], 0), *args, **kwargs)
        else:
            original(received, sent, *args, **kwargs)
            received.copy_(received.roll(sent.shape[0], 0))

    return planted(dist, name, make)


# what the bugs do


def averaged(original: Any, tensor: Tensor, kwargs: dict[str, Any]) -> None:
    original(tensor, **{**kwargs, "op": dist.ReduceOp.AVG})


def coarse(original: Any, tensor: Tensor, kwargs: dict[str, Any]) -> None:
    """Add in bf16, whatever the dtype."""
    narrow = tensor.bfloat16()
    original(narrow, **kwargs)
    tensor.copy_(narrow)


def flipped_once() -> AbstractContextManager[Any]:
    """Flip the lowest bit of one element of one result, once, in bf16 on the last rank."""
    times: list[int] = []

    def flip(original: Any, tensor: Tensor, kwargs: dict[str, Any]) -> None:
        original(tensor, **kwargs)
        times.append(1)
        if len(times) == 2 and dist.get_rank() == dist.get_world_size() - 1:
            tensor.view(torch.int16).view(-1)[0] ^= 1

    return all_reduce(flip, lambda tensor, _: tensor.dtype == torch.bfloat16)()


@instead_of(dist, "all_reduce")
def flipped_payloads(original: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> None:
    """Flip a bit of every sum of whole numbers on the last rank."""
    original(tensor, *args, **kwargs)
    if tensor.dtype == torch.int32 and dist.get_rank() == dist.get_world_size() - 1:
        tensor[tensor.numel() // 2] ^= 1 << 7


def stale_once() -> AbstractContextManager[Any]:
    """Deliver the result of the all_reduce before, every second time in fp64."""
    kept: list[Tensor] = []

    def stale(original: Any, tensor: Tensor, kwargs: dict[str, Any]) -> None:
        original(tensor, **kwargs)
        kept.append(tensor.clone())
        if len(kept) % 2 == 0 and kept[-2].shape == tensor.shape:
            tensor.copy_(kept[-2])

    return all_reduce(stale, lambda tensor, _: tensor.dtype == torch.float64)()


def of_the_run_before() -> AbstractContextManager[Any]:
    """Deliver what was added up in the run before, in fp64."""
    kept: dict[bool, Tensor] = {}

    def stale(original: Any, tensor: Tensor, kwargs: dict[str, Any]) -> None:
        original(tensor, **kwargs)
        before = kept.get(in_backward(), tensor)
        kept[in_backward()] = tensor.clone()
        tensor.copy_(before)

    return all_reduce(stale, lambda tensor, _: tensor.dtype == torch.float64)()


def first_shard(original: Any, self: Tensor, dim: int, start: int, length: int) -> Tensor:
    return original(self, dim, 0, length)  # type: ignore[no-any-return]


def next_shard(original: Any, self: Tensor, dim: int, start: int, length: int) -> Tensor:
    """One element too far, where there is one."""
    return original(self, dim, min(start + 1, self.shape[dim] - length), length)  # type: ignore[no-any-return]


def unmasked(original: Any, self: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Forget the mask over activations, not over indices."""
    return self if self.is_floating_point() else original(self, mask, value)


def whole_reduced(original: Any, received: Tensor, sent: Tensor, *args: Any, **kwargs: Any) -> None:
    """Reduce all of it on every rank and keep a part: right, and twice the bytes."""
    if not is_activation(sent):
        original(received, sent, *args, **kwargs)
        return
    everything = sent.clone()
    dist.all_reduce(everything, group=kwargs.get("group"))
    received.copy_(everything.chunk(sent.shape[0] // received.shape[0])[dist.get_rank()])


def gathered_again(original: Any, received: Tensor, sent: Tensor, *args: Any, **kwargs: Any) -> None:
    """Right, and once more than asked for."""
    original(received, sent, *args, **kwargs)
    if is_activation(sent):
        original(received, sent, *args, **kwargs)


def left_partial(_: Any) -> Callable[..., Any]:
    """Forget to add up what the ranks found. torch counts the parameters of what is put here."""

    def call(layouts: Any, local: bool, module: Any, outputs: Any, mesh: Any) -> Any:
        return outputs.to_local() if local else outputs

    return call


def replicated(original: Any, tensor: Tensor, mesh: Any, placements: Any = None, **kwargs: Any) -> Any:
    """Give every rank all of a weight."""
    return original(tensor, mesh, [Replicate()], **kwargs)


def swapped(original: Any, tensor: Tensor, *, gather_dim: int, group: Any) -> Tensor:
    """Join the parts one place too far."""
    whole: Tensor = original(tensor, gather_dim, group)
    return whole.roll(tensor.shape[gather_dim], gather_dim)


def own_part(original: Any, tensor: Tensor, op: str, *, scatter_dim: int, group: Any) -> Tensor:
    """Forget the other ranks' summands."""
    original(tensor, op, scatter_dim, group)
    return tensor.chunk(dist.get_world_size(), scatter_dim)[dist.get_rank()].contiguous()


def largest(original: Any, tensor: Tensor, reduceOp: str, *args: Any, **kwargs: Any) -> Tensor:
    """The largest in place of the sum."""
    return original(tensor, "max", *args, **kwargs)  # type: ignore[no-any-return]


def alone(original: Any, tensor: Tensor, reduceOp: str, *args: Any, **kwargs: Any) -> Tensor:
    """Every rank keeps its own."""
    return tensor


def mean_of_all(original: Any, *args: Any) -> tuple[Tensor, Tensor]:
    """Targets that are to be ignored count in the mean."""
    losses, counted = original(*args)
    return (losses * counted / args[1].numel() if counted else losses), counted


def always(tensor: Tensor, kwargs: dict[str, Any]) -> bool:
    return True


def of_weights(tensor: Tensor, kwargs: dict[str, Any]) -> bool:
    return tensor.ndim == 1


def backward(tensor: Tensor, kwargs: dict[str, Any]) -> bool:
    return in_backward()


def maximum(tensor: Tensor, kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("op") == dist.ReduceOp.MAX)


def of_a_part(tensor: Tensor, kwargs: dict[str, Any]) -> bool:
    return kwargs.get("group") is not None


def low_bit_of_what_is_gathered(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Flip a bit of what arrives with every product, on the last rank."""
    whole, products = original(*args, **kwargs)
    if dist.get_rank() == dist.get_world_size() - 1 and whole.is_contiguous():
        flip(whole, whole.numel() // 2)
    return whole, products


def pieces_in_another_order(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Take every rank's piece of a product for that of the rank after it."""
    whole, products = original(*args, **kwargs)
    dim, size = args[2], dist.get_world_size()
    return whole, [product.roll(product.shape[dim] // size, dim) for product in products]


def own_product(original: Any, *args: Any) -> Tensor:
    """Forget the other ranks' products."""
    original(*args)
    a, b, _, dim, _ = args
    mine: Tensor = (a @ b).chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()
    return mine


def not_the_first(original: Any, self: Tensor, other: Any) -> Tensor:
    """Leave the lowest whole number out."""
    return original(self, other if self.is_floating_point() else other + 1)  # type: ignore[no-any-return]


def drawn(shift: int, choice: Callable[[int], bool]) -> Patch:
    """Where so many features are drawn for, a rank's seed is off by so many times its number."""

    @replacing
    def make(original: Any, shape: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("generator") is None and choice(shape[-1]):
            torch.manual_seed(torch.initial_seed() + shift * dist.get_rank())
        done: Tensor = original(shape, **kwargs)
        return done

    return planted(torch, "rand", make)


# the bugs

COLUMN = {**LAYER, "features": 96, "gather": True}
ROW = {**LAYER, "features": 96, "split": True}
MLP = {**LAYER, "hidden": 96}
DROPPING = {**LAYER, "hidden": 64, "dropout": HALF}
SHARED = {**HEADS, "replicate": True}
WORDS = {**LAYER, "words": 96}

PARITY, BOTH = ("parity",), ("parity", "traffic")
FIRST, NEXT = instead_of(Tensor, "narrow")(first_shard), instead_of(Tensor, "narrow")(next_shard)
UNMASKED = instead_of(Tensor, "masked_fill")(unmasked)
TWICE, EVERYWHERE = instead_of(dist, GATHER)(gathered_again), instead_of(dist, SCATTER)(whole_reduced)
PARTIAL: Patch = functools.partial(replaced, RowwiseParallel, "_prepare_output_fn", left_partial)
REPLICATED = instead_of(style, "distribute_tensor")(replicated)
SWAPPED = instead_of(funcol, "all_gather_single")(swapped)
GATHERED, SUMMED = "_fused_all_gather_matmul_fallback", "_fused_matmul_reduce_scatter_fallback"
OUT_OF_ORDER = instead_of(symmetric, GATHERED)(pieces_in_another_order)
SPOILED = instead_of(symmetric, GATHERED)(low_bit_of_what_is_gathered)
ALONE = instead_of(symmetric, SUMMED)(own_product)
FIRST_WORD = instead_of(Tensor, "__ge__")(not_the_first)
SEQUENCE = kept_whole(lambda tensor: tensor.dim() == 3)
SAME, DIFFERENT = drawn(-1, lambda features: features != 48), drawn(1, lambda features: features == 48)
OWN = instead_of(funcol, "reduce_scatter_single")(own_part)
BUGS = [
    Bug("dX is not reduced", "tensor.column", COLUMN, dropped(backward), BOTH),
    Bug("outputs joined one place too far", "tensor.column", COLUMN, rotated(GATHER), PARITY),
    Bug("outputs gathered twice", "tensor.column", COLUMN, TWICE, ("traffic",)),
    Bug("the mean for the sum", "tensor.row", ROW, all_reduce(averaged, always), PARITY),
    Bug("dX joined one place too far", "tensor.row", ROW, rotated(GATHER), PARITY),
    Bug("a bit flipped whenever it is sent", "tensor.row", ROW, flipped_payloads, ("wrong",)),
    Bug("added up in bf16", "tensor.mlp", MLP, all_reduce(coarse, always), PARITY),
    Bug("f without its all_reduce", "tensor.mlp", MLP, dropped(backward), BOTH),
    Bug("sums of the run before", "tensor.mlp", MLP, of_the_run_before, PARITY),
    Bug("a low bit flipped once", "tensor.mlp", MLP, flipped_once, ("repeat",), narrow=True),
    Bug(
        "bf16 cut off", "tensor.mlp", MLP, narrow.of("all_reduce", narrow.truncated), ("wrong",), narrow=True
    ),
    Bug(
        "bf16 cut off",
        "tensor.sequence",
        BLOCK,
        narrow.of(SCATTER, narrow.truncated),
        ("wrong",),
        narrow=True,
    ),
    Bug("all ranks draw the same hidden mask", "tensor.mlp_dropout", DROPPING, SAME, PARITY),
    Bug("ranks draw different output masks", "tensor.mlp_dropout", DROPPING, DIFFERENT, PARITY),
    Bug("g without its all_reduce", "tensor.mlp_dropout", DROPPING, dropped(always), BOTH),
    Bug("shared heads' gradients not added", "tensor.attention", SHARED, dropped(of_a_part), BOTH),
    Bug("every rank takes the first heads", "tensor.attention", SHARED, FIRST, PARITY),
    Bug("largest logit of the own words", "tensor.vocabulary", WORDS, dropped(maximum), BOTH),
    Bug("other ranks' words not masked", "tensor.vocabulary", WORDS, UNMASKED, PARITY),
    Bug("shards off by one", "tensor.vocabulary", WORDS, NEXT, PARITY),
    Bug("the first word of a part is nobody's", "tensor.vocabulary", WORDS, FIRST_WORD, PARITY),
    Bug("a sum of the time before", "tensor.block", BLOCK, stale_once, PARITY),
    Bug("the mean for the sum, backward", "tensor.block", BLOCK, all_reduce(averaged, backward), PARITY),
    Bug("norms' gradients not reduced", "tensor.sequence", BLOCK, dropped(of_weights), BOTH),
    Bug("parts scattered one place too far", "tensor.sequence", BLOCK, rotated(SCATTER), PARITY),
    Bug("all_reduce for reduce_scatter", "tensor.sequence", BLOCK, EVERYWHERE, ("traffic",)),
    Bug("the gathered sequence is kept", "tensor.sequence", BLOCK, SEQUENCE, ("memory",)),
    Bug("every layer copies its input", "tensor.mlp", MLP, inputs_copied, ("memory",)),
    Bug("whole weights are kept", "tensor.mlp", MLP, weights_kept_whole, ("memory",)),
    Bug("whole weights are kept", "tensor.column", COLUMN, weights_kept_whole, ("memory",)),
    Bug("pieces in another order", "tensor.async_tp", MLP, OUT_OF_ORDER, PARITY),
    Bug("own product alone", "tensor.async_tp", MLP, ALONE, PARITY),
    Bug("a bit flipped behind a product", "tensor.async_tp", MLP, SPOILED, ("wrong",)),
    Bug("the gathered sequence is kept", "tensor.async_tp", MLP, SEQUENCE, ("memory",)),
    Bug("summands not added", "tensor.dtensor", BLOCK, PARTIAL, BOTH),
    Bug("weights not split", "tensor.dtensor", BLOCK, REPLICATED, ("memory",)),
    Bug("sequence joined in the wrong order", "tensor.dtensor_sequence", BLOCK, SWAPPED, PARITY),
    Bug("own summand alone", "tensor.dtensor_sequence", BLOCK, OWN, PARITY),
    Bug("largest for sum", "tensor.loss_parallel", WORDS, instead_of(funcol, "all_reduce")(largest), PARITY),
    Bug(
        "statistics not shared", "tensor.loss_parallel", WORDS, instead_of(funcol, "all_reduce")(alone), BOTH
    ),
    Bug(
        "ignored targets count in the mean",
        "tensor.loss_parallel",
        WORDS,
        instead_of(loss, "_nll_loss_forward")(mean_of_all),
        PARITY,
    ),
]
