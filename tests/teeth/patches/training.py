"""What a stack could do wrong before it trains: replacements of torch's calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from tests.teeth.bug import Patch, replaced

Call = Callable[..., Any]


def start(make: Callable[[Call], Call]) -> Patch:
    """Replace what gives every rank the first one's weights."""
    return lambda: replaced(dist, "_broadcast_coalesced", make)


def last_rank(original: Call) -> Call:
    """Those of the last rank win."""

    def call(group: Any, tensors: Any, size: int, _source: int) -> Any:
        return original(group, tensors, size, dist.get_world_size() - 1)

    return call
