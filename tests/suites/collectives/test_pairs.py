"""Nodes in pairs: each round is planned, timed and compared, and who is slow with everybody is named."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from fixtures.check.findings import Findings
from fixtures.check.judges import pairs
from fixtures.check.plan import NETWORK, Planned
from fixtures.check.requests import LEAST_OF_PAIRS, MOST_ROUNDS, round_robin
from fixtures.check.requests import pairs as ask
from fixtures.check.target import Target
from fixtures.cluster.measurement import Measurement, NotApplicable, RankReport, Unchecked, World
from fixtures.ranks.steps import Context
from reports.record import BlameKind, Outcome
from suites.collectives import steps
from suites.collectives.test_collectives import PAIRS
from tests.fixtures.check.answered import answered, paper
from tests.fixtures.ranks.gloo_world import replace as plant
from tests.fixtures.ranks.gloo_world import run_world
from tests.thresholds.files import row

PEERS = '[peers]\nmargin = 0.05\nsource = "what the test says"\n'
FLOOR = row("busbw", "min = 20.0", collective="bisection", nodes=2, ranks_per_node=1)
SIZE = 1 << 20
SIX = {f"n{number}": 24.0 + number / 100 for number in range(6)}
Said = dict[str, Any]


def exchange(ctx: Context, per_node: int = 1) -> Said:
    hosts = [f"n{rank // per_node}" for rank in range(ctx.size)]
    ctx = replace(ctx, hosts=hosts, local_ranks=[rank % per_node for rank in range(ctx.size)])
    rounds = list(round_robin(list(dict.fromkeys(hosts))))
    return steps.pairs(ctx, size_bytes=4096, rounds=rounds, iterations=10, budget_s=1.0)


@pytest.mark.parametrize(("size", "per_node"), [(3, 1), (4, 1), (4, 2)])
def test_every_rank_is_timed_with_its_like_on_every_other_node(size: int, per_node: int) -> None:
    nodes = [f"n{number}" for number in range(size // per_node)]
    for rank, said in enumerate(run_world(size, lambda ctx: exchange(ctx, per_node))):
        others = [name for name in nodes if name != nodes[rank // per_node]]
        assert sorted(one["with"] for one in said["pairs"]) == others
        assert all(len(one["seconds"]) == 10 and min(one["seconds"]) > 0 for one in said["pairs"])
        assert said["wrong"] == []


def test_what_arrives_wrong_is_of_the_rank_that_sent_it() -> None:
    def planted(ctx: Context) -> Said:
        real = dist.batch_isend_irecv

        def flipped(operations: list[dist.P2POp]) -> Any:
            sent = [one.tensor for one in operations if one.op is dist.isend]
            for tensor in sent:
                tensor[5] ^= 8
            works = real(operations)
            for work in works:
                work.wait()
            for tensor in sent:
                tensor[5] ^= 8
            return []

        if ctx.rank == 2:
            plant("batch_isend_irecv", flipped)
        return exchange(ctx)

    found = [wrong for said in run_world(4, planted) for wrong in said["wrong"]]
    assert sorted((wrong["rank"], wrong["source_rank"]) for wrong in found) == [(0, 2), (1, 2), (3, 2)]


# the judge


def target(nodes: Mapping[str, float], more: str = PEERS, backend: str = "nccl") -> Target:
    planned = Planned(PAIRS[0], NETWORK, tuple(nodes), "case")
    return Target(planned, dict.fromkeys(nodes, 1), paper(more), backend, {})


def measured(rates: Mapping[str, float], bad_pair: tuple[str, ...] = (), **more: Any) -> Measurement:
    """Each pair is as fast as its slower node; one pair alone may be at half of that."""
    nodes = list(rates)
    rounds = list(round_robin(nodes))
    said: dict[str, list[Said]] = {name: [] for name in nodes}
    for one, other in (pair for pairs_ in rounds for pair in pairs_):
        rate = min(rates[one], rates[other]) * (0.5 if {one, other} == set(bad_pair) else 1.0)
        for name, end in ((one, other), (other, one)):
            said[name].append({"with": end, "seconds": [SIZE / rate / 1e9] * 20})
    ranks = tuple(
        RankReport(number, name, 0, f"GPU-{name}", {"pairs": said[name], "wrong": [], **more})
        for number, name in enumerate(nodes)
    )
    asked = {"size_bytes": SIZE, "rounds": rounds}
    return Measurement("collectives.pairs", asked, World(tuple(nodes)), "1", "nccl", ranks, 0.1)


def judged(rates: Mapping[str, float], more: str = PEERS, bad_pair: tuple[str, ...] = ()) -> Findings:
    return pairs.judge(answered(measured(rates, bad_pair), target(rates, more)))


def outcomes(found: Findings) -> dict[str, Outcome]:
    return {one.metric: one.outcome for one in found.judgements}


def test_a_node_that_is_slow_with_everybody_is_named_alone() -> None:
    found = judged({**SIX, "n3": 21.8})
    assert [(blame.kind, blame.nodes) for blame in found.blame] == [(BlameKind.NODE, ("n3",))]
    assert "busbw 21.8 GB/s (the best of its pairs at 1MiB) of n3 is 9.2% behind" in found.blame[0].sentence
    assert outcomes(found)["peers"] is Outcome.FAIL


def test_several_slow_nodes_are_left_to_a_search_because_they_may_share_uplinks() -> None:
    """Of 32 nodes the 8 below the first switch meet none of each other in the rounds that are asked for."""
    below = {f"n{number}": 21.0 if number < 8 else 24.0 for number in range(32)}
    asked = ask(target(below)).parameters["rounds"]
    assert not any({one, other} <= {*list(below)[:8]} for pairs_ in asked for one, other in pairs_)
    for slow in (below, {**SIX, "n7": 24.0, "n3": 21.8, "n8": 20.5}):
        found = judged(slow)
        assert (found.blame, outcomes(found)["peers"]) == ([], Outcome.FAIL)


def test_healthy_nodes_and_one_slow_pair_of_them_convict_nobody() -> None:
    for bad_pair in ((), ("n1", "n4")):
        found = judged(SIX, bad_pair=bad_pair)
        assert (found.blame, set(outcomes(found).values())) == ([], {Outcome.PASS})
    rates = {tuple(one["nodes"]): one["gigabytes_per_s"] for one in found.recorded["pairs"]}
    assert len(rates) == 15
    assert min(rates, key=lambda pair: rates[pair]) in {("n1", "n4"), ("n4", "n1")}


def test_few_nodes_are_held_against_the_floor_of_two_alone() -> None:
    slow = {"n0": 24.0, "n1": 24.0, "n2": 19.0}
    assert outcomes(judged(slow)) == {}
    found = judged(slow, FLOOR)
    assert outcomes(found) == {"busbw": Outcome.FAIL}
    assert "no node reaches less than n2 in the best of its pairs" in found.judgements[0].sentence
    assert outcomes(judged({**slow, "n2": 20.5}, FLOOR)) == {"busbw": Outcome.PASS}


def test_processors_are_compared_only_where_their_file_asks() -> None:
    slow = {**SIX, "n3": 21.8}
    assert not pairs.judge(answered(measured(slow), target(slow, "", "gloo"))).blame
    assert pairs.judge(answered(measured(slow), target(slow, PEERS, "gloo"))).blame


@pytest.mark.parametrize("said", [[], [{"with": "n1"}], [{"with": "n1", "seconds": [1.0]}] * 2, [7]])
def test_a_rank_that_does_not_say_each_pair_once_costs_its_own_node_the_verdict(said: object) -> None:
    told = measured(SIX)
    ranks = [
        replace(rank, result={**rank.result, "pairs": said}) if rank.node == "n4" else rank
        for rank in told.ranks
    ]
    with pytest.raises(Unchecked, match="rank 4 on n4 does not say how long it took with") as refused:
        pairs.judge(answered(replace(told, ranks=tuple(ranks)), target(SIX)))
    assert [blame.nodes for blame in refused.value.blame] == [("n4",)]


def test_a_pair_whose_ends_count_differently_costs_both_of_them_the_verdict_and_nobody_else() -> None:
    told = measured(SIX)
    fewer = replace(told.ranks[1], result=deepcopy(dict(told.ranks[1].result)))
    fewer.result["pairs"][0]["seconds"].pop()
    with pytest.raises(Unchecked, match="other numbers of samples than the other end") as refused:
        pairs.judge(answered(replace(told, ranks=(told.ranks[0], fewer, *told.ranks[2:])), target(SIX)))
    assert {blame.nodes for blame in refused.value.blame} == {
        ("n1",),
        (str(fewer.result["pairs"][0]["with"]),),
    }


def test_of_many_nodes_a_few_rounds_are_asked_for_and_of_two_none() -> None:
    asked = ask(target({f"n{number}": 1.0 for number in range(32)})).parameters
    assert len(asked["rounds"]) == MOST_ROUNDS
    assert asked["size_bytes"] == SIZE  # the largest of the file
    with pytest.raises(NotApplicable, match="two nodes are one pair"):
        ask(target(dict.fromkeys(list(SIX)[: LEAST_OF_PAIRS - 1], 1.0)))
