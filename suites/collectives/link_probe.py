"""Messages between two nodes, in one direction at a time: how fast they arrive, and whether they are right.

Rank i of the first node and rank i of the second are partners, and all pairs send at once: first towards the
second node, then towards the first. One rank sends messages without a pause, and its partner notes when each
has arrived. A sample is the time from one arrival to the next, that is, of one message at the speed of this
direction. The first `lead` messages are in no sample: they cover latency, a connection that has yet to gain
speed, and what a shaper lets through at once after a pause. Every message has a payload of its own, and all
are compared. A longer reading sends the messages `laps` times over, so that it needs no more memory; what
arrived in the last lap is compared.
"""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks import timing
from fixtures.ranks.exact.compare import examine, keep, occasion
from fixtures.ranks.exact.dtypes import format_of
from fixtures.ranks.exact.expected import Moved, Run, moved_by
from fixtures.ranks.exact.payload import poison
from fixtures.ranks.steps import Context
from fixtures.wire.progress import ROUND_TRIPS, TOWARDS

_FORM = format_of("int64")
_EARLIER = 8  # messages that wrong data are compared with
_SMALL = 8  # elements of a message that goes there and back


def probe(
    ctx: Context, size_bytes: int, iterations: int, lead: int, *, round_trips: int, laps: int
) -> dict[str, Any]:
    """Try both directions. The receiver reports arrivals; `began` is when the last of the lead arrived.

    It is on the clock of the node (CLOCK_MONOTONIC), so that the arrivals of its ranks can be put in order.
    `lead_s` is how long the lead took: a direction that stalled then has lost that time too.
    """
    partner, on_first = _partner(ctx)
    messages = torch.empty(lead + iterations, size_bytes // _FORM.item_bytes, dtype=_FORM.dtype)
    messages = messages.to(ctx.device)
    said: dict[str, Any] = {"partner": partner, "receives": None, "wrong": []}
    ctx.progress.phase(ROUND_TRIPS)
    said["round_trips"] = _round_trips(ctx, partner, on_first, round_trips)
    for direction, name in enumerate(TOWARDS):
        ctx.progress.phase(name)
        if partner is None:
            timing.barrier(ctx)
        elif on_first == (direction == 0):
            _send(ctx, messages, partner, laps)
        else:
            said["receives"] = _receive(ctx, messages, partner, lead, laps)
            said["wrong"] = _wrong(ctx, messages, partner)
    return said


def _partner(ctx: Context) -> tuple[int | None, bool]:
    """The partner, None where the other node has fewer ranks; and whether this is the first node."""
    names = list(dict.fromkeys(ctx.hosts))
    if len(names) != 2:
        raise ValueError(f"a link joins two nodes; this world has {len(names)} nodes")
    first, second = ([r for r, host in enumerate(ctx.hosts) if host == name] for name in names)
    own, others = (first, second) if ctx.rank in first else (second, first)
    place = own.index(ctx.rank)
    return (others[place] if place < len(others) else None), own is first


def _round_trips(ctx: Context, partner: int | None, on_first: bool, count: int) -> list[float]:
    """Seconds of small messages there and back, reported by the rank that begins."""
    message = torch.zeros(_SMALL, dtype=_FORM.dtype, device=ctx.device)
    timing.barrier(ctx)
    seconds = []
    for number in range(1, count + 1 if partner is not None else 1):
        began = time.perf_counter()
        for call in (dist.send, dist.recv) if on_first else (dist.recv, dist.send):
            call(message, partner)
        timing.complete(ctx)
        seconds.append(time.perf_counter() - began)
        ctx.progress.done(number)
    return seconds if on_first else []


def _post(call: Any, message: torch.Tensor, partner: int) -> list[Any]:  # noqa: ANN401 - torch's own functions
    """Begin to send or to receive, as a batch: only that uses NCCL's existing communicator."""
    return list(dist.batch_isend_irecv([dist.P2POp(call, message, partner)]))


def _send(ctx: Context, messages: torch.Tensor, partner: int, laps: int) -> None:
    """Send all messages, each with its payload, without a pause."""
    for number, message in enumerate(messages):
        count = message.numel()
        message.copy_(moved_by(_FORM, ctx.seed, ctx.rank, number, start=0, count=count, device=ctx.device))
    timing.complete(ctx)
    timing.barrier(ctx)
    posted = [_post(dist.isend, message, partner) for message in list(messages) * laps]
    for number, works in enumerate(posted, 1):
        for work in works:
            work.wait()
        if ctx.device.type != "cuda":
            ctx.progress.done(number)
    timing.complete(ctx)
    ctx.progress.done(len(posted))


def _receive(ctx: Context, messages: torch.Tensor, partner: int, lead: int, laps: int) -> dict[str, Any]:
    poison(messages)
    arrivals = _on_device if ctx.device.type == "cuda" else _on_host
    ready, began, seconds = arrivals(ctx, list(messages) * laps, partner, lead)
    return {"source": partner, "began": began, "lead_s": began - ready, "seconds": seconds}


def _on_host(
    ctx: Context, messages: list[torch.Tensor], partner: int, lead: int
) -> tuple[float, float, list[float]]:
    """Post all receives before the first message is sent, so that none waits for its receiver."""
    posted = [_post(dist.irecv, message, partner) for message in messages]
    timing.barrier(ctx)
    ready, arrived = time.monotonic(), []
    for number, works in enumerate(posted, 1):
        for work in works:
            work.wait()
        arrived.append(time.monotonic())
        ctx.progress.done(number)
    timed = arrived[lead - 1 :]
    return ready, timed[0], [after - before for before, after in itertools.pairwise(timed)]


def _on_device(
    ctx: Context, messages: list[torch.Tensor], partner: int, lead: int
) -> tuple[float, float, list[float]]:
    """Issue all receives in order; events tell when the device had completed each."""
    timing.barrier(ctx)
    ready = time.monotonic()
    stream = torch.cuda.current_stream(ctx.device)
    event = functools.partial(torch.cuda.Event, enable_timing=True)
    ends = [event() for _ in messages]
    for message, end in zip(messages, ends, strict=True):
        for work in _post(dist.irecv, message, partner):
            work.wait()  # the stream waits, and not the host
        end.record(stream)
    began = 0.0
    for number, end in enumerate(ends, 1):
        end.synchronize()
        began = time.monotonic() if number == lead else began
        ctx.progress.done(number)
    timed = itertools.pairwise(ends[lead - 1 :])
    return ready, began, [before.elapsed_time(after) / 1e3 for before, after in timed]


def _wrong(ctx: Context, messages: torch.Tensor, partner: int) -> list[dict[str, Any]]:
    """Compare every element of every message with what the partner must have sent."""
    wrong: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        run = Run(range(partner, partner + 1), 0, message.numel())
        earlier = tuple((tag, tag) for tag in range(number - 1, max(number - 1 - _EARLIER, -1), -1))
        right = Moved(_FORM, ctx.seed, ctx.size, number, (run,), ctx.device, earlier=earlier)
        about = occasion(ctx.rank, "link", _FORM.name, message.nbytes, number)
        keep(wrong, examine(message, right, about))
    return wrong
