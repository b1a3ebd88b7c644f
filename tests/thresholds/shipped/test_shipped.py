"""Shipped files judge every case of the default workload, and each limit of theirs can fail."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fixtures.check import requests
from fixtures.check.foresight import lacking, required
from fixtures.check.plan import MARK, Planned, Topology, plan
from fixtures.check.target import Target
from fixtures.ranks.collectives.shapes import splits
from reports.record import Outcome
from tests.each import each
from tests.thresholds.files import case, whole
from thresholds.bounds import bound, ceiling
from thresholds.hardware import Hardware, Limit
from thresholds.loading.rules import SWEPT
from thresholds.lookup import HOST_TIMED, absent, find
from thresholds.selectors import READERS, Value
from thresholds.units import METRICS
from thresholds.verdict import judge

COPY = 10.0  # a copy rate, GB/s, for the files that measure theirs
FILES = whole()
ROWS = [(hardware, limit) for hardware in FILES.values() for limit in hardware.limits]
# what a file is for, where that is not the usual
NODES = {"lab-200mbit": (1, 2, 4, 8), "l40s": (1,), "aws-g6e": (1,)}
USUAL = (1, 2, 3, 4, 5, 8, 9, 16, 17, 128)  # both ends of every range of nodes that a row has
ROOT = Path(__file__).parents[3]
SUITES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.glob("suites/*/test_*.py")
)
Case = dict[str, Value]


def marks() -> Iterator[pytest.Mark]:
    """The plans of all tests of the suites."""
    for name in SUITES:
        for test in vars(importlib.import_module(name)).values():
            yield from (mark for mark in getattr(test, "pytestmark", ()) if mark.name == MARK)


@cache
def cases(count: int, ranks: int) -> list[Planned]:
    """Every case of the default workload on so many nodes of so many ranks."""
    topology = Topology({f"n{number}": ranks for number in range(count)})
    return [one for mark in marks() for one in plan(mark, topology)]


def targets(hardware: Hardware) -> Iterator[Target]:
    """Every case of the default workload that needs limits, on each number of nodes a file is for."""
    return (target for target in present(hardware) if target.planned.metrics)


def present(hardware: Hardware) -> Iterator[Target]:
    """Every case of the default workload whose path the hardware has, on each number of nodes it is for."""
    gpus = int(hardware.expect.get("gpus_per_node") or 0)
    for count in NODES.get(hardware.name, USUAL):
        every = cases(count, gpus or 2)
        # the same is asked of every node
        asked = {(one.case.step, one.case.words, tuple(one.metrics), one.place): one for one in every}
        for planned in asked.values():
            ranks = dict.fromkeys(planned.nodes, gpus or (2 if planned.place.each else 1))
            target = Target(planned, ranks, hardware, "nccl" if gpus else "gloo", {})
            if not absent(hardware, target.case()):
                yield target


def an_example(hardware: Hardware, limit: Limit) -> Case:
    """A case that the row judges: a sample of each selector, and something common for the rest."""
    ranks = int(hardware.expect.get("gpus_per_node") or 2)
    found = case("all_reduce", 1, ranks_per_node=ranks, size=hardware.sweep.plateau[0])
    found |= {name: selector.samples()[0] for name, selector in limit.selectors.items() if name != "size"}
    found["nodes"] = 2 if found["path"] == "network" and found["nodes"] == 1 else found["nodes"]
    return found


@each("hardware", FILES.values())
def test_the_name_is_the_file_and_every_row_has_a_public_source(hardware: Hardware) -> None:
    assert hardware.path is not None
    assert hardware.path.stem == hardware.name
    assert all(limit.derived or len(limit.source) > 20 for limit in hardware.limits)


def test_the_default_workload_needs_limits_of_every_kind() -> None:
    needed = {name for mark in marks() for name in mark.kwargs.get("metrics", ())}
    assert needed >= {*SWEPT, "latency", "edge", "dispatch", "combine"}


@each("hardware", FILES.values())
def test_every_case_of_the_default_workload_has_one_limit_or_is_declared_absent(hardware: Hardware) -> None:
    asked = list(targets(hardware))
    assert asked
    assert not {str(error) for target in asked for error in lacking(target)}


@each("hardware", [one for one in FILES.values() if "network" in one.line_rate.links])
def test_two_nodes_at_a_time_have_the_floor_of_a_bisection(hardware: Hardware) -> None:
    """At the size at which they are timed, which is less than that of a sweep."""
    timed = [one for one in present(hardware) if one.planned.case.step == "collectives.pairs"]
    asked = [(one, requests.pairs(one)) for one in timed if len(one.nodes) >= requests.LEAST_OF_PAIRS]
    assert asked
    for one, request in asked:
        assert find(hardware, "busbw", one.case(nodes=2, size=request.parameters["size_bytes"]))


@each("hardware", FILES.values())
def test_every_row_judges_some_case(hardware: Hardware) -> None:
    for limit in hardware.limits:
        for metric in limit.metrics:
            assert find(hardware, metric, an_example(hardware, limit)) is limit


@each(("hardware", "limit"), ROWS)
def test_every_limit_tells_good_from_slow_from_wrong(hardware: Hardware, limit: Limit) -> None:
    case = an_example(hardware, limit)
    for metric in limit.metrics:
        good, slow = figures(hardware, limit, metric, case)
        assert outcome(hardware, metric, case, good) is Outcome.PASS
        assert outcome(hardware, metric, case, slow) is Outcome.FAIL
        assert outcome(hardware, metric, case, math.nan) is Outcome.UNCHECKED
        if METRICS[metric].bounded:
            above = ceiling(case, hardware.line_rate, COPY) * 1.01
            assert outcome(hardware, metric, case, above) is Outcome.UNCHECKED


def outcome(hardware: Hardware, metric: str, case: Case, value: float) -> Outcome | None:
    found = judge(hardware, metric, case, value, 10_000, measured_gigabytes_per_s=COPY)
    return found.outcome if found else None


def figures(hardware: Hardware, limit: Limit, metric: str, case: Case) -> tuple[float, float]:
    """A good value for a row, and one that is a tenth worse than it allows."""
    more = min(limit.value * 1.1, (limit.value + 1) / 2) if METRICS[metric].share else limit.value * 1.1
    if limit.kind == "max":
        return limit.value * 0.9, more or 1
    if not METRICS[metric].bounded:
        return more, limit.value * 0.9
    best = ceiling(case, hardware.line_rate, COPY)
    floor = limit.value if limit.kind == "min" else limit.value * bound(case, hardware.line_rate, COPY)
    assert floor < best
    return (floor + best) / 2, floor * 0.9


LAB = case("all_reduce", 4, ranks_per_node=1, size=1 << 20)
# What healthy machines published (0: nobody did), and what is slow.
JUDGED = [
    ("h100-sxm5-ndr400", case("all_reduce", 1, "nvlink"), 480.16, 367.2),
    ("h100-sxm5-ndr400", case("all_reduce", 2), 469.84, 400.0),
    ("h100-sxm5-ndr400", case("all_reduce", 4), 330.93, 300.0),
    ("h100-sxm5-ndr400", case("all_reduce", 12), 386.56, 200.0),
    # two nodes are held to their plateau
    ("h100-sxm5-ndr400", case("all_reduce", 2, size=4 << 30), 0, 435.0),
    ("oci-h100", case("all_reduce", 2, size=4 << 30), 0, 435.0),
    ("oci-h100", case("all_reduce", 4), 320.0, 290.0),  # of as many Gb/s by RoCE
    # the lab tells 160 Mbit/s from 200, and a tenth that a busy machine takes from healthy links is not red
    ("lab-200mbit", LAB, 0.9 * 0.945 * 0.025, 0.945 * 0.025 * 160 / 200),
    ("lab-200mbit", {**LAB, "collective": "send_recv"}, 0.9 * 0.945 * 0.025, 0.945 * 0.025 * 160 / 200),
    ("aws-p4d", case("all_reduce", 2), 42.5, 25.0),  # a ring
    ("gcp-a3-high", case("all_gather", 2), 50.17, 40.0),  # TCPX by an image that is not tuned for it
    # floors that let a fifth or more go
    ("gcp-a4", case("all_reduce", 2), 0, 430.0),
    ("gcp-a4", case("all_reduce", 4), 0, 290.0),
    ("gcp-a4", case("all_gather", 2), 0, 300.0),
    ("b200-ndr400", case("all_reduce", 2), 0, 430.0),
    ("h100-roce400", case("all_reduce", 2), 430.0, 376.0),  # with NVLS, and without one rail of eight
    ("h100-roce400", case("all_reduce", 4), 320.0, 290.0),
    ("h200-roce400", case("all_reduce", 2), 430.0, 376.0),
    ("aws-p6-b300", case("all_reduce", 4), 0, 600.0),
    ("aws-p6-b300", case("all_reduce", 1, "nvlink"), 834.84, 790.0),
    ("aws-p6-b300", case("all_to_all", 1, "nvlink"), 670.76, 590.0),
    ("b300-roce800", case("all_reduce", 2), 766.54, 690.0),
    ("b300-roce800", case("all_to_all", 2), 180.98, 90.5),  # by half of its NICs
    ("b300-roce800", case("send_recv", 2), 0, 50.0),
    ("gb200-nvl72-ndr400", case("all_reduce", 2, "mnnvl", ranks_per_node=4), 811.0, 720.0),
    ("gb200-nvl72-ndr400", case("all_reduce", 18, "mnnvl", ranks_per_node=4), 834.57, 720.0),
    ("gb200-nvl72-ndr400", case("all_to_all", 16, "mnnvl", ranks_per_node=4), 622.92, 90.0),  # by NIC
]


@each(("name", "asked", "healthy", "sick"), JUDGED)
def test_what_healthy_nodes_published_is_accepted_and_what_is_slow_is_red(
    name: str, asked: Case, healthy: float, sick: float
) -> None:
    found = [judge(FILES[name], "busbw", asked, value, 20) for value in (sick, healthy) if value]
    assert [one.outcome for one in found if one] == [Outcome.FAIL, Outcome.PASS][: len(found)]


@each(("name", "nodes"), itertools.product(("h100-sxm5-ndr400", "h200-ndr400", "b200-ndr400"), (1, 2, 16)))
def test_a_file_that_says_sharp_asks_no_more_of_the_nics_alone(name: str, nodes: int) -> None:
    """46.3965 of 50 is Azure's, whose switches may reduce; and half of it is red."""
    sharp = replace(FILES[name], line_rate=replace(FILES[name].line_rate, sharp=True))
    asked = case("all_reduce", nodes, "nic")
    found = [outcome(sharp, "busbw", asked, value) for value in (46.3965, 23.2)]
    assert found == [Outcome.PASS, Outcome.FAIL]


