"""What a ceiling on slow iterations sees of a fault that comes and goes: the binomial distribution.

Of n iterations each is slow with probability p. A ceiling c on their share fails a case when more than c n
are slow, which happens to a link that is slow in a tenth of its iterations with a probability that grows with
n, and to a healthy one, where a daemon wakes up now and then, with one that falls.
"""

from __future__ import annotations

import math


def fails(samples: int, ceiling: float, rate: float) -> float:
    """The probability that more than the share `ceiling` of so many iterations are slow."""
    most = math.floor(ceiling * samples + 1e-9)
    within = sum(
        math.comb(samples, count) * rate**count * (1 - rate) ** (samples - count) for count in range(most + 1)
    )
    return max(0.0, 1.0 - within)
