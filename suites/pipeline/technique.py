"""A schedule compared with the unsharded model: order, losses, gradients, and what arrived over each edge.

What arrives over the edges is compared itself: a low bit that flips on the way may be rounded away in every
later gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining

from fixtures.ranks.engines import engine
from fixtures.ranks.groups import Among, divided_into, lasting
from fixtures.ranks.steps import Context
from fixtures.ranks.study import memory, parity
from fixtures.ranks.study.at_size import at_size
from fixtures.ranks.study.driver import (
    EXACT,
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
from fixtures.ranks.study.fitting import fit
from fixtures.ranks.study.overlap import timed_rounds
from fixtures.wire.held import PEAK
from suites.pipeline.figures import given
from suites.pipeline.issued import GROUP, HIDDEN, holds, over_edges, shape_of
from suites.pipeline.recorder import typical
from suites.pipeline.schedules import PLANS, Shape, differing
from suites.pipeline.simulator import Span
from suites.pipeline.stages import (
    ACTIVATION,
    GRADIENT,
    Pipeline,
    Problem,
    gradient_of,
    gradients,
    loss,
)


@dataclass(kw_only=True)
class Scheduled(Technique[Pipeline]):
    """One pipeline under a schedule; `ctx` counts ranks within it, and `among` are its ranks in the world."""

    ctx: Context
    among: Among
    schedule: str
    shape: Shape
    width: int
    rows: int

    def __post_init__(self) -> None:
        self.plan = PLANS[self.schedule]
        self.edges = {self._named(*one): one for one in self._ends(range(self.shape.stages))}
        own = set(self._ends(self.plan.stages_of(self.shape, self.ctx.rank)))
        self.inward = {name: one for name, one in self.edges.items() if one in own}

    def _ends(self, stages: Sequence[int]) -> Iterator[tuple[str, int]]:
        """What comes to these stages from other ranks: activations or gradients, and to which stage."""
        for stage in stages:
            for kind, other in ((ACTIVATION, stage - 1), (GRADIENT, stage + 1)):
                if 0 <= other < self.shape.stages and self._rank_of(other) != self._rank_of(stage):
                    yield kind, stage

    def _named(self, kind: str, stage: int) -> str:
        peer = self._rank_of(stage - 1 if kind == ACTIVATION else stage + 1)
        return f"{kind} from rank {self.among.ranks[peer]} on {self.ctx.hosts[peer]} to stage {stage}"

    def _rank_of(self, stage: int) -> int:
        return self.plan.rank_of(self.shape, stage)

    def problem(self, dtype: torch.dtype) -> Problem:
        """Make the model and its batch."""
        return Problem.make(self.ctx, self.shape, self.width, self.rows, dtype)

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[Pipeline]:
        """Count the second step: in the first the stages agree on their buffers and make them.

        The first has another batch, as what a buffer keeps of it would be right for the same one.
        """
        group, problem = self.among.group, self.problem(dtype)
        pipeline = Pipeline(self.ctx, group, self.schedule, self.shape, problem)
        problem.inputs.neg_()
        pipeline.step()
        problem.inputs.neg_()
        with seen():
            losses = pipeline.step()
        found = pipeline.gradients() | ({"loss": torch.stack(losses).detach()} if losses else {})
        received, count = pipeline.recorder.received, self.shape.micro_batches
        absent = torch.full_like(problem.inputs[: self.rows], torch.nan)
        for name, (kind, stage) in self.inward.items():
            found[name] = torch.cat([received.get((kind, stage, i), absent) for i in range(count)])
        return Left(found, pipeline)

    def reference(self, dtype: torch.dtype) -> Named:
        """Train on the whole batch at once; where sums are rounded, in the same micro-batches."""
        return self.alone(dtype, 1 if dtype is EXACT else self.shape.micro_batches)

    def alone(self, dtype: torch.dtype, pieces: int) -> Named:
        """Train the unsharded model on the batch in `pieces`, one after another.

        Stages send the gradient of the mean of one micro-batch; in a piece of n micro-batches it is 1/n.
        """
        problem, each = self.problem(dtype), self.shape.micro_batches // pieces
        losses: list[torch.Tensor] = []
        came: defaultdict[tuple[str, int], list[torch.Tensor]] = defaultdict(list)
        for inputs, target in zip(problem.inputs.chunk(pieces), problem.targets.chunk(pieces), strict=True):
            outputs, x = [], inputs
            for module in problem.modules:
                x = module(x)
                x.retain_grad()
                outputs.append(x)
            loss(x, target).backward()  # type: ignore[no-untyped-call]
            losses += map(loss, x.detach().chunk(each), target.chunk(each))
            for stage, output in enumerate(outputs):
                came[ACTIVATION, stage + 1].append(output.detach())
                came[GRADIENT, stage].append(gradient_of(output) * each)
        means = {name: one / pieces for name, one in gradients(dict(enumerate(problem.modules))).items()}
        return {"loss": torch.stack(losses), **means} | {
            name: torch.cat(came[one]) for name, one in self.edges.items()
        }

    def part(self, whole: Named, kept: Pipeline) -> Named:
        """The gradients of this rank's stages, what comes to them, and of the last stage the losses."""
        last = ["loss"] if self.shape.stages - 1 in kept.stages else []
        return {name: whole[name] for name in (*last, *kept.gradients(), *self.inward)}

    def beside(self, dtype: torch.dtype, run: Run[Pipeline]) -> Entries:
        """Compare the order with the paper's, and every bit with the same micro-batches on this rank alone.

        ROCm's matrix products do not promise the same bits, nor do large ones on any device.
        """
        done = [span.op for span in run.kept.recorder.spans]
        order = differing(done, self.plan.order(self.shape, self.ctx.rank))
        if torch.version.hip or self.ctx.at_size:
            return [order]
        right = self.part(self.alone(dtype, self.shape.micro_batches), run.kept)
        bits = [parity.equal(f"{name} (micro-batches)", run.results[name], right[name]) for name in right]
        return [order, *bits]

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """Over each edge go m tensors each way."""
        size_bytes = self.rows * self.width * dtype.itemsize
        return [Form(over_edges(self.schedule, self.shape, self.ctx.rank, size_bytes), GROUP)]

    def memory(self, dtype: torch.dtype, run: Run[Pipeline]) -> Entries:
        """Compare what this rank held with its share."""
        modules, held = run.kept.modules.values(), run.kept.recorder.held
        found = {
            "params": sum(memory.parameter_bytes(module) for module in modules),
            "grads": sum(memory.gradient_bytes(module) for module in modules),
            "in-flight micro-batches": held.peak,
            "activations": held.peak_bytes,
        }
        return memory.entries(found, self.holds(dtype))

    def holds(self, dtype: torch.dtype) -> dict[str, int]:
        """The closed form of this rank's memory."""
        sizes = {"width": self.width, "rows": self.rows, "item": dtype.itemsize}
        return holds(self.schedule, self.shape, self.ctx.rank, **sizes)

    def ordered(self, told: dict[str, Any]) -> dict[str, Any]:
        """Number the results in a step's answer."""
        return {**told, **{part: self.in_order(told[part]) for part in ("parity", "repeat")}}

    def peak(self, dtype: torch.dtype) -> int:
        """The ceiling of its closed form."""
        return self.holds(dtype)[PEAK]

    def in_order(self, entries: Entries) -> Entries:
        """Number what arrives over the edges in order: of wrong ones, the first made the others wrong."""
        found = []
        for entry in entries:
            kind, stage = self.edges.get(entry["what"].partition(" (")[0], ("", 0))
            order = {ACTIVATION: stage, GRADIENT: 2 * self.shape.stages - stage}
            found.append({**entry, "order": order[kind]} if kind else entry)
        return found