def test_a_fabric_of_half_the_rate_misses_the_floor_of_a_bisection_unless_the_file_says_why_not() -> None:
    blind = set()
    for hardware in (one for one in FILES.values() if "network" in one.line_rate.links):
        ranks = int(hardware.expect.get("gpus_per_node") or 1)
        asked = case("bisection", 4, ranks_per_node=ranks, size=hardware.sweep.plateau[0])
        best = bound(asked, hardware.line_rate)
        assert outcome(hardware, "busbw", asked, 0.95 * best) is Outcome.PASS
        if outcome(hardware, "busbw", asked, best / 2) is not Outcome.FAIL:
            assert "oversubscription of 2:1" in find(hardware, "busbw", asked).source
            blind.add(hardware.name)
    assert blind == {"aws-p3dn", "gcp-a3-high", "oci-a100-40", "oci-a100-80"}


def test_files_that_cannot_judge_all_say_what_they_honestly_judge() -> None:
    assert "no acceptance of GPU hardware" in FILES["cpu-local"].judges
    assert "no GPU hardware" in FILES["lab-200mbit"].judges
    assert not FILES["lab-200mbit"].auto
    assert not FILES["lab-200mbit"].shared  # its ranks have each other's cores, and would excuse a slow link


def test_every_selector_that_rows_use_is_known_and_some_case_has_it() -> None:
    used = {name for file in FILES.values() for limit in file.limits for name in limit.selectors}
    used |= {name for file in FILES.values() for gap in file.gaps for name in gap.selectors}
    produced = {
        name for target in targets(FILES["h100-sxm5-ndr400"]) for _, case in required(target) for name in case
    }
    assert used <= set(READERS)
    assert used <= produced


