"""Attention and experts on separate ranks: M-to-N dispatch, N-to-M combine, micro-batches that alternate.

Ranks 0 to M - 1 hold attention and router, ranks M to M + N - 1 the experts. Two process groups, one for
each direction: NCCL has no tags and runs a group's transfers in the order in which they are issued, so a
combine must not queue behind a later dispatch. In each direction every pair keeps one order: by layer, by
micro-batch, the counts and then the rows; senders and receivers take their peers in ascending order.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fixtures.ranks import timing
from fixtures.ranks.groups import lasting
from fixtures.ranks.steps import Context
from fixtures.ranks.study.calibrated import Work, settle
from suites.expert.disaggregated.model import Problem
from suites.expert.layer import copies, returned, worked
from suites.expert.routing import counts


@dataclass(frozen=True)
class Sides:
    """The ranks of each side, and the groups of both directions."""

    attention: range
    experts: range
    dispatch: Any
    combine: Any


@contextmanager
def sides(ctx: Context, attention_ranks: int) -> Iterator[Sides]:
    """Make both groups; destroy them unless the work fails."""
    if not 0 < attention_ranks < ctx.size:
        raise ValueError(f"{attention_ranks} attention ranks of {ctx.size} leave one side without ranks")
    groups = [dist.new_group(range(ctx.size)) for _ in range(2)]
    with lasting(groups):
        yield Sides(range(attention_ranks), range(attention_ranks, ctx.size), *groups)


@dataclass
class Log:
    """What a rank did in a pass: seconds of every stage and of the whole, and the rows that came to it."""

    stages: list[float] = field(default_factory=list)
    arrived: list[Tensor] = field(default_factory=list)  # rows that came here in either direction, in order
    span_s: float = 0.0


def typical(logs: Sequence[Log]) -> Log:
    """The stages of all these passes, and their median span."""
    spans = [log.span_s for log in logs]
    return Log([one for log in logs for one in log.stages], span_s=statistics.median(spans))


@dataclass(frozen=True)
class Pace:
    """The least length of a stage: work in place of a larger model's."""

    work: Work
    least_s: float = 0.0


@dataclass
class Pending:
    """Sends that have been issued; their buffers live until they are done."""

    works: list[Any] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)

    def send(self, parts: Sequence[Tensor], targets: Iterable[int], group: Any) -> None:  # noqa: ANN401
        """Send one part to every target, all together; empty ones are not sent."""
        some = [(part, target) for part, target in zip(parts, targets, strict=True) if part.numel()]
        self.buffers += [part for part, _ in some]
        self.works += together([dist.P2POp(dist.isend, part, target, group) for part, target in some])

    def finish(self) -> None:
        """Wait for all."""
        for work in self.works:
            work.wait()
        self.works.clear()
        self.buffers.clear()


def receive(buffers: Sequence[Tensor], sources: range, group: Any) -> None:  # noqa: ANN401
    """Fill a buffer from every source; empty ones are not sent."""
    pairs = zip(buffers, sources, strict=True)
    for work in together(
        [dist.P2POp(dist.irecv, buffer, source, group) for buffer, source in pairs if buffer.numel()]
    ):
        work.wait()


def together(operations: list[dist.P2POp]) -> list[Any]:
    """Issue transfers to and from different peers at the same time: NCCL runs single ones in turn."""
    return list(dist.batch_isend_irecv(operations)) if operations else []


@contextmanager
def stage(ctx: Context, log: Log, pace: Pace) -> Iterator[None]:
    """Time a stage."""
    settle(ctx.device)  # until the GPU has received its input: that wait is not part of the stage
    began = time.perf_counter()
    yield
    settle(ctx.device)
    if pace.least_s:
        pace.work.last(began + pace.least_s)
    log.stages.append(time.perf_counter() - began)


