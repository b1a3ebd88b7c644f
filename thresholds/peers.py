"""Compare a value with its peers: whether a figure is an outlier, or a value differs from most others.

An outlier is far outside the spread of its peers, and behind them by more than a margin. The spread is the
median absolute deviation (MAD) from the median, and the modified z of a value x is 0.6745 (x - median) / MAD;
beyond 3.5 it is an outlier (B. Iglewicz, D. Hoaglin, "How to Detect and Handle Outliers", 1993). That rule
alone convicts a node in one of four healthy clusters of a thousand nodes and, where nearly all values are
equal, the smallest difference. So a value must also be behind by a margin of the median. Nothing is seen
where half or more of the values are bad, and few values have no spread: absolute limits are for those cases.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import Field

from thresholds.loading.fields import MetricName, MetricNames, Section, Sentence, Share

Name = TypeVar("Name")

CUT = 3.5
_SCALE = 0.6745  # the MAD of a normal distribution, in standard deviations
LEAST = 6  # values, the judged one among them: two bad ones of four hide each other
FEWEST = 4  # the lowest LEAST that a file may set
MARGIN = 0.05
# Wider where equal parts differ: devices of one model by 8 % in matrix products (P. Sinha et al., "Not All
# GPUs Are Created Equal", SC 2022), copies by 5 to 10 % from run to run (NVIDIA/cuda-samples#449); and an
# interrupt is a large part of the time of a small message.
MARGINS: Mapping[str, float] = {
    "tflops": 0.10,
    "mfu": 0.10,
    "host_to_device": 0.10,
    "device_to_host": 0.10,
    "peer_to_peer": 0.10,
    "latency": 0.30,
}


class Rules(Section):
    """[peers]: a margin for all metrics or for single ones, and how many values there must be.

    `without_limit` names metrics that are compared with peers although no row limits them.
    """

    margin: Share | None = None
    margins: dict[MetricName, Share] = Field({})
    least: Annotated[int, Field(ge=FEWEST, le=1_000_000)] = LEAST
    without_limit: MetricNames = Field([])
    source: Sentence

    def margin_of(self, metric: str) -> float:
        """The share of the median by which an outlier in this metric must be behind."""
        default = MARGINS.get(metric, MARGIN) if self.margin is None else self.margin
        return self.margins.get(metric, default)


DEFAULT = Rules(source="the default margins of thresholds/peers.py")


@dataclass(frozen=True)
class Standing:
    """One value among its peers.

    `behind` is the share of the median's speed that it lacks, below 0 if it is faster; `z` is above 0 where
    it is worse.
    """

    value: float
    median: float
    z: float
    behind: float
    peers: int

    def outlier(self, margin: float) -> bool:
        """Whether it is outside the spread and also behind by the margin."""
        return self.z > CUT and self.behind > margin


def standing(value: float, everyone: Sequence[float], *, more_is_better: bool) -> Standing:
    """Compare a value with everyone's, itself included or not; all are above 0."""
    middle, spread = median_and_spread(everyone)
    worse = middle - value if more_is_better else value - middle
    beyond = math.copysign(math.inf, worse) if worse else 0.0  # where nearly all are equal
    return Standing(
        value=value,
        median=middle,
        z=worse / spread if spread else beyond,
        behind=behind(value, middle, more_is_better=more_is_better),
        peers=len(everyone),
    )


def median_and_spread(values: Iterable[float]) -> tuple[float, float]:
    """Return the median, and the MAD scaled to the standard deviation of a normal distribution."""
    everyone = list(values)
    middle = statistics.median(everyone)
    return middle, statistics.median(abs(value - middle) for value in everyone) / _SCALE


def behind(value: float, median: float, *, more_is_better: bool) -> float:
    """The share of the median's speed that a value lacks; the speed of a time is its inverse."""
    return 1.0 - (value / median if more_is_better else median / value)


def near_median(values: Mapping[Name, float], share: float) -> list[Name]:
    """Return the names whose values differ from the median by no more than a share of it."""
    middle = statistics.median(values.values())
    return [name for name, value in values.items() if abs(value - middle) <= share * abs(middle)]


def by_value(values: Mapping[Name, Hashable]) -> list[list[Name]]:
    """Group the names that have the same value, in the order in which they come."""
    groups: dict[Hashable, list[Name]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return list(groups.values())


def majority(values: Mapping[Name, Hashable]) -> list[Name]:
    """Return the names with the value of more than half; none where no value has a majority."""
    largest = max(by_value(values), key=len, default=[])
    return largest if 2 * len(largest) > len(values) else []
