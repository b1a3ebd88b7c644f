"""From the times of all ranks to the figures that are judged; an iteration is as long as its slowest rank."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from fixtures.wire.collectives import BARRIER, COLLECTIVES
from thresholds.units import is_finite

LEAST_S = 1e-7  # a call takes longer on any machine: a shorter time is one in another unit, or made up
SLOW = 0.8  # an iteration is slow when it ran at less than this share of the median's speed


class SampleError(Exception):
    """The samples give no figure; what needs it is unchecked, for this reason."""


def iteration_seconds(ranks: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Seconds of each iteration, from one list of seconds per rank: those of the slowest rank."""
    if not ranks:
        raise SampleError("no rank reported its times")
    lengths = sorted({len(times) for times in ranks})
    if len(lengths) > 1:
        raise SampleError(f"ranks report different numbers of iterations: {', '.join(map(str, lengths))}")
    if lengths == [0]:
        raise SampleError("the ranks report no iteration")
    for rank, times in enumerate(ranks):
        _check(times, f"rank {rank}, ")
    return tuple(max(times) for times in zip(*ranks, strict=True))


def bandwidth(collective: str, ranks: int, size_bytes: int, seconds: Sequence[float]) -> dict[str, float]:
    """The judged figures of one size: busbw (median), busbw_mean (total), slow_fraction."""
    if size_bytes <= 0:
        raise SampleError(f"{size_bytes} bytes have no bandwidth")
    try:
        return {
            "busbw": busbw(collective, ranks, size_bytes, _median(seconds)),
            "busbw_mean": busbw(collective, ranks, size_bytes, statistics.fmean(seconds)),
            "slow_fraction": slow_fraction(seconds),
        }
    except ValueError as error:
        raise SampleError(str(error)) from error


def latency(seconds: Sequence[float]) -> dict[str, float]:
    """The figures of one small size in microseconds: latency (median) and latency_p99."""
    median = _median(seconds)
    p99 = sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]  # nearest rank: the slowest of less than 100
    return {"latency": median * 1e6, "latency_p99": p99 * 1e6}


def slow_fraction(seconds: Sequence[float]) -> float:
    """The share of iterations slower than median / 0.8: an intermittent fault does not move a median."""
    edge = _median(seconds) / SLOW
    return sum(second > edge for second in seconds) / len(seconds)


def quick(seconds: Sequence[float]) -> float:
    """The 10th percentile of the seconds: what the part can do undisturbed."""
    return sorted(seconds)[len(seconds) // 10]


def slope(windows_s: Sequence[float]) -> float:
    """1 - v_last / v_first, with the median speed v of the first and of the last quarter of equal windows.

    Below 0 the device became faster, 0.5 is half the speed. Quarters of the windows and not of the time: one
    long stall would be all of the last quarter of the time, and is no slope.
    """
    quarter = len(windows_s) // 4
    return 1.0 - _median(windows_s[:quarter]) / _median(windows_s[-quarter:])


def _median(seconds: Sequence[float]) -> float:
    if not seconds:
        raise SampleError("there is no iteration to take a median of")
    _check(seconds)
    return statistics.median(seconds)


def no_time(times: Sequence[float]) -> int | None:
    """The first iteration that took no time; of maybe millions, single ones are read only to find it."""
    if set(map(type, times)) == {float} and min(times) >= LEAST_S and math.isfinite(sum(times)):
        return None
    return next((n for n, seconds in enumerate(times) if not is_finite(seconds) or seconds < LEAST_S), None)


def _check(times: Sequence[float], where: str = "") -> None:
    iteration = no_time(times)
    if iteration is not None:
        raise SampleError(f"{where}iteration {iteration}: {times[iteration]!r} is no time")


def busbw_factor(collective: str, ranks: int) -> float:
    """busbw / algbw of a collective over n ranks, where algbw is size / time; see its row in COLLECTIVES."""
    if collective not in COLLECTIVES:
        reason = "moves no data" if collective == BARRIER else "is no collective that is known here"
        raise ValueError(f"{collective} {reason}: it has no bus bandwidth")
    if ranks < 2:
        raise ValueError(f"{collective} over {ranks} rank moves no data: it has no bus bandwidth")
    return COLLECTIVES[collective].busbw_factor(ranks)


def busbw(collective: str, ranks: int, size_bytes: int, seconds: float) -> float:
    """algbw times the collective's factor, GB/s."""
    return size_bytes / seconds / 1e9 * busbw_factor(collective, ranks)


def at_least(count: int, samples: int, rate: float) -> float:
    """The probability that `count` or more of `samples` are slow: the upper tail of the binomial."""
    below = sum(math.comb(samples, k) * rate**k * (1 - rate) ** (samples - k) for k in range(count))
    return max(0.0, 1.0 - below)
