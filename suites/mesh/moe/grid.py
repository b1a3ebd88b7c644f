"""Where a rank stands among pipeline, data, context, tensor and expert parallelism, and whom it meets there.

With P stages, D data shards, C parts of a sequence and T shares of the attention, tensor is innermost:

    rank = ((stage * D + data) * C + context) * T + tensor

Experts fold the D C T ranks of a stage a second way: `expert` consecutive ranks together have all experts,
and there are D C T / expert such sets (Liu et al.: "MoE Parallel Folding", arXiv:2504.14960, section 3; the
order is that of Megatron-Core's parallel_state, tp-cp-ep-dp-pp). The lines along which ranks meet:

    pp       the ranks of all stages with the same data, context and tensor
    tp, cp   the shares of one attention; the parts of one sequence
    dp_cp    all that have the same dense weights of a stage: data and context together
    ep       a set of experts
    edp      all that have the same experts
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fixtures.ranks.groups import Among, divided_into, lasting
from fixtures.ranks.steps import Context
from suites.tensor.regions import Group

LINES = ("pp", "tp", "cp", "dp_cp", "ep", "edp")


@dataclass(frozen=True)
class Axes:
    """How many ranks there are along each axis; `expert` folds the ranks of a stage."""

    stages: int
    data: int
    context: int
    tensor: int
    expert: int

    @property
    def stage_ranks(self) -> int:
        """Ranks of one stage."""
        return self.data * self.context * self.tensor

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.stages * self.stage_ranks

    def coordinates(self, rank: int) -> tuple[int, int, int, int]:
        """Give stage, data, context and tensor of a rank."""
        rest, tensor = divmod(rank, self.tensor)
        rest, context = divmod(rest, self.context)
        stage, data = divmod(rest, self.data)
        return stage, data, context, tensor

    def members(self, line: str) -> list[list[int]]:
        """Give all groups of a line, each in the order of its axis."""
        dense = torch.arange(self.ranks).view(self.stages, self.data, self.context, self.tensor)
        folded = dense.reshape(self.stages, -1, self.expert)
        found = {
            "pp": dense.movedim(0, -1),
            "tp": dense,
            "cp": dense.movedim(2, -1),
            "dp_cp": dense.permute(0, 3, 1, 2).flatten(2),
            "ep": folded,
            "edp": folded.movedim(1, -1),
        }[line]
        groups: list[list[int]] = found.reshape(-1, found.shape[-1]).tolist()
        return groups


def combined(ranks: int) -> Axes:
    """Deal out ranks to all five axes.

    A factor of 2 goes to stages, then to tensor, then to context; what is left is data. Experts are folded
    over context and tensor, or over data where both are 1:

        ranks    stages  data      context  tensor  expert
        2        2       1         1        1       1
        4        2       1         1        2       2
        8        2       1         2        2       4
        16       2       2         2        2       4
        8 x n    2       n         2        2       4
    """
    stages, left = _halved(ranks)
    tensor, left = _halved(left)
    context, data = _halved(left)
    return Axes(stages, data, context, tensor, tensor * context if tensor > 1 else data)


def replicated(ranks: int, stages: int = 1) -> Axes:
    """Deal out a stage's ranks to experts and two replicas of them; one set where they are few or odd."""
    data = ranks // stages
    sets = 2 if data >= 4 and data % 2 == 0 else 1
    return Axes(stages, data, 1, 1, data // sets)


def _halved(ranks: int) -> tuple[int, int]:
    return (2, ranks // 2) if ranks % 2 == 0 else (1, ranks)


@dataclass(frozen=True)
class Grid:
    """A rank's coordinates, and whom it meets along each line."""

    ctx: Context
    axes: Axes
    lines: dict[str, Among]

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Stage, data, context and tensor."""
        return self.axes.coordinates(self.ctx.rank)

    def group(self, line: str) -> Group:
        """Its group along a line."""
        met = self.lines[line]
        return Group(met.ranks.index(self.ctx.rank), len(met.ranks), met.group)

    @property
    def used(self) -> list[Among]:
        """The lines on which there is somebody to meet."""
        return [line for line in self.lines.values() if len(line.ranks) > 1]


@contextmanager
def on_grid(ctx: Context, axes: Axes) -> Iterator[Grid]:
    """Make the groups of every line, in the same order on all ranks, for as long as the work goes well."""
    lines = {name: _line(ctx, name, axes.members(name)) for name in LINES}
    with lasting([line.group for line in lines.values()]):
        yield Grid(ctx, axes, lines)


def _line(ctx: Context, name: str, groups: list[list[int]]) -> Among:
    group = divided_into(groups) if len(groups[0]) > 1 else None
    return Among(next(members for members in groups if ctx.rank in members), group, name)
