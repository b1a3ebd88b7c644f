"""How much healthy values of one figure differ, which of them are outliers, and what limit to ask for.

Sources: the modified z score of Iglewicz and Hoaglin (1993) with its cut of 3.5; the iterative trim of
SuperBench (microsoft/superbenchmark@700d650 superbench/analyzer/baseline_generation.py), which starts from
the mean: here it starts from the median, which a minority of bad values hardly moves.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from thresholds.peers import CUT, median_and_spread
from thresholds.units import METRICS

# 1024 nodes times 50 figures fail by chance once in a hundred acceptances: the normal tail beyond 5.1 sigma.
Z = 5.1
# An estimate of sigma from n values has a relative error of 1/sqrt(2(n-1)); 1.645 of that is its upper 95 %.
UPPER = 1.645
HEALTHY_SLOW = 0.05  # the assumed share of spikes on a healthy link, where fewer were seen
FEWEST_TO_COMPARE = 3
MOST_STRAYS = 0.2  # of healthy values; where more are outliers, they are normal and count as noise


@dataclass(frozen=True)
class Tolerance:
    """The tolerance of one kind of figure: shares of the median, or plain amounts for figures without unit.

    Values less than `apart` from the median are never outliers. `least` is the smallest margin between the
    median and a limit. Where the noise asks for more than `most`, the values disagree too much for a limit.
    """

    apart: float
    least: float
    most: float
    relative: bool = True

    def shown(self, amount: float) -> str:
        """An amount in readable form."""
        return f"{100 * amount:.3g} %" if self.relative else f"{amount:.3g}"


RATE = Tolerance(0.03, 0.05, 0.15)  # 5 %: SuperBench's regression; a floor below 0.85 of healthy is too loose
WHOLE = Tolerance(0.03, 0.10, 0.30)  # one of twenty iterations that takes three times as long costs a tenth
TIME = Tolerance(0.15, 0.25, 1.0)
PLAIN = Tolerance(0.05, 0.10, 0.45, relative=False)
SLOW = Tolerance(0.10, 0.10, 0.45, relative=False)
SLOW_AT_MOST = 0.5  # no more can be slower than their own median


def tolerance(metric: str) -> Tolerance:
    """The tolerance of a metric, by its name or unit."""
    if metric in ("busbw_mean", "slow_fraction"):
        return WHOLE if metric == "busbw_mean" else SLOW
    unit = METRICS[metric].unit
    return PLAIN if unit == "" else TIME if unit in ("us", "s") else RATE


@dataclass(frozen=True)
class Noise:
    """The median of n healthy values, their standard deviation, their spread (max - min), and the margin."""

    n: int
    median: float
    sigma: float
    spread: float
    margin: float


def outliers(values: Sequence[float], allowed: Tolerance) -> list[int]:
    """Positions of the outliers, which are trimmed until no more are left.

    A value is an outlier when its modified z, 0.6745 (x - median) / MAD, is beyond 3.5 and it is `apart` as
    well: the cut alone finds an outlier among eight healthy values in one case of thirteen.
    """
    kept = list(range(len(values)))
    while len(kept) >= FEWEST_TO_COMPARE:
        middle, spread = median_and_spread(values[index] for index in kept)
        apart = allowed.apart * middle if allowed.relative else allowed.apart
        edge = max(CUT * spread, apart)
        inside = [index for index in kept if abs(values[index] - middle) <= edge]
        if len(inside) == len(kept):
            break
        kept = inside
    return sorted(set(range(len(values))) - set(kept))


def strays(values: Sequence[float], allowed: Tolerance) -> list[int]:
    """The outliers among values that are taken for healthy, as long as they are few."""
    found = outliers(values, allowed)
    return found if len(found) <= MOST_STRAYS * len(values) else []


def noise(values: Sequence[float], allowed: Tolerance, iterations: int = 0) -> Noise:
    """Measure the noise, and from it the margin.

    The noise of a share that was counted over `iterations` is known: sqrt(p(1-p)/n).
    """
    middle = statistics.median(values)
    scale = middle if allowed.relative and middle > 0 else 1.0
    sigma = statistics.stdev(values) / scale if len(values) > 1 else 0.0
    uncertain = sigma * (1 + UPPER / math.sqrt(2 * max(1, len(values) - 1)))
    if iterations:
        share = min(max(middle, HEALTHY_SLOW), 0.5)
        uncertain = math.sqrt(share * (1 - share) / iterations)
    spread = (max(values) - min(values)) / scale
    return Noise(len(values), middle, sigma, spread, max(Z * uncertain, allowed.least))


def limit(found: Noise, allowed: Tolerance, *, more_is_better: bool) -> float:
    """The value a margin away from the median, rounded away from it to three digits."""
    step = found.margin * (found.median if allowed.relative else 1.0)
    return rounded(found.median - step if more_is_better else found.median + step, up=not more_is_better)


def rounded(value: float, *, up: bool) -> float:
    """Three significant digits, in one direction."""
    if value <= 0:
        return 0.0
    places = 2 - math.floor(math.log10(value))
    scaled = value * 10.0**places
    whole = math.ceil(scaled - 1e-9) if up else math.floor(scaled + 1e-9)
    return float(f"{whole}e{-places}")
