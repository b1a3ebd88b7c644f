"""What the ranks run when everything else is over."""

from __future__ import annotations

from typing import Any

from fixtures.node.inventory import read
from fixtures.ranks.steps import Context, step


@step
def inventory(ctx: Context) -> dict[str, Any]:
    """Read the node again, as its supervisor did before any load; its first rank reads for all."""
    if ctx.local_ranks[ctx.rank]:
        return {}
    return {"inventory": read()}
