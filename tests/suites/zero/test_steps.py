"""Data parallelism and ZeRO: every part of every step in real worlds on gloo."""

from __future__ import annotations

from fixtures.ranks.study.overlap import STAGE_S
from suites.zero.answers import replicas
from suites.zero.test_zero import OVERLAP, STEPS
from tests.fixtures.ranks.gloo_world import context
from tests.suites.parallel import assert_green

PARTS = ("parity", "repeat", "traffic", "memory", "figures", "wrong")


def test_every_part_of_every_step_holds() -> None:
    cases = [(case.step, case.parameters) for case in STEPS]
    found = assert_green(4, cases, parts=PARTS)
    for (step, _), ranks in zip(cases, found, strict=True):
        assert all(rank["figures"]["pattern"] > 0 for rank in ranks), step


def test_the_paced_backward_is_exact_and_tells_how_much_it_hides() -> None:
    found = assert_green(2, [(OVERLAP[0].step, OVERLAP[0].parameters)])
    compute_s = OVERLAP[0].parameters["layers"] * STAGE_S
    for rank in found[0]:
        figures = rank["figures"]
        assert figures["compute_seconds"] >= compute_s
        assert {"overlap", "overlap_one_bucket", "exchange_seconds", "exposed_seconds"} <= figures.keys()


def test_a_node_is_a_replica_where_nodes_are_of_one_size() -> None:
    placed = context(0, 6)
    placed.hosts = ["a", "a", "b", "b", "c", "c"]
    assert replicas(placed) == (3, 2)
    placed.hosts = ["a", "b", "c", "d", "e", "f"]
    assert replicas(placed) == (2, 3)
    assert replicas(context(0, 3)) == (1, 3)
    assert replicas(context(0, 2)) == (1, 2)