@each("name", ["h100-sxm5-ndr400", "h200-ndr400", "b200-ndr400", "azure-ndv5-mi300x"])
def test_two_gpus_may_share_a_link_to_the_host_when_all_copy_at_once_and_one_alone_has_it_whole(
    name: str,
) -> None:
    half = 54.8 / 2  # of PCIe 5.0 x16: also what one GPU has by half the lanes, or by the generation before
    for metric in ("host_to_device", "device_to_host"):
        found = [
            outcome(FILES[name], metric, {"step": f"nodes.host_links{step}", "nodes": 1}, rate)
            for step, rate in (("", half), ("", half / 2), (" alone", half))
        ]
        assert found == [Outcome.PASS, Outcome.FAIL, Outcome.FAIL]


@each("path", ["nvlink", "network"])
def test_a_barrier_which_the_host_times_has_a_ceiling_of_its_own(path: str) -> None:
    hardware = FILES["h100-sxm5-ndr400"]
    asked = case("barrier", 1 if path == "nvlink" else 4, path)
    del asked["size"]
    timed_by_device = find(hardware, "latency", {**asked, "collective": "all_reduce"})
    assert find(hardware, "latency", asked).value == HOST_TIMED * timed_by_device.value
    assert outcome(hardware, "latency", asked, 110.0) is Outcome.PASS  # what the host's part may come to
    assert outcome(hardware, "latency", asked, 1000.0) is Outcome.FAIL


