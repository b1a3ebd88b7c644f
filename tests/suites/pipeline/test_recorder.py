"""The clock of work: what a rank waits for counts, what its host loses between two operations does not."""

from __future__ import annotations

import time

import pytest
import torch

from fixtures.ranks.study.calibrated import Work, calibrated_work
from suites.pipeline.recorder import Held, Recorder, typical
from suites.pipeline.schedules import Op
from suites.pipeline.simulator import Span
from tests.fixtures.ranks.gloo_world import context

LENGTHS = {"F": 0.05, "B": 0.1}


def idle(seconds: float) -> None:
    calibrated_work(time.perf_counter() + seconds)


def recorder() -> Recorder:
    made = Recorder(context(0, 1), Held([]))
    made.begin()
    return made


def test_what_the_host_loses_between_operations_is_no_bubble() -> None:
    made = recorder()
    with made.paced(LENGTHS):
        for kind in "FB":
            idle(0.02)
            with made.doing(kind, 0, 0):
                pass
    times = [time_s for span in made.spans for time_s in span[1:]]
    assert times == pytest.approx([0.0, 0.05, 0.05, 0.15], abs=0.01)


def test_what_a_rank_waits_for_a_peer_is() -> None:
    made = recorder()
    with made.paced(LENGTHS):
        for kind in "FB":
            with made.waiting():
                idle(0.02)
            with made.doing(kind, 0, 0):
                pass
    first, second = made.spans
    assert first.begin_s >= 0.02
    assert second.begin_s - first.end_s >= 0.02
    assert second.end_s - second.begin_s == pytest.approx(0.1)


def test_an_operation_that_takes_longer_than_its_seconds_ends_when_it_ends() -> None:
    made = recorder()
    with made.paced(LENGTHS):
        for kind in "FB":
            with made.doing(kind, 0, 0):
                idle(0.07)
    first, second = made.spans
    assert first.end_s >= 0.07
    assert second.begin_s == pytest.approx(first.end_s, abs=0.01)
    assert second.end_s - second.begin_s == pytest.approx(0.1)


def test_without_a_pace_the_clock_is_the_host_s() -> None:
    made = recorder()
    idle(0.02)
    with made.doing("F", 0, 0):
        pass
    assert made.spans[0].begin_s >= 0.02


def test_what_came_in_is_kept_as_it_was() -> None:
    made, buffer = recorder(), torch.arange(4.0)
    made.expect("activations", 1, 0, [buffer])
    made.receive("activations", 1, 0)
    made.receive("activations", 1, 1)
    buffer.zero_()
    assert {key: kept.tolist() for key, kept in made.received.items()} == {
        ("activations", 1, 0): [0.0, 1.0, 2.0, 3.0]
    }


def test_work_on_a_processor_lasts_until_it_is_told() -> None:
    until_s = time.perf_counter() + 0.02
    assert Work(torch.device("cpu")).last(until_s) == until_s
    assert time.perf_counter() >= until_s


def rounds(*begins: tuple[float, float]) -> list[list[Span]]:
    """Rounds of two operations of a second each."""
    ops = Op("F", 0, 0), Op("B", 0, 0)
    return [[Span(op, begin, begin + 1) for op, begin in zip(ops, mine, strict=True)] for mine in begins]


def test_a_stall_in_one_round_does_not_count_though_each_round_has_one() -> None:
    found = typical(rounds((0.0, 6.0), (5.0, 6.0), (0.0, 1.25)))
    assert [(span.begin_s, span.end_s) for span in found] == [(0.0, 1.0), (1.25, 2.25)]


def test_a_stall_in_every_round_does() -> None:
    found = typical(rounds((5.0, 6.0), (5.0, 6.0), (0.0, 1.0)))
    assert [span.begin_s for span in found] == [5.0, 6.0]
