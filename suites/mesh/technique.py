"""Training on a mesh as one technique, with its traffic compared axis by axis; and the answer of its step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fixtures.ranks.exact.compare import MOST_REPORTED
from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, models
from fixtures.ranks.study.at_size import at_size
from fixtures.ranks.study.driver import (
    Entries,
    Form,
    Left,
    Named,
    Run,
    Seen,
    Technique,
    answer,
    study,
)
from fixtures.ranks.study.models import gradient_of
from fixtures.ranks.study.overlap import seconds_of
from fixtures.ranks.study.pattern import Move, sent
from fixtures.ranks.study.traffic import Expected
from fixtures.ranks.study.updates import Sgd, Updates
from suites.context.ring_attention import wide
from suites.mesh import placement
from suites.zero.training import of_kind

RULE = Sgd(rate=0.05, momentum=0.9)
SIZE_BYTES = 1 << 16  # of an exact payload; a GPU gets larger ones
Issued = Mapping[str, tuple[Any, Expected]]  # by axis: its group or ranks, and the closed form


class Engine(Protocol):
    """A model on one rank, divided along all axes."""

    optimizer: torch.optim.Optimizer
    updates: Updates

    def step(self, number: int) -> Named:
        """Train with this rank's tokens of a batch; give the results that this rank has."""

    def weights(self) -> Mapping[str, nn.Parameter]:
        """This rank's parameters, by their names in the whole model."""

    def part(self, whole: Named) -> Named:
        """This rank's part of whole results."""


AnEngine = TypeVar("AnEngine", bound=Engine)


class Combined(Technique[AnEngine]):
    """Several axes together. `adding`: the most ranks that add up a gradient."""

    joined = ("grad", "param")
    ctx: Context
    steps: int
    adding: int

    @abstractmethod
    def make(self, dtype: torch.dtype) -> AnEngine:
        """Make this rank's engine."""

    @abstractmethod
    def issued(self, dtype: torch.dtype) -> Issued:
        """The closed forms of one training step, for every axis."""

    @abstractmethod
    def holds(self, dtype: torch.dtype) -> Mapping[str, int]:
        """The closed form of this rank's memory, in bytes."""

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[AnEngine]:
        """Train; the calls of the last step, the steady state, are counted."""
        engine = self.make(dtype)
        engine.updates = Updates(parameters_of(engine.weights()), RULE)
        steps = []
        for number in range(self.steps):
            with seen() if number == self.steps - 1 else nullcontext():
                steps.append(engine.step(number))
            engine.updates.follow(gradients_of(engine.weights()))
            self.ctx.progress.done(number + 1)
        found = stacked(steps) | trained(engine.weights())
        return Left({name: tensor.clone() for name, tensor in found.items()}, engine)

    def part(self, whole: Named, kept: AnEngine) -> Named:
        """The engine's part of whole results."""
        return kept.part(whole)

    def summands(self, what: str) -> int:
        """Gradients are added up in the dtype of the run."""
        return self.adding if what == "grads" else 2

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """One for each group."""
        return [Form(calls, name, group) for name, (group, calls) in self.issued(dtype).items()]

    def beside(self, dtype: torch.dtype, run: Run[AnEngine]) -> Entries:
        """Compare the updates with their rule."""
        return run.kept.updates.entries(parameters_of(run.kept.weights()))

    def memory(self, dtype: torch.dtype, run: Run[AnEngine]) -> Entries:
        """Compare what the engine holds with the closed form."""
        return memory.entries(self.found(run.kept), self.holds(dtype))

    def found(self, engine: AnEngine) -> dict[str, int]:
        """Bytes of parameters, gradients, and an optimizer of one state."""
        weights = engine.weights().values()
        return {
            "params": sum(map(memory.tensor_bytes, weights)),
            "grads": sum(memory.tensor_bytes(gradient_of(weight)) for weight in weights),
            "optimizer": memory.optimizer_bytes(engine.optimizer),
        }


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy, in fp32 at least: one number in bf16 would say little."""
    return models.loss(logits.to(wide(logits.dtype)), targets)


def stacked(steps: Sequence[Named]) -> dict[str, Tensor]:
    """The results of every step, each in one tensor."""
    return {what: torch.stack([one[what].detach() for one in steps]) for what in steps[0]}


def trained(weights: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Gradients of the last step and parameters; of distributed tensors this rank's part."""
    return {**of_kind("grad", gradients_of(weights)), **of_kind("param", parameters_of(weights))}


def gradients_of(weights: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradients; of distributed tensors this rank's part."""
    return {name: memory.local(gradient_of(weight)) for name, weight in weights.items()}


def parameters_of(weights: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The weights, likewise."""
    return {name: memory.local(weight) for name, weight in weights.items()}


def told(
    ctx: Context, technique: Combined[Any], axes: Sequence[Among], patterns: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Study the technique, time one more step, and send each axis' pattern with exact payloads."""
    if ctx.at_size:
        return at_size(ctx, technique)
    found = study(ctx, technique)
    ctx.progress.phase("timed step")
    engine = found.runs[technique.dtypes[-1]].kept
    step_s = seconds_of(ctx, lambda: engine.step(technique.steps))
    moved = {
        axis.name: sent(ctx, [Move(kind, SIZE_BYTES, axis) for kind in patterns[axis.name]]) for axis in axes
    }
    bandwidths = {f"{name}_bandwidth": one["figures"]["pattern"] for name, one in moved.items()}
    return {
        **answer(found),
        "placement": placement.entries(ctx, axes),
        "wrong": [wrong for one in moved.values() for wrong in one["wrong"]][:MOST_REPORTED],
        "figures": {"step_seconds": step_s, **bandwidths},
        "samples": min(one["samples"] for one in moved.values()),
        "moved": [{**said, "name": name} for name, one in moved.items() for said in one["moved"]],
    }
