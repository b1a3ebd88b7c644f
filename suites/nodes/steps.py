"""What the ranks run for the node checks."""

from __future__ import annotations

import os
import socket
from typing import Any

from fixtures.remote.steps import Context, step


@step
def presence(ctx: Context) -> dict[str, Any]:
    """Nothing moves: each rank of the world says where it is, which costs what any warm case costs."""
    return {"rank": ctx.rank, "size": ctx.size, "hostname": socket.gethostname(), "pid": os.getpid()}
