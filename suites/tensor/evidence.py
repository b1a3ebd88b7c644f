"""What is said of one technique: parity, repeat, traffic, memory, time, payload."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fixtures.ranks import timing
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.deliveries import Deliveries, record_deliveries
from fixtures.ranks.study.traffic import Traffic, count_traffic
from suites.tensor import pattern
from suites.tensor.regions import Group, all_reduce
from suites.tensor.trial import EXACT, ITEM_BYTES, TRAINED, Ran, Trial, full, unsharded

Tensor = torch.Tensor

GROUP = "tp"


def judge(ctx: Context, group: Group, trial: Trial) -> dict[str, Any]:
    """Everything that is said of one technique."""
    ctx.progress.phase("unsharded")
    want, same = unsharded(trial, EXACT), unsharded(trial, TRAINED)
    ctx.progress.phase("sharded fp64")
    exact = _twice(trial, EXACT, group, "")
    ctx.progress.phase("sharded bf16")
    trained = _twice(trial, TRAINED, group, "bf16:")
    timed, step_s = _timed(ctx, trial, group)
    figures, wrong = pattern.measured(ctx, trial.traffic, trial.through)
    return {
        "parity": _marked(
            trial, _exact(trial, exact.found, want) + _trained(trial, trained.found, same, want, group.size)
        ),
        "repeat": [*exact.repeat, *trained.repeat, *_same(trained.found, timed, "bf16, timed:")],
        "traffic": trained.traffic.table(dict(trial.traffic), GROUP),
        "memory": _memory(trial, trained.ran),
        "figures": {"step_seconds": step_s, **figures, **trial.figures()},
        "samples": pattern.TIMED,
        "wrong": wrong,
    }


@dataclass(frozen=True)
class _Twice:
    """Two runs from the same state: what the first left and issued, and whether the second did the same."""

    ran: Ran
    found: dict[str, Tensor]
    traffic: Traffic
    repeat: list[dict[str, Any]]


def _twice(trial: Trial, dtype: torch.dtype, group: Group, word: str) -> _Twice:
    """Run it two times, and compare the results and what every exchange brought."""
    (ran, seen, first), (other, _, second) = (_recorded(trial, dtype) for _ in range(2))
    found, again = (comparable(trial, one, group) for one in (ran, other))
    repeat = _same(found, again, word) + first.entries(second, f" in {str(dtype).removeprefix('torch.')}")
    return _Twice(ran, found, seen, repeat)


def _recorded(trial: Trial, dtype: torch.dtype) -> tuple[Ran, Traffic, Deliveries]:
    """One run; handing out the model is recorded as well, but it is no part of the technique's traffic."""
    with record_deliveries() as delivered:
        run = trial.ready(dtype)
        with count_traffic() as seen:
            ran = run()
    return ran, seen, delivered


def _timed(ctx: Context, trial: Trial, group: Group) -> tuple[dict[str, Tensor], float]:
    """One run with nothing but a clock beside it."""
    run = trial.ready(TRAINED)
    timing.barrier(ctx)
    began = time.perf_counter()
    ran = run()
    timing.complete(ctx)
    step_s = time.perf_counter() - began
    return comparable(trial, ran, group), step_s


def _same(found: Mapping[str, Tensor], again: Mapping[str, Tensor], word: str) -> list[dict[str, Any]]:
    return [parity.equal(f"{word}{what}", again[what], found[what]) for what in found]


def beside(trial: Trial, other: Trial, word: str) -> list[dict[str, Any]]:
    """Compare with another way to do the same on the same parts, in fp64."""
    found, right = (one.ready(EXACT)().found for one in (trial, other))
    return [parity.entry(f"{what}, {word}", found[what], right[what]) for what in right]


def comparable(trial: Trial, ran: Ran, group: Group) -> dict[str, Tensor]:
    """Make results comparable, outside of what is counted as the technique's own traffic.

    The loss of a split output is the sum of the ranks' losses; torch's distributed tensors are put together.
    """
    found = {what: full(tensor) for what, tensor in ran.found.items()}
    if "forward" in trial.cuts:
        found["loss"] = all_reduce(found["loss"], group)
    return found


def _name(what: str) -> str:
    return what.split(":", 1)[1] if what.startswith("grad:") else what


def _exact(trial: Trial, found: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """In fp64 within 1e-10 of the reference; nothing that the reference has may be missing."""
    return [parity.entry(what, found[what], trial.cut(_name(what), want[what])) for what in want]


def _trained(
    trial: Trial,
    found: Mapping[str, Tensor],
    same: Mapping[str, Tensor],
    want: Mapping[str, Tensor],
    summands: int,
) -> list[dict[str, Any]]:
    """In bf16 no more than three times as far from fp64 as the unsharded run in bf16, of as many summands.

    A rank's part is put into its place in the unsharded result: the error of a small part alone would be
    held against an error that is small by chance.
    """
    entries = []
    for what in want:
        placed = same[what].clone()
        trial.cut(_name(what), placed).copy_(found[what])
        entries.append(parity.bf16_entry(what, placed, same[what], want[what], summands=summands))
    return entries


def _marked(trial: Trial, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    alone = {*trial.alone, *(f"bf16:{what}" for what in trial.alone)}
    return [parity.local(one) if one["what"] in alone else one for one in entries]


def _memory(trial: Trial, ran: Ran) -> list[dict[str, Any]]:
    """Weights and gradients by what they lie in: a part that is a view of the whole keeps the whole."""
    expected = trial.elements * ITEM_BYTES
    entries = [
        memory.entry("params", _lies_in(ran.weights), expected),
        memory.entry("grads", _lies_in([one.grad for one in ran.weights if one.grad is not None]), expected),
    ]
    if trial.saved is not None:
        entries.append(memory.entry("activations", *trial.saved()))
    return entries


def _lies_in(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of these tensors, each once."""
    storages = [memory.local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())
