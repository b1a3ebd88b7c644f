"""Faults that a node's own tools report: lab nodes that are dressed as recorded nodes.

Ranks cannot start on nodes that only look as if they had GPUs: there the healthy nodes are unproven. On nodes
with such NICs alone the ranks run on CPUs, and healthy nodes are accepted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.faults.rows.row import Expect, Row, Scene, rejected, with_file
from tests.fixtures.node.inventory.h100_node import rails, write_node

ISLAND = """
[hardware]
name = "lab-infiniband"
about = "The lab, whose nodes look as if they had eight InfiniBand ports"
extends = "lab-200mbit"
auto = false

[match]
gpu = "none"
fabric = "infiniband"

[expect]
nics_per_node = 8
nic_gigabits_per_s = 400
nic_state = "ACTIVE"
"""
OF_GPUS = ("root/proc/driver", "root/sys/module/nvidia", "root/sys/module/nvidia_peermem")


def _dressed(scene: Scene, undress: Callable[[Path], object], faults: Mapping[str, Any]) -> None:
    """Dress every node, the drawn ones with faults; nodes that another row has dressed stay as they are."""
    for machine, node in enumerate(scene.lab.nodes, 1):
        if (scene.lab.files(node) / "dress").exists():
            if node not in scene.drawn:
                continue
            scene.lab.undress(node)
        folder = scene.place / "dress" / node
        write_node(folder, machine=machine, **(faults if node in scene.drawn else {}))
        undress(folder)
        scene.lab.dress(node, folder)


def _without_gpus(folder: Path) -> None:
    (folder / "bin/nvidia-smi").unlink()
    for name in OF_GPUS:
        shutil.rmtree(folder / name)
    for device in (folder / "root/sys/bus/pci/devices").iterdir():
        if (device / "vendor").read_text().strip() == "0x10de":
            shutil.rmtree(device)


def _railed(scene: Scene) -> None:
    """Give every node eight NICs, each in its rail's subnet, except two NICs of the nodes that were drawn."""
    _dressed(scene, _without_gpus, {})
    for machine, node in enumerate(scene.lab.nodes, 1):
        scene.lab.rails(node, rails(machine, swapped=node in scene.drawn))


def _gpu(name: str, catalogue: int, fault: str, words: str, **faults: Any) -> Row:
    """A row on nodes with eight GPUs, on which no rank can start."""
    kinds, stray = ("node", "device"), ("lost", "crash")
    return Row(
        *(name, catalogue, fault),
        Expect((1,), ("rejected",), kinds, words=(words,), healthy=("unproven",), stray=stray),
        lambda scene: _dressed(scene, lambda _: None, faults),
        workload="nodes",
        arguments=lambda _: (),
        slots=8,
    )


def _nic(
    name: str, catalogue: int, fault: str, words: str, subjects: tuple[str, ...] | None = None, **faults: Any
) -> Row:
    """A row on nodes with eight NICs and no GPU."""
    return Row(
        *(name, catalogue, fault),
        rejected("node", "nic", "device", words=(words,)),
        lambda scene: _dressed(scene, _without_gpus, faults),
        workload="nodes",
        arguments=with_file(ISLAND),
        subjects=subjects,
    )


HARDWARE = (
    _nic(
        *("nic-missing", 3, "seven NICs of eight", "7 of its infiniband ports", ("nics", "peers")),
        missing_nic=6,
    ),
    _nic("port-down", 3, "one port of eight is down", "DOWN", port_down=2),
    _nic("port-slow", 1, "one port of eight at half its rate", "200", nics={3: {"rate": "200"}}),
    _nic(
        *("nic-firmware", 19, "one NIC with another firmware", "NIC firmware"),
        nics={2: {"firmware": "28.36.1010"}},
    ),
    Row(
        *("rails-swapped", 8, "two rails of one node are in each other's subnet"),
        rejected("node", words=("mlx5_2 is in 10.0.3.0/24", "mlx5_3 is in 10.0.2.0/24")),
        _railed,
        workload="nodes",
        arguments=with_file(ISLAND),
        subjects=("peers",),
    ),
    _gpu("gpu-missing", 11, "seven GPUs of eight", "number of GPUs is 7", missing_gpu=2),
    _gpu("pcie-width", 11, "one GPU with 8 PCIe lanes", "PCIe width is 8", gpus={5: {"width": 8}}),
    _gpu("driver-differs", 19, "another driver", "driver is 535.183.01", driver="535.183.01"),
    _gpu("ecc-error", 14, "an uncorrected memory error", "uncorrected", gpus={3: {"uncorrected": 1}}),
    _gpu(
        *("fabric-manager", 10, "fabric manager has failed", "fabric manager is failed"),
        fabric_manager="failed",
    ),
    _gpu("gpudirect-off", 4, "no GPUDirect module", "path from NICs to GPU memory", peermem=False),
)