def attend_all(ctx: Context, roles: Sides, problem: Problem, pace: Pace, log: Log) -> list[Tensor]:
    """An attention rank's pass: attention of one micro-batch while the experts have the others."""
    pending = Pending()
    away: dict[int, tuple[Tensor, Tensor, Tensor, list[int]]] = {}
    hidden = [batch.clone() for batch in problem.batches[ctx.rank]]
    for layer in range(problem.depth + 1):
        for i in range(len(hidden)):
            if layer:
                hidden[i] = _combined(roles, log, *away.pop(i))
            if layer < problem.depth:
                with stage(ctx, log, pace):
                    x, rows, weights, chosen = problem.attend(layer, hidden[i], problem.wanted[ctx.rank][i])
                away[i] = (x, weights, *_dispatched(roles, pending, rows, chosen, problem.shape.experts))
    pending.finish()
    return hidden


def _dispatched(
    roles: Sides, pending: Pending, rows: Tensor, chosen: Tensor, experts: int
) -> tuple[Tensor, list[int]]:
    """Send counts to every expert rank, then rows to those that get some."""
    order = chosen.flatten().argsort(stable=True)
    own = counts(chosen, experts).view(len(roles.experts), -1)
    split = own.sum(1).tolist()
    pending.send(own.unbind(0), roles.experts, roles.dispatch)
    pending.send(torch.split(copies(rows, order, chosen.shape[1]), split), roles.experts, roles.dispatch)
    return order, split


def _combined(  # noqa: PLR0917 - who, where it is noted, and what was kept of the way there
    roles: Sides, log: Log, x: Tensor, weights: Tensor, order: Tensor, split: list[int]
) -> Tensor:
    """Receive the experts' results, and add them to the residual, weighted."""
    back = x.new_empty(sum(split), x.shape[1])
    receive(torch.split(back, split), roles.experts, roles.combine)
    log.arrived.append(back)
    rows = returned(back, order, weights.shape[1])
    return x + (rows * weights.unsqueeze(-1)).sum(1)


def serve_all(ctx: Context, roles: Sides, problem: Problem, pace: Pace, log: Log) -> None:
    """An expert rank's pass: receive rows from every attention rank, compute, send the results back."""
    pending, local = Pending(), problem.shape.experts // len(roles.experts)
    first = (ctx.rank - roles.experts.start) * local
    for layer in range(problem.depth):
        experts = problem.blocks[layer].moe.experts[first : first + local]
        for _ in problem.batches[0]:
            arrived, header = _arrived(ctx, roles, problem, local)
            log.arrived.append(arrived)
            with stage(ctx, log, pace):
                numbers = torch.arange(local, device=ctx.device).repeat(len(roles.attention))
                order = numbers.repeat_interleave(header.flatten()).argsort(stable=True)
                done = worked(experts, arrived, order, header.sum(0).tolist())
            pending.send(torch.split(done, header.sum(1).tolist()), roles.attention, roles.combine)
    pending.finish()


def _arrived(ctx: Context, roles: Sides, problem: Problem, local: int) -> tuple[Tensor, Tensor]:
    """Receive rows, and how many from each attention rank (rows of the header) for each expert here."""
    header = torch.empty(len(roles.attention), local, dtype=torch.int64, device=ctx.device)
    receive(header.unbind(0), roles.attention, roles.dispatch)
    split = header.sum(1).tolist()
    arrived = torch.empty(sum(split), problem.shape.hidden, dtype=problem.dtype, device=ctx.device)
    receive(torch.split(arrived, split), roles.attention, roles.dispatch)
    return arrived, header


@torch.no_grad()
def run_pass(ctx: Context, roles: Sides, problem: Problem, pace: Pace) -> tuple[list[Tensor], Log]:
    """Run all micro-batches through all layers; give the results, or on an expert rank what it received."""
    log = Log()
    found = log.arrived
    ctx.progress.phase(f"{len(problem.batches[0])} micro-batches")
    began = time.perf_counter()
    if ctx.rank in roles.attention:
        found = attend_all(ctx, roles, problem, pace, log)
    else:
        serve_all(ctx, roles, problem, pace, log)
    timing.complete(ctx)
    log.span_s = time.perf_counter() - began
    return found, log
