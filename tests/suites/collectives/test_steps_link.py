"""One way at a time: the receiver's clock, every message compared, and progress that tells the direction."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.ranks.steps import Context
from fixtures.ranks.study.calibrated import calibrated_work
from fixtures.wire.progress import ROUND_TRIPS, TOWARDS
from suites.collectives import link_probe, steps
from tests.fixtures.ranks.gloo_world import context, replace, run_world
from tests.fixtures.ranks.test_timing import Follower

SIZE = 64 << 10
MESSAGES, LEAD = 12, 2
NAP_S = 0.02
Call = Callable[..., Any]
Damage = Callable[[torch.Tensor, int], object]  # a message, and its number


class Damaged:
    """A receive after which something happens to what arrived."""

    def __init__(self, works: list[Any], damage: Callable[[], object]) -> None:
        self._works, self._damage = works, damage

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        self._damage()


def before_sending(damage: Damage) -> None:
    real, numbers = dist.batch_isend_irecv, iter(range(1000))

    def patched(operations: list[Any]) -> list[Any]:
        if operations[0].op is dist.isend:
            damage(operations[0].tensor, next(numbers))
        return list(real(operations))

    replace("batch_isend_irecv", patched)


def after_receiving(damage: Damage) -> None:
    real, numbers = dist.batch_isend_irecv, iter(range(1000))

    def patched(operations: list[Any]) -> list[Any]:
        works = list(real(operations))
        if operations[0].op is not dist.irecv:
            return works
        number, tensor = next(numbers), operations[0].tensor
        return [Damaged(works, lambda: damage(tensor, number))]

    replace("batch_isend_irecv", patched)


def probed(hosts: str, plant: Callable[[], None] = lambda: None, on: int = -1) -> list[dict[str, Any]]:
    """What the ranks say of a world whose hosts are these letters, with something planted on one of them."""

    def run(ctx: Context) -> Any:
        ctx.hosts, ctx.progress = list(hosts), Follower()
        if ctx.rank == on:
            plant()
        said = steps.link(ctx, size_bytes=SIZE, iterations=MESSAGES, lead=LEAD, round_trips=5)
        return {**said, "phases": ctx.progress.phases, "dues": ctx.progress.dues}

    return run_world(len(hosts), run)


def median_s(answer: dict[str, Any]) -> float:
    return float(statistics.median(answer["receives"]["seconds"]))


def test_every_rank_has_its_partner_on_the_other_node_and_all_data_are_right() -> None:
    answers = probed("aabb")
    assert [answer["partner"] for answer in answers] == [2, 3, 0, 1]
    for rank, answer in enumerate(answers):
        assert answer["receives"]["source"] == answer["partner"]
        assert len(answer["receives"]["seconds"]) == MESSAGES
        assert all(seconds > 0 for seconds in answer["receives"]["seconds"])
        assert answer["wrong"] == []
        assert len(answer["round_trips"]) == (5 if rank < 2 else 0)


def test_a_rank_without_a_partner_waits_for_the_others() -> None:
    answers = probed("aab")
    assert [answer["partner"] for answer in answers] == [2, None, 0]
    assert answers[1]["receives"] is None
    assert answers[1]["round_trips"] == []


@pytest.mark.parametrize("hosts", ["aa", "abc"])
def test_a_link_joins_two_nodes(hosts: str) -> None:
    ctx = context(0, len(hosts))
    ctx.hosts = list(hosts)
    with pytest.raises(ValueError, match=f"this world has {len(set(hosts))} nodes"):
        steps.link(ctx, size_bytes=SIZE, iterations=1, lead=1, round_trips=0)


def test_progress_tells_the_direction_and_counts_what_has_arrived() -> None:
    for answer in probed("ab"):
        assert [name for name, _ in answer["phases"]] == [ROUND_TRIPS, *TOWARDS]
        for _, done in answer["phases"][1:]:
            assert done[-1] == MESSAGES + LEAD
            assert done == sorted(done)
        assert answer["dues"] == []  # messages are counted, not timed one by one


# the clock


@pytest.mark.alone
@pytest.mark.parametrize("slow", [0, 1])
def test_a_sender_that_is_slow_shows_where_it_is_received_and_in_no_other_direction(slow: int) -> None:
    def plant() -> None:
        before_sending(lambda *_: calibrated_work(time.perf_counter() + NAP_S))

    answers = probed("ab", plant, on=slow)
    assert 0.9 * NAP_S < median_s(answers[1 - slow]) < 2 * NAP_S
    assert median_s(answers[slow]) < NAP_S / 2


@pytest.mark.alone
def test_what_comes_before_the_first_sample_is_in_none() -> None:
    """The lead may take as long as it likes: a connection that has yet to gain speed, a burst of a shaper."""

    def plant() -> None:
        before_sending(lambda _, n: calibrated_work(time.perf_counter() + 10 * NAP_S * (n < LEAD)))

    answers = probed("ab", plant, on=0)
    assert sum(answers[1]["receives"]["seconds"]) < 10 * NAP_S
    assert answers[1]["receives"]["lead_s"] > 10 * NAP_S


def test_a_clock_at_the_sender_would_miss_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug that the tests above are there for: a sender is done when the kernel has its data."""

    def on_the_wrong_side(
        ctx: Context, messages: list[torch.Tensor], partner: int, lead: int
    ) -> tuple[float, float, list[float]]:
        ready, began, seconds = real(ctx, messages, partner, lead)
        return ready, began, [1e-5 for _ in seconds]

    real = link_probe._on_host
    monkeypatch.setattr(link_probe, "_on_host", on_the_wrong_side)
    with pytest.raises(AssertionError):
        test_a_sender_that_is_slow_shows_where_it_is_received_and_in_no_other_direction(0)


