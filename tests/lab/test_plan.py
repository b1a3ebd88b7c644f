from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.parts.files import node_files, write_lab
from tests.lab.plan import Plan, bits_per_s, burst_bytes


@pytest.mark.parametrize(
    ("nodes", "rate", "slots", "faults"),
    [
        (0, "fast", 0, ["nodes 0", "slots 0", "rate 'fast'"]),
        (1001, "0mbit", 1, ["nodes 1001", "rate '0mbit'"]),
        (2, "200mbit; reboot", 1, ["rate"]),
    ],
)
def test_a_plan_is_refused_with_all_its_faults(nodes: int, rate: str, slots: int, faults: list[str]) -> None:
    with pytest.raises(ValueError, match="; ".join(f"{fault}.*" for fault in faults)):
        Plan(nodes, rate, slots)


def test_names_sort_and_addresses_are_unique() -> None:
    plan = Plan(300)
    assert list(plan.names) == sorted(plan.names)
    assert plan.names[0] == "n001"
    assert len({plan.address(name) for name in plan.names}) == 300
    assert len({plan.mac(name) for name in plan.names} | {plan.nowhere(name) for name in plan.names}) == 600


def test_the_burst_grows_with_the_rate() -> None:
    assert bits_per_s("1.5gbit") == 1.5e9
    assert burst_bytes("10mbit") == 128 * 1024
    assert burst_bytes("10gbit") == 5_000_000


@pytest.mark.parametrize(("nodes", "known"), [(4, 0), (32, 31)])
def test_nodes_of_a_large_lab_need_not_ask_where_the_others_are(
    tmp_path: Path, nodes: int, known: int
) -> None:
    write_lab(tmp_path, Plan(nodes, "25mbit", 1))
    lines = (node_files(tmp_path, "n02") / "network.ip").read_text().splitlines()
    neighbours = [line.split() for line in lines if line.startswith("neigh ")]
    assert len(neighbours) == known
    assert all(words[2] != Plan(nodes).address("n02") and words[-1] == "permanent" for words in neighbours)
