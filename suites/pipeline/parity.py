"""A pipeline's results beside the unsharded model's: order, losses, gradients, and what came over each edge.

What came over the edges is compared itself: a low bit that flips on its way may be rounded away in every
gradient behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from fixtures.ranks.study import parity
from suites.pipeline.recorder import Receipts
from suites.pipeline.schedules import PLANS
from suites.pipeline.stages import ACTIVATION, GRADIENT, Layer, Pipeline, Problem, gradients, loss


@dataclass(frozen=True)
class Trained:
    """What a training step came to on this rank; `received` is empty on the edges that it does not have."""

    losses: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    received: Receipts = field(default_factory=dict)


def train(pipeline: Pipeline) -> Trained:
    """Run a step of the pipeline."""
    losses = pipeline.step()
    return Trained(losses, pipeline.gradients(), pipeline.recorder.received)


def order(pipeline: Pipeline, schedule: str) -> list[dict[str, Any]]:
    """Compare what was done with what the paper says: the number of places where they differ."""
    done = [span.op for span in pipeline.recorder.spans]
    wanted = PLANS[schedule].order(pipeline.shape, pipeline.ctx.rank)
    missing = abs(len(done) - len(wanted))
    differ = sum(a != b for a, b in zip(done, wanted)) + missing  # noqa: B905 - what is missing is counted
    return [{"what": "order", "error": float(differ), "tolerance": 0.0}]


def whole_batch(pipeline: Pipeline, found: Trained) -> list[dict[str, Any]]:
    """Compare with the unsharded model on the whole batch at once, to 1e-10."""
    problem = pipeline.problem
    _forget(problem)
    loss(_through(problem.modules, problem.inputs)[-1], problem.targets).backward()  # type: ignore[no-untyped-call]
    whole = gradients(pipeline.modules)
    return [parity.entry(f"whole batch:grad:{name}", found.gradients[name], whole[name]) for name in whole]


def micro_batched(
    pipeline: Pipeline, schedule: str, found: Trained, prefix: str = ""
) -> list[dict[str, Any]]:
    """Do the same micro-batches one after another on this rank alone: the very same bits.

    ROCm's matrix products do not promise them: where the bits may differ, `_near` says by how much.
    """
    compare = _near if torch.version.hip else parity.equal
    return _entries(pipeline, schedule, found, _alone(pipeline), prefix, compare)


def repeated(pipeline: Pipeline, schedule: str, found: Trained) -> list[dict[str, Any]]:
    """Do it again: the same bits."""
    return _entries(pipeline, schedule, train(pipeline), found, "")


def _alone(pipeline: Pipeline) -> Trained:
    """Train the unsharded model; it receives nothing, but has at each stage what would be received."""
    problem, count = pipeline.problem, pipeline.shape.micro_batches
    _forget(problem)
    losses: list[torch.Tensor] = []
    received: Receipts = {}
    for i, (x, target) in enumerate(
        zip(problem.inputs.chunk(count), problem.targets.chunk(count), strict=True)
    ):
        outputs = _through(problem.modules, x)
        losses.append(loss(outputs[-1], target))
        losses[-1].backward()  # type: ignore[no-untyped-call]
        for stage, output in enumerate(outputs):
            received[ACTIVATION, stage + 1, i] = output.detach()
            received[GRADIENT, stage, i] = _gradient_of(output)
    summed = gradients(pipeline.modules)
    return Trained(losses, {name: one.div_(count) for name, one in summed.items()}, received)


def _through(modules: list[Layer], x: torch.Tensor) -> list[torch.Tensor]:
    """Give the outputs of all stages; each keeps the gradient that comes back to it."""
    outputs = []
    for module in modules:
        x = module(x)
        x.retain_grad()
        outputs.append(x)
    return outputs


def _gradient_of(output: torch.Tensor) -> torch.Tensor:
    return torch.full_like(output, torch.nan) if output.grad is None else output.grad


def _forget(problem: Problem) -> None:
    for module in problem.modules:
        module.zero_grad()


def _near(what: str, found: torch.Tensor, right: torch.Tensor) -> dict[str, Any]:
    """Compare two runs in the same dtype, either of which may be as far off as a run in bf16 usually is."""
    narrow = 2 * parity.BF16_FACTOR * parity.BF16_ROUNDOFF
    tolerance = parity.TOLERANCE if found.dtype == torch.float64 else narrow
    return parity.entry(what, found, right, tolerance)


def _entries(  # noqa: PLR0917 - what is compared with what, and how
    pipeline: Pipeline,
    schedule: str,
    found: Trained,
    right: Trained,
    prefix: str,
    compare: Callable[[str, torch.Tensor, torch.Tensor], dict[str, Any]] = parity.equal,
) -> list[dict[str, Any]]:
    """What comes over the edges says in which order: of wrong ones the first made the others wrong."""
    entries = []
    if pipeline.shape.stages - 1 in pipeline.stages:
        pair = torch.stack(found.losses), torch.stack(right.losses)
        entries.append(compare(f"{prefix}loss", *pair))
    for name, gradient in found.gradients.items():
        entries.append(compare(f"{prefix}grad:{name}", gradient, right.gradients[name]))
    for kind, stage, peer in _inward(pipeline, schedule):
        pair = (
            _stacked(found.received, pipeline, kind, stage),
            _stacked(right.received, pipeline, kind, stage),
        )
        made = compare(f"{prefix}{kind} from {peer} to stage {stage}", *pair)
        entries.append({**made, "order": stage if kind == ACTIVATION else 2 * pipeline.shape.stages - stage})
    return entries


def _inward(pipeline: Pipeline, schedule: str) -> list[tuple[str, int, str]]:
    """List what comes to this rank: activations or gradients, to which stage, and from whom."""
    plan, shape, ctx = PLANS[schedule], pipeline.shape, pipeline.ctx
    world = dist.get_process_group_ranks(pipeline.group)
    found = []
    for stage in pipeline.stages:
        for kind, other in ((ACTIVATION, stage - 1), (GRADIENT, stage + 1)):
            peer = plan.rank_of(shape, other) if 0 <= other < shape.stages else ctx.rank
            if peer != ctx.rank:
                found.append((kind, stage, f"rank {world[peer]} on {ctx.hosts[peer]}"))
    return found


def _stacked(received: Receipts, pipeline: Pipeline, kind: str, stage: int) -> torch.Tensor:
    """Put what came in for all micro-batches one after another; what did not is not a number."""
    problem, count = pipeline.problem, pipeline.shape.micro_batches
    absent = torch.full_like(problem.inputs.chunk(count)[0], torch.nan)
    return torch.cat([received.get((kind, stage, i), absent) for i in range(count)])
