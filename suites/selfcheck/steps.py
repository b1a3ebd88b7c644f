"""What the ranks run for the self-check: real steps, with a fault in one rank."""

from __future__ import annotations

from typing import Any

from fixtures.ranks.steps import Context, step
from suites.selfcheck import plant as faults


@step
def planted(ctx: Context, *, name: str, parameters: dict[str, Any], plant: dict[str, Any]) -> dict[str, Any]:
    """Run the step `name` with these parameters while a fault is planted in the rank that `plant` names."""
    return faults.run(ctx, name, parameters, plant)
