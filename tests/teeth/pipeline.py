"""What a pipeline could do wrong: stale, swapped and rounded tensors, lost gradients, wrong orders, leaks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import graph
from torch.distributed import pipelining

from suites.pipeline.test_pipeline import ROUNDS
from tests.teeth.bug import Bug, is_narrow, never, planted, replacing
from tests.teeth.patches.expert import both_twice
from tests.teeth.patches.flips import Late
from tests.teeth.patches.flips import flip as flip_bit
from tests.teeth.patches.memory import outputs_kept

SIZE = {"width": 8, "rows": 2, "per_rank": 2, "busy_ms": 12, "repeats": 1, "most": 16}
EDGES = {
    "dtype": "bf16",
    "size_bytes": {"cpu": 4096},
    "alone_bytes": 1024,
    "elements": [257],
    "iterations": 3,
    "budget_s": 0.02,
    "most": 16,
}
Stage = pipelining.PipelineStage
Patch = Callable[[], AbstractContextManager[Any]]


def stale_activation(original: Callable[..., Any]) -> Callable[..., Any]:
    """Micro-batch 1 gets the activation of micro-batch 0 again."""
    first: dict[int, torch.Tensor] = {}

    def retrieve(self: Any, chunk: int) -> Any:
        (got,) = original(self, chunk)
        if chunk == 0:
            first[self.stage_index] = got.detach().clone()
        if chunk == 1:
            got.data.copy_(first[self.stage_index])
        return (got,)

    return retrieve


@replacing
def one_step_behind(original: Callable[..., Any], self: Any, chunk: int) -> Any:
    """The first micro-batch is that of the step before: its buffer is read before it is written."""
    found = original(self, chunk)
    if chunk == 0:
        before = getattr(self, "came_first", found[0])
        self.came_first = found[0].detach().clone()
        found[0].data.copy_(before)
    return found


@replacing
def rounded(original: Callable[..., Any], self: Any, chunk: int) -> Any:
    """What is sent has been through half the bits of its dtype."""
    found = original(self, chunk)
    for op in found:
        low = torch.float32 if op.tensor.dtype == torch.float64 else torch.float8_e4m3fn
        op.tensor = op.tensor.detach().to(low).to(op.tensor.dtype)
    return found


@replacing
def zero_last_gradient(original: Callable[..., Any], self: Any, chunk: int) -> Any:
    """The gradient of the last micro-batch does not reach the stages before."""
    got = original(self, chunk)
    return tuple(torch.zeros_like(one) for one in got) if chunk == self.chunks - 1 else got


@replacing
def later_gradients_lost(original: Callable[..., Any], self: Any, chunk: int) -> Any:
    """Beyond two micro-batches for each rank no gradient reaches the stages before."""
    got = original(self, chunk)
    return tuple(torch.zeros_like(one) for one in got) if chunk >= 2 * self.group_size else got


@replacing
def swapped_micro_batches(original: Callable[..., Any], self: Any, args: Any, kwargs: Any = None) -> Any:
    """The inputs of the first two micro-batches change places; the targets do not."""
    chunks, more = original(self, args, kwargs)
    return [chunks[1], chunks[0], *chunks[2:]], more


@replacing
def announces_itself(original: Callable[..., Any], self: Any, factor: int) -> None:
    """Gradients go through an all_reduce that no pipeline needs, over ranks with different stages."""
    dist.all_reduce(torch.zeros(4))
    original(self, factor)


def leaks(original: Callable[..., Any]) -> Callable[..., Any]:
    """Somebody keeps the graph that a whole backward has used, with all that it saved."""
    kept: list[Any] = []

    def backward(tensors: Any, grad_tensors: Any = None, *_: Any, **__: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        kept.extend(graph.get_gradient_edge(one) for one in roots)
        original(tensors, grad_tensors, retain_graph=True)

    return backward


@replacing
def forgets_a_weight(original: Callable[..., Any], self: Any, chunk: int, *args: Any, **more: Any) -> None:
    """The weights' part of micro-batch 1 is dropped."""
    kept = [one.grad.clone() if one.grad is not None else None for one in self.submod.parameters()]
    original(self, chunk, *args, **more)
    if chunk == 1:
        for one, before in zip(self.submod.parameters(), kept, strict=True):
            one.grad = before


def flips_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """One low bit of one activation flips, in the first training step alone that is compared."""
    seen: list[int] = []

    def retrieve(self: Any, chunk: int) -> Any:
        (got,) = original(self, chunk)
        seen.append(chunk)
        if len(seen) == self.chunks + 1 and got.dtype == torch.float64:
            got.data.view(torch.int64)[0, 0] ^= 1 << 30
        return (got,)

    return retrieve


def received(tamper: Callable[[list[torch.Tensor]], None]) -> Patch:
    """Do something to what a batch of sends and receives has received."""

    @replacing
    def make(original: Callable[..., Any], ops: list[Any]) -> list[Any]:
        works = original(ops)
        got = [op.tensor for op in ops if op.op is dist.irecv]
        return [*works[:-1], Late(works[-1], lambda: tamper(got))]

    return planted(dist, "batch_isend_irecv", make)


