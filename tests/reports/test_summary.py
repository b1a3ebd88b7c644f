from __future__ import annotations

import math

import pytest

from reports.hostlist import fold
from reports.page import figures
from reports.record import NodeRecord, Outcome
from reports.summary import lines
from reports.verdict import decide
from tests.reports import making
from tests.reports.making import alone, check, green, green_checks, journal_of


def test_a_line_per_node_and_one_for_the_run() -> None:
    assert lines(decide(green()), "out/report.html") == [
        "accepted  gpu01  2 checks passed, none speaks against it",
        "accepted  gpu02  2 checks passed, none speaks against it",
        "2 accepted, 0 rejected, 0 unproven for workload dense on hardware h100; details: out/report.html",
    ]


def test_the_bad_nodes_come_last_and_say_where_to_look() -> None:
    failed = check(alone("gpu01"), ["gpu01"], Outcome.FAIL, reason="7 of 8 GPUs")
    said = lines(decide(journal_of(failed, *green_checks()[1:])))
    assert said[0].startswith("accepted  gpu02")
    assert said[1] == f"rejected  gpu01  test_gpus[gpu01]: 7 of 8 GPUs  (see {alone('gpu01')})"


def test_a_run_that_accepts_nobody_says_why() -> None:
    assert "nobody is accepted: the run was cut short" in lines(decide(green()[:-1]))[-1]


@pytest.mark.parametrize(("number", "shown"), [(32, 33), (33, 2)])
def test_many_accepted_nodes_share_a_line(number: int, shown: int) -> None:
    names = [f"gpu{index:03d}" for index in range(1, number + 1)]
    passed = check("t.py::test_all", names)
    ready = [NodeRecord(name, "ready") for name in names]
    checks = (making.SELF, passed)
    said = lines(decide([making.run(nodes=names), making.plan(*checks), *ready, *checks, making.end()]))
    assert len(said) == shown
    if shown == 2:
        assert said[0] == "accepted  33 nodes: gpu[001-033]"


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["gpu01", "gpu02", "gpu04"], "gpu[01-02,04]"),
        (["gpu2", "gpu1"], "gpu[1-2]"),
        (["gpu09", "gpu10", "gpu100"], "gpu[09-10], gpu100"),
        (["login", "10.0.0.1", "10.0.0.2"], "login, 10.0.0.[1-2]"),
        (["a1-ib0", "a1-ib1"], "a1-ib[0-1]"),
        (["x1", "x1"], "x1"),
        ([], ""),
    ],
)
def test_names_are_folded(names: list[str], folded: str) -> None:
    assert fold(names) == folded


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (361.24, "361.2"),
        (0.00012345, "0.0001234"),
        (123456.7, "123457"),
        (100.0, "100"),
        (-3.25, "-3.25"),
        (1e-30, "0"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_four_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert figures.number(value) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (4, "4 B"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (2**50, "1024 TiB")],
)
def test_sizes_are_written_in_binary_units(size_bytes: int, text: str) -> None:
    assert figures.size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0251, "25 ms"),
        (1.25, "1.2 s"),
        (185.0, "3 min 05 s"),
        (7260.0, "2 h 01 min"),
        (math.nan, "unknown"),
    ],
)
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text
