"""What the ranks run for the checks of single nodes."""

from __future__ import annotations

from typing import Any

from fixtures.remote.facts import rank_facts
from fixtures.remote.steps import Context, step


@step
def present(ctx: Context) -> dict[str, Any]:
    """Say who this rank is and what it runs with."""
    return {
        "size": ctx.size,
        "backend": ctx.backend,
        "local_rank": ctx.local_ranks[ctx.rank],
        "device": str(ctx.device),
        "facts": rank_facts(),
    }
