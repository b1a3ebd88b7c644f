"""A value is good, bad or unchecked, and what cannot be compared is never green."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from reports.record import Judgement, Outcome
from tests.each import each
from tests.thresholds.files import CASE, FIRST, changed, loaded
from thresholds.hardware import Hardware, no_hardware
from thresholds.metrics import SampleError
from thresholds.units import METRICS
from thresholds.verdict import judge

SHARE = loaded(changed("min = 80.0", "min_of_bound = 0.94"))
SLOW = loaded(changed('metric = "busbw"', 'metric = "slow_fraction"').replace("min = 80.0", "max = 0.1"))
INSIDE = loaded(
    changed("nvlink = 450.0", 'nvlink = "measured"')
    .replace('path = "network"\nnodes = "2..4"', 'path = "nvlink"')
    .replace("min = 80.0", "min_of_bound = 0.5")
)


def judged(
    value: object,
    hardware: Hardware | None = None,
    metric: str = "busbw",
    samples: int = 20,
    case: Mapping[str, str | int] = CASE,
) -> Judgement:
    found = judge(hardware or loaded(), metric, case, value, samples)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_good_value_passes_and_says_why() -> None:
    found = judged(95.0)
    assert (found.outcome, found.value, found.unit, found.limit_value) == (Outcome.PASS, 95.0, "GB/s", 80.0)
    assert found.limit == ">= 80 GB/s"
    where = f"small.toml:{FIRST}"
    assert found.source == f"example/repository@0000000 file:1 (2026-05-01; {where})"
    assert (
        found.sentence
        == f"all_reduce busbw 95 GB/s at 8GiB over network on 2 nodes is at least 80 GB/s ({where})"
    )
    assert found.case == CASE


def test_a_bad_value_fails_and_says_by_what() -> None:
    found = judged(70.4, SHARE)
    assert found.outcome is Outcome.FAIL
    assert found.sentence == (
        "all_reduce busbw 70.4 GB/s at 8GiB over network on 2 nodes is below 94 GB/s "
        f"(0.94 of the bound 100 GB/s; small.toml:{FIRST})"
    )


def test_the_limit_itself_is_good_and_a_hair_below_is_not() -> None:
    assert judged(80.0).outcome is Outcome.PASS
    found = judged(79.9999)
    assert found.outcome is Outcome.FAIL
    assert "busbw 79.9999 GB/s" in found.sentence


def test_a_ceiling_is_held_from_above() -> None:
    assert judged(50.0, metric="latency").outcome is Outcome.PASS
    found = judged(150.0, metric="latency")
    assert (found.outcome, found.limit) == (Outcome.FAIL, "<= 100 us")
    assert "is above 100 us" in found.sentence


def test_a_share_of_nothing_is_good_and_of_more_than_all_is_no_share() -> None:
    assert judged(0.0, SLOW, "slow_fraction").outcome is Outcome.PASS
    assert judged(0.15, SLOW, "slow_fraction").outcome is Outcome.FAIL
    assert judged(1.5, SLOW, "slow_fraction").outcome is Outcome.UNCHECKED


@each(
    ("value", "words"),
    [
        (math.nan, "nan is not a measurement"),
        (math.inf, "inf is not a measurement"),
        (-math.inf, "inf is not a measurement"),
        (-1.0, "-1.0 is not a measurement"),
        (0.0, "0.0 is not a measurement"),
        (None, "it was not measured"),
        (True, "True is not a measurement"),
        ("95", "'95' is not a measurement"),
        (SampleError("rank 3 sent nothing"), "rank 3 sent nothing"),
        (150.1, "is above the physical bound of 150 GB/s: something else was measured"),
    ],
)
def test_what_is_no_measurement_is_never_green(value: object, words: str) -> None:
    found = judged(value)
    assert (found.outcome, found.limit_value) == (Outcome.UNCHECKED, None)
    assert "is unchecked: " in found.sentence
    assert words in found.sentence


def test_too_few_samples_are_unchecked() -> None:
    assert judged(95.0, samples=10).outcome is Outcome.PASS
    found = judged(95.0, samples=9)
    assert found.outcome is Outcome.UNCHECKED
    assert f"9 samples are too few, small.toml:{FIRST} wants 10" in found.sentence


@each(
    ("more", "words"),
    [
        ({"collective": "all_gather"}, "matches no row; nearest: "),
        ({"nodes": 5}, "nobody measured more than four"),
        ({"ranks_per_node": 0}, "does not say its ranks_per_node"),
        ({"algorithm": "nvls"}, "nvls = true"),
    ],
)
def test_a_case_that_cannot_be_judged_is_unchecked(more: dict[str, str | int], words: str) -> None:
    found = judged(95.0, case={**CASE, **more})
    assert found.outcome is Outcome.UNCHECKED
    assert words in found.sentence


def test_a_measured_rate_is_the_bound_of_its_run() -> None:
    case = {**CASE, "path": "nvlink", "nodes": 1}
    outcomes = {}
    for rate in (None, math.nan, 100.0, 300.0):
        found = judge(INSIDE, "busbw", case, 90.0, 20, measured_gigabytes_per_s=rate)
        assert found is not None
        outcomes[str(rate)] = found.outcome
    unchecked = Outcome.UNCHECKED
    assert outcomes == {"None": unchecked, "nan": unchecked, "100.0": Outcome.PASS, "300.0": Outcome.FAIL}


def test_what_is_not_required_and_has_no_row_is_only_recorded() -> None:
    assert judge(loaded(), "copy", CASE, 1.0, 20, required=False) is None
    assert judge(loaded(), "busbw", {**CASE, "nodes": 5}, 1.0, 20, required=False) is None
    assert judge(no_hardware("nvlink"), "busbw", CASE, 1.0, 20, required=False) is None


def test_what_is_not_required_and_has_a_row_is_judged() -> None:
    found = judge(loaded(), "busbw", CASE, 1.0, 20, required=False)
    assert found is not None
    assert found.outcome is Outcome.FAIL


def test_two_rows_are_unchecked_even_where_none_is_required() -> None:
    hardware = loaded()
    twice = Hardware(**{**vars(hardware), "limits": (hardware.limits[0], hardware.limits[0])})
    found = judge(twice, "busbw", CASE, 95.0, 20, required=False)
    assert found is not None
    assert found.outcome is Outcome.UNCHECKED


@each("inside", ["memory", "nvlink"])
def test_without_a_hardware_file_nothing_is_judged(inside: str) -> None:
    hardware = no_hardware(inside)
    assert set(hardware.sweep.plateau) <= set(hardware.sweep.bandwidth)
    found = judged(95.0, hardware)
    assert found.outcome is Outcome.UNCHECKED
    assert "no hardware file says what is good enough" in found.sentence


@given(st.one_of(st.floats(), st.none(), st.integers()), st.integers(0, 30))
def test_only_a_number_between_floor_and_ceiling_is_green(value: float | None, samples: int) -> None:
    found = judge(loaded(), "busbw", CASE, value, samples)
    assert found is not None
    green = value is not None and 80 <= value <= 150 and samples >= 10
    assert (found.outcome is Outcome.PASS) == green


def test_what_no_hardware_does_is_unchecked() -> None:
    """Of bus bandwidths the line rate says what is too much, too, and shares end at 1."""
    other = {name: metric for name, metric in METRICS.items() if not metric.share}
    more = {name for name, metric in other.items() if metric.better == "more"}
    assert [name for name in more if not other[name].most <= 1e5] == []
    assert [name for name in other.keys() - more if not other[name].least > 0] == []
    fast = loaded(changed('metric = ["latency", "latency_p99"]', 'metric = "latency"'))
    case = {**CASE, "size": 16384}
    assert judged(5.0, fast, "latency", case=case).outcome is Outcome.PASS
    found = judged(1e-12, fast, "latency", case=case)
    assert found.outcome is Outcome.UNCHECKED
    assert found.sentence.endswith("is unchecked: 1e-12 us is beyond what any hardware does")
    quick = loaded(changed('metric = "busbw"\ncollective', 'metric = "tflops"\ncollective'))
    assert judged(1e3, quick, "tflops").outcome is Outcome.PASS
    assert judged(1e15, quick, "tflops").sentence.endswith("1e+15 TFLOP/s is beyond what any hardware does")
    measured = judge(INSIDE, "busbw", {**CASE, "path": "nvlink"}, 1e6, 20, measured_gigabytes_per_s=1e12)
    assert measured is not None  # and the ranks say that they copy faster still
    assert measured.sentence.endswith("is beyond what any hardware does")