def run(
    ctx: Context,
    schedule: str,
    *,
    width: int,
    rows: int,
    per_rank: int,
    busy_ms: int,
    repeats: int,
    most: int,
) -> dict[str, Any]:
    """Run a schedule of `per_rank` micro-batches per rank and `rows` rows each, in pipelines of `most` ranks.

    For the bubble every stage takes a calibrated time, such that a rank is busy for `busy_ms` in each of
    `repeats` rounds at most. A torch that is too old for the schedule is no fault: the case is n/a.
    """
    shape = shape_of(schedule, ctx.size, per_rank, most)
    _fit(ctx, shape, width, rows)
    engine(ctx, pipelining.__name__, [PLANS[schedule].torch_name])
    with pipeline_of(ctx, shape.ranks) as among:
        own = among.context(ctx)
        technique = Scheduled(ctx=own, among=among, schedule=schedule, shape=shape, width=width, rows=rows)
        if ctx.at_size:
            return technique.ordered(at_size(own, technique))
        found = study(own, technique)
        ctx.progress.phase("bubble")
        rounds = _paced_rounds(found.runs[EXACT].kept, busy_ms / 1e3, repeats)
    spans = typical(rounds)
    return {
        **technique.ordered(answer(found)),
        "samples": len(rounds),
        "schedule": {
            "pipeline": min(among.ranks),
            "place": own.rank,
            "formula": PLANS[schedule].formula,
            "operations": [[*span.op, round(span.begin_s, 6), round(span.end_s, 6)] for span in spans],
        },
    }


def _paced_rounds(pipeline: Pipeline, busy_s: float, repeats: int) -> list[list[Span]]:
    """What this rank did when, in each round with stages of known length."""
    rounds: list[list[Span]] = []
    with pipeline.recorder.paced(given(pipeline.shape, busy_s)):
        timed_rounds(pipeline.ctx, [pipeline.step], repeats, lambda: rounds.append(pipeline.recorder.spans))
    return rounds


@contextmanager
def pipeline_of(ctx: Context, ranks: int) -> Iterator[Among]:
    """Cut the world into pipelines of `ranks`, stages outermost, so that neighbours are far apart.

    Rank r is stage r // n of pipeline r % n, where there are n pipelines.
    """
    pipelines = ctx.size // ranks
    members = [range(first, ctx.size, pipelines) for first in range(pipelines)]
    group: Any = divided_into(members) if pipelines > 1 else dist.group.WORLD
    # A backend's first call in a group must be one that all of its ranks make, unlike those of the edges.
    dist.all_reduce(torch.zeros(1, device=ctx.device), group=group)
    with lasting([group]):
        yield Among.of(group)


def _fit(ctx: Context, shape: Shape, width: int, rows: int) -> None:
    """Refuse a model that does not fit.

    A weight takes 20 bytes: 12 in the unsharded run in fp32 (itself, its gradient and a copy of that), 6 in
    the one in bf16, and 2 on this rank. Each stage has a row twice in fp32 and twice in bf16: its activation
    and its gradient. Both unsharded runs take 6 operations per row and weight.
    """
    weights, all_rows = 3 * HIDDEN * width**2 * shape.stages, shape.micro_batches * rows
    fit(ctx, 20 * weights + 12 * all_rows * width * shape.stages, 12 * all_rows * weights)
