"""Records what the stages of a rank did and when, what they received, and what they held."""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from fixtures.ranks.steps import Context
from fixtures.ranks.study.calibrated import Work, settle
from suites.pipeline.schedules import Op
from suites.pipeline.simulator import Span

Receipts = dict[tuple[str, int, int], torch.Tensor]  # (kind, stage, micro-batch) -> what came in


class Held:
    """How many (stage, micro-batch) pairs have activations that autograd still holds, and their bytes.

    A tensor that autograd saves is replaced by a holder, and the holders of one forward share a token. When
    autograd drops the last of them, the token is freed and no longer counted. `known` tensors (parameters,
    the batch) exist anyway and do not count.
    """

    def __init__(self, known: Sequence[torch.Tensor]) -> None:
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.now = self.peak = self.now_bytes = self.peak_bytes = 0

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Count what is saved inside as one micro-batch."""
        token = _Token()
        storages: set[int] = set()
        self.now += 1
        self.peak = max(self.peak, self.now)

        def pack(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - what autograd keeps is its own
            storage = tensor.untyped_storage()
            if storage.data_ptr() in self._known:
                return tensor
            if storage.data_ptr() not in storages:
                storages.add(storage.data_ptr())
                self._grow(token, storage.nbytes())
            return token, tensor.detach()  # an output that held itself would never be freed

        with saved_tensors_hooks(pack, lambda kept: kept[1] if isinstance(kept, tuple) else kept):
            yield
        weakref.finalize(token, self._drop, token.size)

    def _grow(self, token: _Token, size: int) -> None:
        token.size.append(size)
        self.now_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def _drop(self, sizes: list[int]) -> None:
        self.now -= 1
        self.now_bytes -= sum(sizes)


def in_this_thread() -> AbstractContextManager[None]:
    """Let backward run in the calling thread, on a GPU too: what it drops is freed when it returns."""
    made: AbstractContextManager[None] = torch.autograd.set_multithreading_enabled(False)
    return made


class _Token:
    """Alive as long as anything that one forward saved."""

    def __init__(self) -> None:
        self.size: list[int] = []


class Recorder:
    """What the stages of this rank did. Inside `paced` each operation takes the seconds given for its kind.

    A paced rank has a clock of work, which stands still only while the rank waits for a peer:

        begin of an operation = end of the one before + what was waited since
        end of an operation   = its begin + its seconds

    What a busy host adds between two operations shortens the next one's calibrated part and is not added to
    the schedule's bubble, as on a GPU, whose queue of kernels hides it. An operation that takes longer than
    its seconds is recorded as it was.
    """

    def __init__(self, ctx: Context, held: Held) -> None:
        self.ctx, self.held = ctx, held
        self.spans: list[Span] = []
        self.received: Receipts = {}
        self._expected: dict[tuple[str, int, int], list[torch.Tensor]] = {}
        self._seconds: dict[str, float] = {}
        self._work: Work | None = None
        self._began_s = self._free_s = self._waited_s = 0.0

    def begin(self) -> None:
        """Start a recording."""
        self.spans, self.received = [], {}
        self.held.peak, self.held.peak_bytes = self.held.now, self.held.now_bytes
        self._waited_s = 0.0
        self._began_s = self._free_s = time.perf_counter()

    @contextmanager
    def paced(self, seconds: dict[str, float]) -> Iterator[None]:
        """Give the operations inside a known length, by their kinds."""
        self._work, self._seconds = Work(self.ctx.device), seconds
        try:
            yield
        finally:
            self._work, self._seconds = None, {}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting for a peer."""
        began_s = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - began_s

    @contextmanager
    def doing(self, kind: str, stage: int, micro_batch: int) -> Iterator[None]:
        """Record one operation; its input has arrived before its clock starts."""
        with self.waiting():
            settle(self.ctx.device)  # until the GPU has received its input
        begin_s = self._free_s + self._waited_s if self._work else time.perf_counter()
        yield
        settle(self.ctx.device)
        end_s = time.perf_counter()
        until_s = begin_s + self._seconds.get(kind, 0.0)
        if self._work and end_s < until_s:
            end_s = self._work.last(until_s)
        self._free_s, self._waited_s = end_s, 0.0
        self.spans.append(Span(Op(kind, stage, micro_batch), begin_s - self._began_s, end_s - self._began_s))
        self.ctx.progress.done(len(self.spans))

    def expect(self, kind: str, stage: int, micro_batch: int, buffers: Sequence[torch.Tensor]) -> None:
        """Note the buffers that something will arrive in."""
        self._expected[kind, stage, micro_batch] = list(buffers)

    def receive(self, kind: str, stage: int, micro_batch: int) -> None:
        """Copy what has arrived, before it is used."""
        key = kind, stage, micro_batch
        for buffer in self._expected.pop(key, ()):
            self.received[key] = buffer.detach().clone()


def typical(rounds: Sequence[Sequence[Span]]) -> list[Span]:
    """Make one round of many: every wait and every operation is as long as the median of its repeats.

    So a transfer that is late once is an outlier of one wait, and not of the whole round that it delays: on a
    busy host every round has some late transfer, and even the median of whole rounds is late.
    """
    found: list[Span] = []
    free_s = 0.0
    before_s = [0.0] * len(rounds)
    for same in zip(*rounds, strict=True):
        begin_s = free_s + statistics.median(
            span.begin_s - end_s for span, end_s in zip(same, before_s, strict=True)
        )
        free_s = begin_s + statistics.median(span.end_s - span.begin_s for span in same)
        before_s = [span.end_s for span in same]
        found.append(Span(same[0].op, begin_s, free_s))
    return found
