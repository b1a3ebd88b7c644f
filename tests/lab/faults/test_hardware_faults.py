"""A node that is dressed as other hardware looks like it, through its sshd, until it is undressed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.node.inventory.h100_node import write_node
from tests.lab import Lab
from tests.lab.probe import login
from tests.lab.pytest_support import lab_of

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("require_lab")]

REPOSITORY = Path(__file__).resolve().parents[3]
READ = "import json; from fixtures.node import inventory; print(json.dumps(inventory.read()))"


lab = lab_of(nodes=2)


def read(lab: Lab, node: str) -> dict[str, Any]:
    said = login(lab, node, f"cd {REPOSITORY} && {sys.executable} -c '{READ}'", timeout_s=90)
    assert said.returncode == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def seen(lab: Lab, node: str) -> set[str]:
    places = "/sys/class /sys/bus /sys/module /proc/driver /sys/class/net"
    return set(
        lab.on(
            node, ["sh", "-c", f"ls -d $(for p in {places}; do echo $p/*; done) 2>/dev/null"]
        ).stdout.split()
    )


def test_a_dressed_node_looks_like_its_hardware_until_it_is_undressed(lab: Lab, tmp_path: Path) -> None:
    before = seen(lab, "n01")
    write_node(tmp_path, missing_nic=6, gpus={3: {"width": 8}})
    lab.dress("n01", tmp_path)
    found = read(lab, "n01")
    assert {gpu["name"] for gpu in found["gpus"]} == {"NVIDIA H100 80GB HBM3"}
    assert [gpu["pcie"]["width"] for gpu in found["gpus"]] == [16, 16, 16, 8, 16, 16, 16, 16]
    assert [gpu["numa"] for gpu in found["gpus"]] == [0] * 4 + [1] * 4
    assert [port["device"] for port in found["nics"]] == [f"mlx5_{n}" for n in (0, 1, 2, 3, 4, 5, 7)]
    assert found["versions"]["driver"] == "550.54.15"
    assert (found["host"]["peermem"], found["host"]["xids"]) == ("nvidia_peermem", [])
    assert found["topology"]["nvswitches"] == 4
    assert "eth0" in [device["name"] for device in found["netdevs"]]  # its own, beside the recorded ones
    assert "gpus" not in [name.split(".")[0] for name in found["unknown"]]
    lab.undress("n01")
    assert seen(lab, "n01") == before
    assert read(lab, "n01")["gpus"] == []
    lab.dress("n01", tmp_path)  # and again
    assert len(read(lab, "n01")["nics"]) == 7
    lab.undress("n01")


def test_the_other_nodes_and_this_machine_are_as_they_were(lab: Lab, tmp_path: Path) -> None:
    write_node(tmp_path)
    lab.dress("n01", tmp_path)
    assert read(lab, "n02")["gpus"] == []
    assert not os.path.exists("/sys/class/infiniband/mlx5_0/ports/1/gids/1")
    assert "mlx5" not in " ".join(os.listdir("/sys/class"))
    lab.undress("n01")
