"""Lookup is total: one row, or an error that says which rows came near and why they do not match."""

from __future__ import annotations

import pytest

from reports.record import Judgement, Outcome
from tests.thresholds.files import CASE, FIRST, GAP, SECOND, changed, loaded
from thresholds.hardware import Gap, Hardware
from thresholds.lookup import LimitError, absent, find, unused


def refused(hardware: Hardware, metric: str, case: dict[str, str | int]) -> LimitError:
    with pytest.raises(LimitError) as caught:
        find(hardware, metric, case)
    return caught.value


def test_one_row_is_found() -> None:
    assert find(loaded(), "busbw", CASE).where == f"small.toml:{FIRST}"
    assert find(loaded(), "latency_p99", {**CASE, "size": 16 << 10}).where == f"small.toml:{SECOND}"


def test_a_missing_row_names_the_nearest_and_what_parts_them() -> None:
    error = refused(loaded(), "busbw", {**CASE, "collective": "all_gather"})
    assert error.kind == "missing"
    assert f"small.toml:{FIRST} wants collective = all_reduce, the case has all_gather" in str(error)
    assert "size=8GiB" in str(error)


def test_a_metric_without_any_row_says_so() -> None:
    error = refused(loaded(), "slow_fraction", CASE)
    assert (error.kind, "has no row for slow_fraction at all" in str(error)) == ("missing", True)


def test_a_case_that_does_not_say_what_a_row_asks_does_not_match() -> None:
    case = {name: value for name, value in CASE.items() if name != "nodes"}
    assert "nodes = 2..4, the case has none" in str(refused(loaded(), "busbw", case))


def test_a_gap_gives_its_reason() -> None:
    error = refused(loaded(), "busbw", {**CASE, "nodes": 5})
    assert error.kind == "gap"
    assert f"nobody measured more than four (small.toml:{GAP})" in str(error)


def test_two_rows_for_one_case_are_ambiguous() -> None:
    hardware = loaded()
    twice = Hardware(**{**vars(hardware), "limits": (hardware.limits[0], hardware.limits[0])})
    error = refused(twice, "busbw", CASE)
    assert (error.kind, str(error).count(f"small.toml:{FIRST}")) == ("ambiguous", 2)


def test_a_row_and_a_gap_for_one_case_are_ambiguous() -> None:
    hardware = loaded()
    gap = Gap(("busbw",), {}, "nobody knows", "small.toml:99")
    error = refused(Hardware(**{**vars(hardware), "gaps": (gap,)}), "busbw", CASE)
    assert (error.kind, f"small.toml:{FIRST}, small.toml:99" in str(error)) == ("ambiguous", True)


def test_an_unknown_algorithm_is_the_empty_one() -> None:
    hardware = loaded(changed("min = 80.0", 'min = 80.0\nalgorithm = ["", "tree"]'))
    assert find(hardware, "busbw", CASE).where == f"small.toml:{FIRST}"
    assert refused(hardware, "busbw", {**CASE, "algorithm": "ring"}).kind == "missing"


def test_what_is_absent_gives_its_reason() -> None:
    assert absent(loaded(), {**CASE, "collective": "gather"}) == "this library has no gather"
    assert absent(loaded(), CASE) is None
    assert absent(loaded(), {}) is None


def test_arithmetic_that_is_absent_is_that_of_products_and_not_of_data() -> None:
    hardware = loaded(
        changed('gather = "this', 'bf16 = "these devices do not multiply in it"\ngather = "this')
    )
    products = {"step": "nodes.matmul", "dtype": "bf16"}
    assert absent(hardware, products) == "these devices do not multiply in it"
    assert absent(hardware, {**products, "dtype": "fp16"}) is None
    assert absent(hardware, {"step": "collectives.identity", "dtype": "bf16"}) is None


def test_rows_that_matched_no_judged_case_are_reported() -> None:
    judged = [Judgement("busbw", Outcome.PASS, "", case=CASE), Judgement("copy", Outcome.PASS, "", case=CASE)]
    (line,) = unused(loaded(), judged)
    assert line.startswith(f"small.toml:{SECOND}: matched no case: latency, latency_p99 for path = network")
    assert unused(loaded(), [*judged, Judgement("latency", Outcome.FAIL, "", case=CASE)]) == []
    assert len(unused(loaded(), [])) == 2
