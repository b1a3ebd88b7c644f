"""The files that come with the suite judge every case of the collectives suite, and each floor can fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from reports.record import Outcome
from thresholds.bounds import bound, ceiling
from thresholds.hardware import Hardware, Limit
from thresholds.load import load, shipped
from thresholds.lookup import LimitError, absent, find
from thresholds.rules import SWEPT
from thresholds.selectors import READERS, Value
from thresholds.units import COLLECTIVES, DATA_COLLECTIVES, METRICS
from thresholds.verdict import judge

COPY = 10.0  # a copy rate, GB/s, for the files that measure theirs
FILES = {name: load(path) for name, path in shipped().items()}
ROWS = [(hardware, limit) for hardware in FILES.values() for limit in hardware.limits]
Case = dict[str, Value]


def worlds(hardware: Hardware) -> Iterator[Case]:
    """Every (path, nodes, ranks per node) that a file should judge."""
    ranks = int(hardware.expect.get("gpus_per_node") or 0)
    yield {"path": hardware.inside, "nodes": 1, "ranks_per_node": ranks or 2}
    most = {"lab-200mbit": 8, "h100-sxm5-ndr400": 16, "cpu-local": 2}[hardware.name]
    for path, nodes in itertools.product(("network", "nic"), range(1, most + 1)):
        if path == "nic" or nodes > 1:
            yield {"path": path, "nodes": nodes, "ranks_per_node": ranks or 1}


def cases(hardware: Hardware) -> Iterator[tuple[str, Case]]:
    """Every metric and case that the collectives suite must judge."""
    for world in worlds(hardware):
        for collective, size in itertools.product(DATA_COLLECTIVES, hardware.sweep.plateau):
            yield from ((metric, {**world, "collective": collective, "size": size}) for metric in SWEPT)
        for collective, size in itertools.product(COLLECTIVES, hardware.sweep.latency):
            if world["path"] != "nic":
                yield (
                    "latency",
                    {**world, "collective": collective, "size": size if collective != "barrier" else 0},
                )


def an_example(hardware: Hardware, limit: Limit) -> Case:
    """A case that the row judges: a sample of each selector, and something common for the rest."""
    case: Case = {"collective": "all_reduce", "path": "network", "size": hardware.sweep.plateau[0]}
    case |= {"nodes": 1, "ranks_per_node": int(hardware.expect.get("gpus_per_node") or 2), "algorithm": ""}
    case |= {name: selector.samples()[0] for name, selector in limit.selectors.items() if name != "size"}
    case["nodes"] = 2 if case["path"] == "network" and case["nodes"] == 1 else case["nodes"]
    return case


@pytest.mark.parametrize("hardware", FILES.values(), ids=list(FILES))
def test_the_name_is_the_file_and_every_row_has_a_public_source(hardware: Hardware) -> None:
    assert hardware.path is not None
    assert hardware.path.stem == hardware.name
    assert all(limit.derived or len(limit.source) > 20 for limit in hardware.limits)


@pytest.mark.parametrize("hardware", FILES.values(), ids=list(FILES))
def test_every_case_of_the_collectives_suite_is_judged_or_declared_absent(hardware: Hardware) -> None:
    silent = []
    for metric, case in cases(hardware):
        if absent(hardware, case) is None:
            try:
                find(hardware, metric, case)
            except LimitError as error:
                silent.append(str(error))
    assert silent == []


@pytest.mark.parametrize("hardware", FILES.values(), ids=list(FILES))
def test_every_row_judges_some_case(hardware: Hardware) -> None:
    for limit in hardware.limits:
        for metric in limit.metrics:
            assert find(hardware, metric, an_example(hardware, limit)) is limit


@pytest.mark.parametrize(("hardware", "limit"), ROWS, ids=[limit.where for _, limit in ROWS])
def test_every_limit_refuses_a_bad_figure_and_accepts_a_good_one(hardware: Hardware, limit: Limit) -> None:
    case = an_example(hardware, limit)
    for metric in limit.metrics:
        good, bad = figures(hardware, limit, metric, case)
        outcomes = [
            found.outcome
            for value in (good, bad)
            if (found := judge(hardware, metric, case, value, 20, measured_gigabytes_per_s=COPY))
        ]
        assert outcomes == [Outcome.PASS, Outcome.FAIL]


def figures(hardware: Hardware, limit: Limit, metric: str, case: Case) -> tuple[float, float]:
    """A good value and a bad one for a row; a tenth of what is asked is slow, however asked."""
    if limit.kind == "max":
        return limit.value * 0.5, (limit.value + 1) / 2 if METRICS[metric].share else limit.value * 2
    best = ceiling(case, hardware.line_rate, COPY)
    floor = limit.value if limit.kind == "min" else limit.value * bound(case, hardware.line_rate, COPY)
    assert floor < best
    return (floor + best) / 2, floor * 0.95


def test_h100_says_where_nobody_published_a_figure() -> None:
    hardware = FILES["h100-sxm5-ndr400"]
    case: Case = {
        "collective": "all_reduce",
        "nodes": 17,
        "ranks_per_node": 8,
        "size": 8 << 30,
        "algorithm": "",
    }
    for path in ("network", "nic"):
        with pytest.raises(LimitError, match="nobody published") as caught:
            find(hardware, "busbw", {**case, "path": path})
        assert caught.value.kind == "gap"
    with pytest.raises(LimitError, match="NVLS is off or did not come up"):
        find(hardware, "busbw", {**case, "path": "nvlink", "nodes": 1, "algorithm": "ring"})


@pytest.mark.parametrize(
    ("nodes", "healthy", "sick"),
    [(1, 480.16, 367.2), (2, 469.84, 400.0), (4, 365.84, 300.0), (12, 386.56, 200.0)],
)
def test_h100_accepts_what_healthy_nodes_published(nodes: int, healthy: float, sick: float) -> None:
    path = "nvlink" if nodes == 1 else "network"
    case: Case = {
        "collective": "all_reduce",
        "path": path,
        "nodes": nodes,
        "ranks_per_node": 8,
        "size": 8 << 30,
    }
    found = [judge(FILES["h100-sxm5-ndr400"], "busbw", case, value, 20) for value in (healthy, sick)]
    assert [one.outcome for one in found if one] == [Outcome.PASS, Outcome.FAIL]


@pytest.mark.parametrize("collective", ["all_reduce", "send_recv", "all_gather"])
def test_the_lab_tells_180_mbit_from_200(collective: str) -> None:
    hardware = FILES["lab-200mbit"]
    case: Case = {
        "collective": collective,
        "path": "network",
        "nodes": 4,
        "ranks_per_node": 1,
        "size": 1 << 20,
    }
    healthy = 0.945 * 0.025
    found = [judge(hardware, "busbw", case, value, 20) for value in (healthy, healthy * 180 / 200)]
    assert [one.outcome for one in found if one] == [Outcome.PASS, Outcome.FAIL]


def test_files_without_accelerators_say_what_they_honestly_judge() -> None:
    assert "no acceptance of GPU hardware" in FILES["cpu-local"].judges
    assert "no GPU hardware" in FILES["lab-200mbit"].judges
    assert not FILES["lab-200mbit"].auto


def test_every_selector_that_rows_use_is_known() -> None:
    assert {name for _, limit in ROWS for name in limit.selectors} <= set(READERS)