def bit_zero_of(rank: int, receive: int) -> Patch:
    """Flip the lowest bit of one element of one receive of one rank: the so-manieth of all its steps."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        count = 0

        def batch(ops: list[Any], desc: str | None = None) -> list[Any]:
            nonlocal count
            works = original(ops, desc)
            got = [op.tensor for op in ops if op.op is dist.irecv]
            count += len(got)
            if dist.get_rank() != rank or not got or count != receive:
                return list(works)
            return [*works[:-1], Late(works[-1], lambda: flip_bit(got[-1]))]

        return batch

    return planted(pipelining.schedules, "_batch_p2p", make)


def flip(got: list[torch.Tensor]) -> None:
    """Flip one low bit of one element, on rank 1 alone."""
    if got and dist.get_rank() == 1:
        flip_bit(got[0], 3)


def shift(got: list[torch.Tensor]) -> None:
    """Let everything arrive one element late."""
    for one in got[:1]:
        one.copy_(one.roll(1))


def stale_payload(original: Callable[..., Any]) -> Callable[..., Any]:
    """Send what was there two iterations ago: the buffer is read before it is written."""
    before: dict[tuple[int, int], list[torch.Tensor]] = {}

    def batch(ops: list[Any]) -> list[Any]:
        for op in ops:
            if op.op is dist.isend:
                sent = before.setdefault((op.peer, op.tensor.numel()), [])
                sent.append(op.tensor.clone())
                op.tensor = sent[-3] if len(sent) > 2 else op.tensor
        return list(original(ops))

    return batch


def on(step: str, name: str, patch: Patch, *red: str, size: int = 2) -> Bug:
    """Plant a bug in one schedule."""
    return Bug(name, f"pipeline.{step}", SIZE, patch, red, size, narrow=is_narrow(name))


def at_the_edges(name: str, patch: Patch, *red: str) -> Bug:
    """Plant a bug between the neighbours."""
    return Bug(name, "pipeline.edges", EDGES, patch=patch, red=red)


LEAKS = planted(torch.autograd, "backward", leaks)
GPIPE_STEP = pipelining.ScheduleGPipe._step_microbatches
GPIPE = planted(pipelining.Schedule1F1B, "_step_microbatches", lambda _: GPIPE_STEP)
STALE = planted(Stage, "_retrieve_recv_activations", stale_activation)
LAST = planted(Stage, "_retrieve_recv_grads", zero_last_gradient)
OUTPUTS = planted(Stage, "forward_one_chunk", outputs_kept)
FORGETS = planted(Stage, "backward_weight_one_chunk", forgets_a_weight)


BUGS = [
    on("gpipe", "gradients are not divided by m", planted(Stage, "scale_grads", never), "parity"),
    on("gpipe", "activations lose half their bits", planted(Stage, "get_fwd_send_ops", rounded), "parity"),
    on("gpipe", "backward keeps what it has used", LEAKS, "memory"),
    on("gpipe", "outputs are kept", OUTPUTS, "memory"),
    on("one_f_one_b", "forwards first", GPIPE, "parity", "memory"),
    on("one_f_one_b", "a stale activation", STALE, "parity"),
    on("one_f_one_b", "the last gradient is lost", LAST, "parity"),
    on(
        "one_f_one_b",
        "one bit flips once",
        planted(Stage, "_retrieve_recv_activations", flips_once),
        "repeat",
    ),
    on("one_f_one_b", "bit 0 of an activation flips once", bit_zero_of(1, 4 + 2), "parity", "repeat"),
    on("one_f_one_b", "bit 0 of a gradient flips in the repeat", bit_zero_of(0, 3 * 4 + 3), "repeat"),
    on("interleaved", "bit 0 of a gradient flips once", bit_zero_of(0, 8 + 5), "parity", "repeat"),
    on("zbv", "bit 0 of an activation flips in the repeat", bit_zero_of(1, 3 * 8 + 1), "repeat"),
    on("gpipe", "bit 0 of an activation flips in the repeat in bf16", bit_zero_of(1, 7 * 4 + 1), "repeat"),
    on(
        "one_f_one_b",
        "an all_reduce too many",
        planted(Stage, "perform_reduce_grad", announces_itself),
        "traffic",
    ),
    on(
        "interleaved", "gradients lose half their bits", planted(Stage, "get_bwd_send_ops", rounded), "parity"
    ),
    on("interleaved", "backward keeps what it has used", LEAKS, "memory"),
    Bug(
        "gradients beyond two micro-batches for each rank are lost",
        "pipeline.interleaved",
        {**SIZE, "per_rank": ROUNDS["pipeline.interleaved"]},
        planted(Stage, "_retrieve_recv_grads", later_gradients_lost),
        ("parity",),
    ),
    on("zero_bubble", "a weight's turn is forgotten", FORGETS, "parity"),
    on("zero_bubble", "a stale activation", STALE, "parity"),
    on("zero_bubble", "outputs are kept", OUTPUTS, "memory"),
    on("zbv", "outputs are kept", OUTPUTS, "memory"),
    on("zbv", "a weight's turn is forgotten", FORGETS, "parity"),
    on(
        "zbv",
        "the first activation is that of the step before",
        planted(Stage, "_retrieve_recv_activations", one_step_behind),
        "parity",
    ),
    on("zbv", "the last gradient is lost", LAST, "parity"),
    on(
        "dualpipev",
        "micro-batches in the wrong order",
        planted(pipelining.schedules._PipelineSchedule, "_split_inputs", swapped_micro_batches),
        "parity",
    ),
    on("dualpipev", "backward keeps what it has used", LEAKS, "memory"),
    at_the_edges("one low bit flips", received(flip), "wrong"),
    at_the_edges("everything shifted by one element", received(shift), "wrong"),
    at_the_edges("an old payload", planted(dist, "batch_isend_irecv", stale_payload), "wrong"),
    at_the_edges("sent twice", both_twice, "traffic"),
]
