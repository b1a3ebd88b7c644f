"""Which nodes have the fault: drawn at random, and the same ones again for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence


def fresh_seed() -> int:
    """A seed that nobody has chosen."""
    return random.SystemRandom().randrange(1 << 32)


def draw(nodes: Sequence[str], count: int, seed: int, row: str, repeat: int) -> tuple[str, ...]:
    """Draw nodes for one repeat of one row."""
    # Whoever has the seed must get the same nodes: a secret is the last thing this should be.
    chance = random.Random(f"{seed}/{row}/{repeat}")  # noqa: S311
    return tuple(chance.sample(list(nodes), count))