@each("name", ["h100-sxm5-ndr400", "oci-h100"])
def test_two_nodes_are_held_to_their_plateau_only_where_it_is_reached(name: str) -> None:
    assert outcome(FILES[name], "busbw", case("all_reduce", 2, size=1 << 30), 435.0) is Outcome.UNCHECKED


@each("name", ["aws-p5", "aws-p5e", "aws-p5en", "aws-p6-b200", "aws-p6-b300", "gcp-a3-mega"])
def test_a_shift_is_not_held_to_the_share_of_another_fabric(name: str) -> None:
    for path in ("network", "nic"):
        asked = case("send_recv", 2, path)
        good = 0.84 * bound(asked, FILES[name].line_rate)
        assert not find(FILES[name], "busbw", asked).fabrics
        assert outcome(FILES[name], "busbw", asked, good) is Outcome.PASS


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_kernels_of_an_engine_are_held_to_what_torchs_own_exchange_of_the_same_rows_is(nodes: int) -> None:
    place: Case = {"path": "network", "nodes": nodes, "ranks_per_node": 8}
    floors = [
        find(FILES["h100-sxm5-ndr400"], "dispatch", {**place, "step": step}).value
        for step in ("expert.throughput", "expert.deepep")
    ]
    assert floors[0] == floors[1]


@pytest.mark.parametrize("nodes", [2, 3, 4, 8, 16])
def test_uneven_splits_are_asked_no_more_than_their_busiest_rank_can_send(nodes: int) -> None:
    """Each rank has its own NIC, and all wait for the one that sends most between nodes."""
    judged = 0
    for hardware in FILES.values():
        nics, gpus = (int(hardware.expect.get(f"{what}_per_node") or 0) for what in ("nics", "gpus"))
        if not nics >= gpus > 1 or absent(hardware, case("all_to_all", nodes, ranks_per_node=gpus)):
            continue
        ranks = nodes * gpus
        away = [sum(splits(rank, ranks, ranks)[0][gpus:]) for rank in range(gpus)]
        busiest = max(away) / ((ranks - gpus) * ranks)
        even, uneven = (
            find(hardware, "busbw", case(name, nodes, ranks_per_node=gpus))
            for name in ("all_to_all", "all_to_all_v")
        )
        assert uneven.kind == even.kind == "min_of_bound"
        assert uneven.value <= even.value / busiest, (hardware.name, busiest)
        judged += 1
    assert judged > 10