# the data


def in_message(number: int, change: Callable[[torch.Tensor], object]) -> Damage:
    """Do something to one message."""
    return lambda tensor, of: change(tensor) if of == number else None


def flip(tensor: torch.Tensor) -> None:
    tensor[17] ^= 1


def again() -> None:
    """Send the message before the eighth again."""
    kept: list[torch.Tensor] = []

    def stale(tensor: torch.Tensor, number: int) -> None:
        kept.append(tensor.clone())
        if number == 8:
            tensor.copy_(kept[7])

    before_sending(stale)


def elsewhere() -> None:
    """Receive every message into a buffer that nobody reads."""
    real = dist.batch_isend_irecv

    def patched(operations: list[Any]) -> list[Any]:
        if operations[0].op is dist.irecv:
            operations[0].tensor = torch.empty_like(operations[0].tensor)
        return list(real(operations))

    replace("batch_isend_irecv", patched)


@pytest.mark.parametrize(
    ("plant", "on", "receiver", "iteration", "looks_like"),
    [
        (lambda: after_receiving(in_message(5, flip)), 1, 1, 5, "bit 0 flipped"),
        (lambda: before_sending(in_message(5, flip)), 0, 1, 5, "bit 0 flipped"),
        (again, 1, 0, 8, "iteration 7 again"),
        (lambda: before_sending(in_message(0, torch.Tensor.zero_)), 0, 1, 0, "zeros"),  # of the lead
        (elsewhere, 1, 1, 0, "never written"),
    ],
    ids=["received wrong", "sent wrong", "sent again", "zeros", "never written"],
)
def test_a_wrong_message_is_told_by_who_received_it(
    plant: Callable[[], None], on: int, receiver: int, iteration: int, looks_like: str
) -> None:
    answers = probed("ab", plant, on)
    assert answers[1 - receiver]["wrong"] == []
    wrong, *more = answers[receiver]["wrong"]
    assert (wrong["rank"], wrong["source_rank"]) == (receiver, 1 - receiver)
    assert (wrong["iteration"], wrong["looks_like"]) == (iteration, looks_like)
    assert bool(more) == (looks_like == "never written")
    assert (wrong["collective"], wrong["dtype"], wrong["size_bytes"]) == ("link", "int64", SIZE)
    if looks_like == "bit 0 flipped":
        assert (wrong["first_offset"], wrong["count"]) == (17, 1)
