"""Bounds agree with the published arithmetic and with published measurements, and refuse the impossible."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from tests.thresholds.files import case
from thresholds.bounds import BoundError, Wires, bound, ceiling, hierarchical, network_bound
from thresholds.hardware import LineRate
from thresholds.units import ALGORITHMS, DATA_COLLECTIVES

H100 = LineRate("nvlink", {"nvlink": 450.0, "network": 50.0}, nvls=True)
LAB = LineRate("memory", {"memory": None, "network": 0.025}, network_is_per_node=True)
COPY = 5.0  # a measured copy rate, GB/s


def wires(collective: str, g: int, k: int, V: float, b: float) -> Wires:
    return Wires(collective, "network", "", g, k, V, b, g * b, nvls=False, sharp=False)


# Per platform: V, b, g; then B, hierarchical all_reduce and all_to_all at 2, 4, 8, 16 nodes.
PLATFORMS = [
    ("v100 8x100 Gb/s shared", 150, 1.5625, 8, 12.5, (23, 16, 14, 13), (2.9, 2.0, 1.8, 1.7)),
    ("a100 p4d", 300, 6.25, 8, 50, (94, 65, 56, 53), (11.7, 8.1, 7.0, 6.6)),
    ("a100 8x200", 300, 25, 8, 200, (375, 258, 225, 212), (46.9, 32.3, 28.1, 26.5)),
    ("h100 8x400", 450, 50, 8, 400, (750, 517, 450, 423), (93.8, 64.6, 56.2, 52.9)),
    ("h100 a3-high", 450, 12.5, 8, 100, (188, 129, 112, 106), (23.4, 16.1, 14.1, 13.2)),
    ("gb200", 900, 50, 4, 200, (350, 250, 221, 210), (87.5, 62.5, 55.4, 52.5)),
]


@each("platform", PLATFORMS)
def test_limits_per_platform(
    platform: tuple[str, float, float, int, float, tuple[float, ...], tuple[float, ...]],
) -> None:
    _, V, b, g, B, across, exchange = platform
    assert network_bound(wires("all_gather", g, 4, math.inf, b)) == B
    for k, limit in zip((2, 4, 8, 16), across, strict=True):
        assert hierarchical(wires("all_reduce", g, k, V, b)) == pytest.approx(limit, abs=0.5)
    for k, limit in zip((2, 4, 8, 16), exchange, strict=True):
        assert network_bound(wires("all_to_all", g, k, V, b)) == pytest.approx(limit, abs=0.1)


SHARP = LineRate("nvlink", H100.links, nvls=True, sharp=True)
PLAIN = LineRate("nvlink", H100.links)
PCIE = LineRate("pcie", {"pcie": 25.0, "network": 50.0})
GB200 = LineRate("nvlink", {"nvlink": 900.0, "mnnvl": 900.0, "network": 50.0}, nvls=True)
ACROSS = ((2, 750), (4, 517), (8, 450), (16, 423))  # nodes of 8 x 400 Gb/s, and the hierarchical bound
BOUNDS = [
    *((case("all_reduce", nodes, algorithm="tree"), H100, limit) for nodes, limit in ACROSS),
    *((case("all_reduce", nodes, algorithm=name), H100, 400) for nodes, _ in ACROSS for name in ("", "ring")),
    # NVLS alone passes the link rate inside a node
    (case("all_reduce", 1, "nvlink", algorithm="nvls"), H100, 700),
    (case("all_reduce", 1, "nvlink"), H100, 450),
    # NVLink between nodes makes one of them
    *((case("all_to_all", nodes, "mnnvl", ranks_per_node=4), GB200, 900) for nodes in (2, 18)),
    (case("all_reduce", 2, "mnnvl", ranks_per_node=4, algorithm="nvls"), GB200, 1400),
    # what the switches reduce is no part of what a ring is asked
    *((case("all_reduce", nodes, "nic"), SHARP, 50) for nodes in (1, 2, 16)),
    # a root has one NIC, a shift crosses one, and in a bisection every rank has its part of them
    (case("gather", 2), H100, 50 * 15 / 8),
    (case("send_recv", 4), H100, 50),
    *((case("bisection", 4, path), H100, 50) for path in ("network", "nic")),
    *((case("bisection", 4, path, ranks_per_node=2), LAB, 0.0125) for path in ("network", "nic")),
    # a slow link inside bounds what crosses nodes, of which a bisection has nothing
    (case("all_gather", 2), PCIE, 25),
    (case("send_recv", 2), PCIE, 25),
    (case("bisection", 2), PCIE, 50),
    # one rank per node has one NIC, and ranks that share a NIC share its rate
    *((case(collective, 4, ranks_per_node=1), H100, 50) for collective in DATA_COLLECTIVES),
    (case("all_reduce", 4, ranks_per_node=2), LAB, 0.025),
    (case("send_recv", 4, ranks_per_node=2), LAB, 0.025),
    (case("all_to_all", 2, ranks_per_node=2), LAB, 0.025 / 2 * 3 / 2),
]
CEILINGS = [
    *((case("all_reduce", nodes), H100, limit) for nodes, limit in ACROSS),
    (case("all_reduce", 1, "nvlink"), H100, 700),
    (case("all_gather", 1, "nvlink"), H100, 450),
    (case("all_reduce", 1, "nvlink"), PLAIN, 450),
    (case("all_reduce", 1, "nvlink", ranks_per_node=2), H100, 450),  # two may still use the link
    # SHARP allows an all_reduce up to twice the NICs, and nothing else
    (case("all_reduce", 16), SHARP, 2 * 127 / 128 * 400),
    (case("all_gather", 16), SHARP, ceiling(case("all_gather", 16), H100)),
    (case("all_reduce", 1, "nic"), SHARP, 50),  # nor is there any inside one node
    (case("all_reduce", 2, "nic"), SHARP, 2 * 15 / 16 * 50),
    (case("all_gather", 2, "nic"), SHARP, 50),
    (case("scatter", 2), H100, 500),  # all NICs, or NVLink and its own
    (case("send_recv", 4), H100, 50),
    *((case("bisection", 4, path), H100, 50) for path in ("network", "nic")),
    *((case("bisection", 4, path, ranks_per_node=2), LAB, 0.0125) for path in ("network", "nic")),
    (case("broadcast", 2), PCIE, 25 * 8 / 7),
    *(
        (case(collective, 4, ranks_per_node=1), H100, 100 if collective == "all_to_all_v" else 50)
        for collective in DATA_COLLECTIVES
    ),
]


@each(("at", "rates", "limit"), BOUNDS)
def test_the_bound_of_an_algorithm(at: dict[str, str | int], rates: LineRate, limit: float) -> None:
    assert bound(at, rates) == pytest.approx(limit, rel=0.001)


@each(("at", "rates", "limit"), CEILINGS)
def test_what_no_algorithm_passes(at: dict[str, str | int], rates: LineRate, limit: float) -> None:
    assert ceiling(at, rates) == pytest.approx(limit, rel=0.001)


@each("nodes", [2, 3, 4, 8, 64])
@each("algorithm", ["", "ring", "tree", "nvls"])
def test_800_on_a_fabric_of_400_is_impossible(nodes: int, algorithm: str) -> None:
    # awslabs/awsome-distributed-ai@95b939c 4.validation_and_observability/2.gpu-cluster-healthcheck, check 5
    assert ceiling(case("all_reduce", nodes, algorithm=algorithm), H100) < 800
    assert ceiling(case("all_reduce", nodes, algorithm=algorithm), SHARP) < 800


@each(
    ("measured", "at"),
    [
        (483.05, case("all_reduce", 1, "nvlink")),  # p5, 16 GiB, NVLS
        (487.09, case("all_reduce", 2)),  # p5, 16 GiB, NVLSTree
        (471.22, case("all_reduce", 2)),  # OCI
        (365.84, case("all_reduce", 4)),  # nccl-tests#309
        (386.56, case("all_reduce", 12)),  # CoreWeave
        (335.2, case("all_gather", 1, "nvlink")),
        (53.9, case("all_to_all", 4)),  # p5
        (51.1, case("all_to_all", 8)),
        (46.3965, case("all_reduce", 1, "nic")),  # Azure, NICs only
        (47.0, case("send_recv", 2)),
    ],
)
def test_what_healthy_hardware_published_is_possible(measured: float, at: dict[str, str | int]) -> None:
    assert measured <= ceiling(at, H100)


def test_a_measured_rate_must_have_been_measured() -> None:
    inside = case("all_reduce", 1, "memory", ranks_per_node=2)
    assert bound(inside, LAB, COPY) == COPY
    for missing in (None, math.nan, math.inf, 0.0, -1.0):
        with pytest.raises(BoundError, match="none was measured"):
            bound(inside, LAB, missing)


def test_a_shaped_link_lets_a_burst_pass_at_once() -> None:
    shaped = LineRate("memory", LAB.links, network_is_per_node=True, network_burst_bytes=128 << 10)
    at = case("send_recv", 2, ranks_per_node=1, size=1 << 20)
    assert bound(at, shaped) == 0.025
    assert ceiling(at, shaped) == pytest.approx(0.025 / (1 - 1 / 8))
    assert ceiling({**at, "size": 128 << 10}, shaped) == math.inf
    assert ceiling({**at, "size": 0}, shaped) == 0.025


@each(
    ("change", "words"),
    [
        ({"collective": "barrier"}, "no bus bandwidth"),
        ({"collective": ""}, "no bus bandwidth"),
        ({"algorithm": "magic"}, "no bus bandwidth"),
        ({"nodes": 0}, "does not say its nodes"),
        ({"nodes": "2"}, "does not say its nodes"),
        ({"ranks_per_node": 0}, "does not say its ranks_per_node"),
        ({"ranks_per_node": True}, "does not say its ranks_per_node"),
        ({"nodes": 1}, "path network cannot be measured on 1 node"),
        ({"path": "nvlink"}, "path nvlink cannot be measured on 2 node"),
        ({"path": "xgmi", "nodes": 1}, "path xgmi cannot be measured"),
        ({"path": ""}, "path [?] cannot be measured"),
        ({"path": "nic", "nodes": 1, "ranks_per_node": 1}, "over one rank moves no data"),
    ],
)
def test_a_case_without_a_bound_says_what_is_missing(change: dict[str, str | int], words: str) -> None:
    with pytest.raises(BoundError, match=words):
        bound({**case("all_reduce", 2), **change}, H100)


def test_a_path_without_a_line_rate_and_nvls_without_switches_have_no_bound() -> None:
    with pytest.raises(BoundError, match="nvls = true"):
        bound(case("all_reduce", 1, "nvlink", algorithm="nvls"), PLAIN)
    with pytest.raises(BoundError, match="says nothing about network"):
        bound(case("all_reduce", 2), LineRate("nvlink", {"nvlink": 450.0}))


@given(
    st.sampled_from(DATA_COLLECTIVES),
    st.sampled_from(ALGORITHMS),
    st.integers(1, 64),
    st.integers(1, 16),
    st.booleans(),
)
def test_no_bound_is_above_the_ceiling(
    collective: str, algorithm: str, nodes: int, g: int, nic: bool
) -> None:
    path = "nic" if nic else ("network" if nodes > 1 else "nvlink")
    at = case(collective, nodes, path, g, algorithm)
    if nodes * g > 1:
        assert 0 < bound(at, H100) <= ceiling(at, H100) < math.inf
