"""The process groups of a rank along each line (`suites.mesh.moe.issued` defines the lines)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fixtures.ranks.groups import Among, divided_into, lasting
from fixtures.ranks.steps import Context
from suites.mesh.moe.issued import LINES, Axes
from suites.tensor.regions import Group


@dataclass(frozen=True)
class Grid:
    """A rank's group along each line."""

    ctx: Context
    axes: Axes
    lines: dict[str, Among]

    def group(self, line: str) -> Group:
        """This rank's group along a line."""
        met = self.lines[line]
        return Group(met.ranks.index(self.ctx.rank), len(met.ranks), met.group)

    @property
    def used(self) -> list[Among]:
        """The lines with several ranks."""
        return [line for line in self.lines.values() if len(line.ranks) > 1]


@contextmanager
def on_grid(ctx: Context, axes: Axes) -> Iterator[Grid]:
    """Make the groups of every line, in the same order on all ranks; destroy them unless work fails."""
    lines = {name: _line(ctx, name, axes.members(name)) for name in LINES}
    with lasting([line.group for line in lines.values()]):
        yield Grid(ctx, axes, lines)


def _line(ctx: Context, name: str, groups: list[list[int]]) -> Among:
    group = divided_into(groups) if len(groups[0]) > 1 else None
    return Among(next(members for members in groups if ctx.rank in members), group, name)
