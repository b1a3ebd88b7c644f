"""How ranks are divided among axes, and where the axes then lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from fixtures.check.judges import placement as judged
from fixtures.check.plan import Case
from fixtures.cluster.measurement import Measurement, RankReport, Unchecked, World
from fixtures.ranks.steps import Context
from reports.record import BlameKind, Outcome
from suites.mesh import placement, test_mesh
from suites.mesh.axes import laid_out
from suites.mesh.layout import Layout, divide
from suites.zero import test_zero
from tests.fixtures.check.answered import aimed, answered
from tests.fixtures.ranks.gloo_world import run_world

TWO, THREE = ("dp", "tp"), ("pp", "dp", "tp")


# division


@pytest.mark.parametrize(
    ("counts", "two", "three"),
    [
        ((2,), (2, 1), (2, 1, 1)),
        ((3,), (3, 1), (3, 1, 1)),
        ((4,), (2, 2), (2, 1, 2)),
        ((8,), (2, 4), (2, 2, 2)),
        ((16,), (2, 8), (2, 2, 4)),
        ((2, 2), (2, 2), (2, 1, 2)),
        ((3, 3), (2, 3), (2, 1, 3)),
        ((2, 2, 2), (3, 2), (3, 1, 2)),
        ((4, 2), (3, 2), (3, 1, 2)),
        ((2,) * 4, (4, 2), (2, 2, 2)),
        ((8,) * 8, (8, 8), (2, 4, 8)),
        ((1, 1), (2, 1), (2, 1, 1)),
        ((1,) * 4, (2, 2), (2, 1, 2)),
        ((3, 2), (5, 1), (5, 1, 1)),
    ],
)
def test_axes_named_first_get_ranks_first_and_the_innermost_stays_inside_where_it_can(
    counts: Sequence[int], two: Sequence[int], three: Sequence[int]
) -> None:
    assert divide(counts, TWO, TWO).sizes == two
    assert divide(counts, THREE, ("pp", "tp", "dp")).sizes == three


def test_an_axis_that_matters_most_is_served_first() -> None:
    assert divide([2], TWO, ("tp", "dp")).sizes == (1, 2)
    assert divide([2, 2], TWO, ("tp", "dp")).sizes == (2, 2)


def test_one_rank_is_no_mesh() -> None:
    with pytest.raises(ValueError, match="needs at least 2 ranks; this world has 1"):
        divide([1], TWO, TWO)


def test_a_rank_knows_its_place_along_every_axis() -> None:
    layout = Layout(THREE, (2, 3, 2))
    assert [layout.place(9, name) for name in THREE] == [1, 1, 1]
    assert (layout.size("cp"), layout.place(9, "cp")) == (1, 0)


# placement


def told(hosts: Sequence[str], layout: Layout, real: Sequence[str] = ()) -> list[RankReport]:
    """What ranks say that are, as the job has it, on `hosts`, and in truth on `real`."""

    def rank(ctx: Context) -> list[dict[str, Any]]:
        ctx.hosts = list(hosts)
        own = (real or hosts)[ctx.rank]
        said = mock.patch.object(placement, "machine", return_value=(own, f"boot of {own}"))
        with said, laid_out(ctx, layout) as mesh:
            return placement.entries(ctx, mesh.used)

    said = run_world(len(hosts), rank)
    where = real or hosts
    return [
        RankReport(number, where[number], number, "cpu", {"placement": entries})
        for number, entries in enumerate(said)
    ]


def faults(ranks: Sequence[RankReport]) -> list[str]:
    """The sentences of what is out of place."""
    nodes = tuple(dict.fromkeys(rank.node for rank in ranks))
    measurement = Measurement("mesh.fsdp_tp", {}, World(nodes), "1", "gloo", tuple(ranks), 0.0)
    target = aimed(measurement, holds=test_mesh.STEPS[0].holds)
    found = judged.judge(answered(measurement, target)).judgements
    return [one.sentence for one in found if one.outcome is not Outcome.PASS]


def test_the_inner_axis_inside_a_node_and_the_outer_one_across_are_in_place() -> None:
    ranks = told(["a", "a", "b", "b"], Layout(TWO, (2, 2)))
    assert faults(ranks) == []
    spans = {entry["axis"]: entry["machines"] for entry in ranks[3].result["placement"]}
    assert spans == {"dp": ["a", "b"], "tp": ["b"]}


def test_interleaved_nodes_are_named_with_the_axis_that_crosses_them() -> None:
    wrong = "the ranks are in a wrong order"
    assert faults(told(["a", "b", "a", "b"], Layout(TWO, (2, 2)))) == [
        f"axis dp of ranks 0, 2 stays on a, and has to span 2 nodes: {wrong}",
        f"axis tp of ranks 0, 1 crosses a, b, and has to stay inside one node: {wrong}",
        f"axis dp of ranks 1, 3 stays on b, and has to span 2 nodes: {wrong}",
        f"axis tp of ranks 2, 3 crosses a, b, and has to stay inside one node: {wrong}",
    ]


def test_the_machines_count_and_not_what_the_job_calls_them() -> None:
    found = faults(told(["a", "a", "b", "b"], Layout(TWO, (2, 2)), real=["x", "y", "x", "y"]))
    assert found[1].startswith("axis tp of ranks 0, 1 crosses x, y, and has to stay inside one node")


def test_axes_of_other_ranks_than_planned_are_seen_on_one_machine_too() -> None:
    wrong = "the axis is laid out otherwise"
    assert faults(told(["a", "a", "a", "a"], Layout(("tp", "dp"), (2, 2))))[:2] == [
        f"axis dp of ranks 0, 1 stays on a, and has to be of ranks 0, 2: {wrong}",
        f"axis tp of ranks 0, 2 stays on a, and has to be of ranks 0, 1: {wrong}",
    ]


@pytest.mark.parametrize("wrong", [{"ranks": [0, 1]}, {"machines": ["a"]}], ids=["ranks", "machines"])
def test_a_rank_whose_axis_is_in_place_by_its_others_is_not_believed(wrong: dict[str, Any]) -> None:
    ranks = told(["a", "a", "b", "b"], Layout(TWO, (2, 2)))
    ranks[2].result["placement"][0].update(wrong)
    with pytest.raises(
        Unchecked, match=r"rank 2 on b says that axis dp .* others of that axis do not"
    ) as why:
        faults(ranks)
    assert [(one.kind, one.nodes) for one in why.value.blame] == [(BlameKind.LOST, ("b",))]


@pytest.mark.parametrize("step", [*test_mesh.STEPS, *test_mesh.EXPERTS, test_zero.HYBRID])
@pytest.mark.parametrize("per_node", [[2, 2], [1] * 6, [8, 8], [4, 4, 4]])
def test_the_plan_has_every_rank_once_in_each_axis(step: Case, per_node: list[int]) -> None:
    assert step.holds is not None
    assert step.holds.axes is not None
    groups = step.holds.axes(step.step, per_node)
    for axis in dict.fromkeys(axis for own in groups for axis in own):
        ranks = {tuple(own[axis]) for own in groups}
        assert sorted(rank for one in ranks for rank in one) == list(range(sum(per_node)))
        assert all(number in own[axis] for number, own in enumerate(groups))


def test_an_axis_larger_than_a_node_crosses_as_it_must() -> None:
    assert faults(told(["a", "b", "c", "d"], Layout(TWO, (2, 2)))) == []
    assert faults(told(["a", "a", "a", "a"], Layout(TWO, (2, 2)))) == []


def test_two_machines_of_one_name_are_two() -> None:
    def rank(ctx: Context) -> list[dict[str, Any]]:
        layout = Layout(("tp",), (2,))
        said = mock.patch.object(placement, "machine", return_value=("localhost", f"boot {ctx.rank}"))
        with said, laid_out(ctx, layout) as mesh:
            return placement.entries(ctx, mesh.used)

    assert [len(entries[0]["machines"]) for entries in run_world(2, rank)] == [2, 2]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "does not say its placement"),
        ({"placement": []}, "says where no axis is, and the plan asks for dp, tp"),
        ({"placement": [{"axis": "dp", "ranks": [1, 3], "machines": ["b"]}]}, "says where dp is"),
        ({"placement": [{"axis": "tp"}]}, "says of the place of an axis"),
        ({"placement": ["tp"]}, "says of the place of an axis"),
    ],
)
def test_a_rank_that_does_not_say_where_it_is_costs_its_own_node_the_verdict(
    said: dict[str, Any], why: str
) -> None:
    good = told(["a", "a", "b", "b"], Layout(TWO, (2, 2)))
    with pytest.raises(Unchecked, match=f"rank 3 on b {why}") as refused:
        faults([*good[:3], RankReport(3, "b", 1, "cpu", said)])
    assert [blame.nodes for blame in refused.value.blame] == [("b",)]


def test_this_machine_has_a_name_and_tells_itself_from_others() -> None:
    name, key = placement.machine()
    assert name
    assert len(key.split()) == 2
