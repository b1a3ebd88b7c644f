"""Train on a mesh twice in fp64 and once in bf16, and hold it beside the unsharded run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fixtures.ranks import timing
from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.deliveries import Deliveries, record_deliveries
from fixtures.ranks.study.traffic import Traffic, count_traffic
from suites.mesh.task import EXACT, TRAINED, Results, Task, unsharded

Entries = list[dict[str, Any]]


class Engine(Protocol):
    """A model at work on a mesh, on one rank; a rank that sees no loss and no logits gives None."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    waiting_bytes: int  # of parameters that stand there between forward and backward

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Train with this rank's tokens and targets; give loss and logits."""

    def results(self) -> dict[str, Tensor]:
        """Gradients of the last step and parameters, as far as this rank holds them."""

    def expected(self, whole: Results) -> dict[str, Tensor]:
        """What this rank is to hold of whole results."""


Make = Callable[[torch.dtype], Engine]


@dataclass(frozen=True)
class Trained:
    """What a run leaves on this rank: `traffic` is the last step's, `delivered` of all exchanges."""

    results: Results
    traffic: Traffic
    delivered: Deliveries
    seconds: float


@dataclass(frozen=True)
class Study:
    """One technique, run. `engine` is as its first run in fp64 left it."""

    engine: Engine
    trained: Trained
    parity: Entries
    repeat: Entries


def study(task: Task, make: Make, low: bool = True) -> Study:
    """Run it; without `low` in fp64 alone."""
    task.ctx.progress.phase("unsharded fp64")
    want = unsharded(task, EXACT)
    task.ctx.progress.phase("mesh fp64")
    engine, again = make(EXACT), make(EXACT)
    found = follow(task, engine, EXACT)
    entries = [parity.entry(name, got, right) for name, got, right in _pairs(found, engine.expected(want))]
    repeated = follow(task, again, EXACT)
    same = [parity.equal(name, got, right) for name, got, right in _pairs(repeated, found.results)]
    same += found.delivered.entries(repeated.delivered)
    return Study(engine, found, entries + (_trained(task, make, want) if low else []), same)


def follow(task: Task, engine: Engine, dtype: torch.dtype) -> Trained:
    """Train through all steps, three or more; the calls of the last are counted, the first is not timed."""
    losses, seconds = [], []
    with record_deliveries() as delivered:
        for number in range(task.steps - 1):
            began = time.perf_counter()
            losses.append(_step(task, engine, number)[0])
            timing.complete(task.ctx)
            seconds.append(time.perf_counter() - began)
        with count_traffic() as seen:
            loss, logits = _step(task, engine, task.steps - 1)
        results = {name: tensor.clone() for name, tensor in engine.results().items()}
    if logits is not None:
        results["logits"] = logits
        results["loss"] = torch.stack([one for one in (*losses, loss) if one is not None])
    return Trained(results, seen, delivered, statistics.median(seconds[1:]))


def _step(task: Task, engine: Engine, number: int) -> tuple[Tensor | None, Tensor | None]:
    x, y = (task.own(one) for one in task.batch(number))
    found = engine.step(x, y)
    task.ctx.progress.done(number + 1)
    return found


def _pairs(found: Trained, want: Results) -> list[tuple[str, Tensor, Tensor]]:
    """Each result beside the right one; what should be there and is not is an error."""
    if found.results.keys() != want.keys():
        raise RuntimeError(f"held are {sorted(found.results)}, compared with {sorted(want)}")
    return [(name, found.results[name], right) for name, right in want.items()]


def _trained(task: Task, make: Make, want: Results) -> Entries:
    """The same in bf16, by three times the error of the unsharded run in bf16; all gradients as one."""
    task.ctx.progress.phase("mesh bf16")
    engine = make(TRAINED)
    found = _joined(follow(task, engine, TRAINED).results)
    plain, right = (_joined(engine.expected(whole)) for whole in (unsharded(task, TRAINED), want))
    summands = {"grads": task.ctx.size}  # at most, and in bf16
    return [
        parity.bf16_entry(name, found[name], plain[name], right[name], summands=summands.get(name, 2))
        for name in right
    ]


def _joined(results: Results) -> dict[str, Tensor]:
    """Loss and logits where they are; gradients one after the other, and parameters."""
    found = {name: results[name] for name in ("loss", "logits") if name in results}
    for kind in ("grad", "param"):
        parts = [tensor.reshape(-1) for name, tensor in results.items() if name.startswith(f"{kind}:")]
        found[f"{kind}s"] = torch.cat(parts)
    return found


def held(engine: Engine, elements: int, waiting_elements: int) -> Entries:
    """What this rank holds beside its share, in fp64, with an optimizer of one state."""
    share = elements * EXACT.itemsize
    return [
        memory.entry("params", memory.parameter_bytes(engine.model), share),
        memory.entry("grads", memory.gradient_bytes(engine.model), share),
        memory.entry("optimizer", memory.optimizer_bytes(engine.optimizer), share),
        memory.entry(
            "params between forward and backward", engine.waiting_bytes, waiting_elements * EXACT.itemsize
        ),
    ]
