"""The steps of the soak suite: a rank reads what the supervisor reads."""

from __future__ import annotations

from dataclasses import replace

from fixtures.node.inventory import read
from suites.soak.steps import inventory
from tests.fixtures.ranks.gloo_world import context


def test_the_first_rank_of_a_node_reads_it_for_all() -> None:
    ctx = replace(context(1, 2), local_ranks=[0, 1])
    assert inventory(ctx) == {}
    found = inventory(replace(ctx, rank=0))["inventory"]
    assert found.keys() == read().keys()
    assert [row["name"] for row in found["netdevs"]] == [row["name"] for row in read()["netdevs"]]
