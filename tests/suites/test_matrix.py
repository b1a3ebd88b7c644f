"""The real suites, as they are collected: complete, and with names that last."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

from fixtures.check import cost
from fixtures.check.plan import Topology, plan
from fixtures.check.target import Target, turn_of
from fixtures.check.workload import FAMILIES
from fixtures.ranks.collectives.calls import CALLS
from fixtures.run.provenance import ROOT
from fixtures.transport.hosts import parse
from fixtures.wire.collectives import BARRIER, COLLECTIVES
from suites.collectives import test_collectives
from suites.context import test_context
from suites.expert import test_expert
from suites.mesh import test_mesh
from suites.nodes import (
    test_compute,
    test_inventory,
    test_links,
    test_memory,
    test_reachability,
    test_repeatability,
)
from suites.pipeline import test_pipeline
from suites.selfcheck import test_selfcheck
from suites.soak import test_soak
from suites.tensor import test_tensor
from suites.zero import test_zero
from thresholds.loading.load import load, shipped
from thresholds.lookup import absent
from thresholds.units import DTYPES

COLLECTIVE = (test_collectives,)
PARALLEL = (test_zero, test_tensor, test_context, test_pipeline, test_expert, test_mesh)
NODES = (test_reachability, test_inventory, test_compute, test_memory, test_links, test_repeatability)
MODULES = (test_selfcheck, *NODES, *COLLECTIVE, *PARALLEL, test_soak)
TWO = Topology.of(parse("gpu-01 slots=8\ngpu-02 slots=8\n", "nodes.txt"))


def planned(topology: Topology) -> list[str]:
    """List the ids of every test of every suite file."""
    found = []
    for module in MODULES:
        for name, function in vars(module).items():
            for mark in getattr(function, "pytestmark", ()):
                found += [f"{module.__name__}::{name}[{case.id}]" for case in plan(mark, topology)]
    return found


def test_every_suite_file_is_looked_at_here() -> None:
    there = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "suites").rglob("test_*.py")}
    assert there == {Path(*module.__name__.split(".")) for module in MODULES}


def test_every_folder_is_a_family_that_workloads_can_name() -> None:
    folders = {path.parent.name for path in (ROOT / "suites").glob("*/test_*.py")}
    assert folders == {*FAMILIES, "selfcheck"}


def test_names_are_distinct_after_a_ci_server_has_cleaned_them() -> None:
    names = [re.sub(r"\W", "_", name) for name in planned(TWO)]
    assert len(set(names)) == len(names) > 300


def test_names_do_not_depend_on_other_nodes() -> None:
    one = Topology.of(parse("gpu-01 slots=8\n", "nodes.txt"))
    assert set(planned(one)) < set(planned(TWO))
    assert not [name for name in planned(TWO) if "gpu-01" in name and "gpu-02" in name]


@pytest.mark.parametrize("place", ["inside-gpu-01", "network"])
def test_every_collective_is_compared_in_every_dtype_and_timed(place: str) -> None:
    names = planned(TWO)
    data = [name for name in COLLECTIVES if name not in test_collectives.ACROSS]
    for collective in data:
        assert f"{test_collectives.__name__}::test_busbw_holds_its_floor[{collective}-{place}]" in names
        for dtype in DTYPES:
            wanted = f"test_every_element_arrives[{collective}-{dtype}-{place}]"
            assert f"{test_collectives.__name__}::{wanted}" in names
    for collective in (*data, BARRIER):
        wanted = f"test_latency_stays_below_its_ceiling[{collective}-{place}]"
        assert f"{test_collectives.__name__}::{wanted}" in names


def test_the_halves_of_the_cluster_are_judged_across_nodes_and_nowhere_else() -> None:
    found = {name.rpartition("::")[2] for name in planned(TWO) if "bisection" in name}
    assert found == {"test_bisection_bandwidth_holds_its_floor[bisection-network]"}


def test_the_nics_are_judged_alone() -> None:
    assert any(name.endswith("[all_reduce-nic]") for name in planned(TWO))
    assert any(name.endswith("[nic]") for name in planned(TWO))


def test_every_row_of_the_table_of_collectives_is_planned_and_can_be_called() -> None:
    rows = set(COLLECTIVES)
    assert {*test_collectives.DATA, *test_collectives.ACROSS} == rows == set(CALLS)


EDGES = "its edges are those of pipeline.edges"
WITHOUT_PATTERN = {
    **dict.fromkeys((case.step for case in test_pipeline.SCHEDULES), EDGES),
    "expert.m2n": "its edges are those of expert.m2n_speed",
    "expert.deepep": "its kernels are an engine's, of which NCCL's rows say nothing: dispatch has rows",
    "zero.deepspeed": "its collectives are those of zero.zero1 to zero.zero3",
    "tensor.async_tp": "its fused operations are torch's own, of which NCCL's rows say nothing",
}


def steps(name: str = "test_") -> set[str]:
    """The steps that are planned by the parallel families' tests whose names begin so."""
    tests = [test for module in PARALLEL for word, test in vars(module).items() if word.startswith(name)]
    marks = [mark for test in tests for mark in getattr(test, "pytestmark", ())]
    return {case.step for mark in marks for case in mark.args[0]}


def test_every_parallel_step_has_a_pattern_that_is_judged_or_a_reason() -> None:
    assert steps() - steps("test_pattern_holds_its_limit") == set(WITHOUT_PATTERN)


def test_what_steps_take_is_said_of_steps_that_are_planned() -> None:
    assert cost.STEP_TIMES.keys() <= steps()


def test_each_environment_and_each_world_in_it_comes_once_in_a_family() -> None:
    file, ranks = load(shipped()["h100-sxm5-ndr400"]), {"gpu-01": 8, "gpu-02": 8}
    environments = []
    for module in (*COLLECTIVE, *PARALLEL):
        marks = [mark for test in vars(module).values() for mark in getattr(test, "pytestmark", ())]
        cases = sorted((one for mark in marks for one in plan(mark, TWO)), key=turn_of)
        targets = [Target(one, ranks, file, "nccl", {}) for one in cases]
        targets = [target for target in targets if not absent(file, target.case())]
        worlds = [key for key, _ in groupby((one.environment, one.planned.place.each) for one in targets)]
        assert not [key for number, key in enumerate(worlds) if key in worlds[:number]], module.__name__
        environments += [key for key, _ in worlds]
    assert len([*groupby(environments)]) == 3  # as it is, by NIC alone, without NVLS: a job each
