"""What a ceiling on slow iterations sees of a fault that comes and goes: the binomial distribution.

Of n iterations each is slow with probability p. A ceiling c on their share fails a case when more than c n
are slow, which happens to a link that is slow in a tenth of its iterations with a probability that grows with
n, and to a healthy one, where a daemon wakes up now and then, with one that falls.
"""

from __future__ import annotations

import math


def fails(samples: int, ceiling: float, rate: float) -> float:
    """The probability that more than the share `ceiling` of so many iterations are slow."""
    return at_least(math.floor(ceiling * samples + 1e-9) + 1, samples, rate)


def at_least(count: int, samples: int, rate: float) -> float:
    """The probability that `count` or more of so many are slow: the upper tail of the binomial."""
    below = sum(math.comb(samples, k) * rate**k * (1 - rate) ** (samples - k) for k in range(count))
    return max(0.0, 1.0 - below)
