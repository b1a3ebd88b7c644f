"""Counters from a fake sysfs tree, logs in tmp_path, and one real exchange over loopback."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.ranks.steps import Context
from suites.collectives import steps, transport

PAYLOAD = 1_000_000
INFINIBAND = (Path(__file__).parents[2] / "fixtures/node/data/nccl/2.2x_infiniband_cumem.log").read_text()
VERBS = (Path(__file__).parents[2] / "fixtures/node/data/nccl/2.2x_verbs_without_ports.log").read_text()


def port(sysfs: Path, name: str, **files: object) -> None:
    for path, content in files.items():
        file = sysfs / "class/infiniband" / name / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "nccl.log").write_text(text)
    return str(tmp_path / "nccl.log")


def nccl(
    log_path: str, moved: dict[str, int], *, ranks: int = 2, nodes: int = 2, sysfs: str = "/sys"
) -> dict[str, Any]:
    before, after = dict.fromkeys(moved, 5), {name: sent + 5 for name, sent in moved.items()}
    with mock.patch.dict(os.environ, {"NCCL_DEBUG_FILE": log_path}):
        return transport.describe("nccl", before, after, PAYLOAD, ranks=ranks, nodes=nodes, sysfs=sysfs)


def test_counters_of_all_families_are_bytes(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0/ports/1", counters__port_xmit_data=100)
    port(tmp_path, "rdmap86s0/ports/1", counters__port_xmit_data=7, hw_counters__tx_bytes=4000)
    # Broadcom's and Pensando's drivers count bytes themselves, as EFA's does; one of EFA's has another name.
    port(tmp_path, "bnxt_re0/ports/1", counters__port_xmit_data=0, hw_counters__tx_bytes=500)
    port(tmp_path, "ionic_0/ports/1", hw_counters__tx_rdma_ucast_bytes=600)
    port(tmp_path, "named_0/ports/1", hw_counters__tx_bytes=700)
    (tmp_path / "drivers/efa").mkdir(parents=True)
    (tmp_path / "class/infiniband/named_0/device").mkdir()
    (tmp_path / "class/infiniband/named_0/device/driver").symlink_to(tmp_path / "drivers/efa")
    port(tmp_path, "broken/ports/1", counters__port_xmit_data="N/A (no PMA)")
    eth0 = tmp_path / "class/net/eth0/statistics"
    eth0.mkdir(parents=True)
    (eth0 / "tx_bytes").write_text("12345\n")
    assert transport.read_counters(str(tmp_path)) == {
        "ib:mlx5_0/1": 400,
        "efa:rdmap86s0/1": 4000,
        "ib:bnxt_re0/1": 500,
        "ib:ionic_0/1": 600,
        "efa:named_0/1": 700,
        "net:eth0": 12345,
    }


def test_a_node_without_sysfs_has_no_counters(tmp_path: Path) -> None:
    assert transport.read_counters(str(tmp_path)) == {}


def test_a_real_exchange_over_loopback_is_proved_by_the_counters() -> None:
    before = transport.read_counters()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
    ):
        far, _ = server.accept()
        with far:
            for _ in range(16):
                near.sendall(bytes(65536))
                assert len(far.recv(65536, socket.MSG_WAITALL)) == 65536
    found = transport.describe("gloo", before, transport.read_counters(), 1 << 20, ranks=1, nodes=1)
    assert (found["inside"], found["network"], found["agrees"]) == ("sockets", "none", True)
    assert found["counters"]["net:lo"] >= 1 << 20


@pytest.mark.parametrize(
    ("moved", "nodes", "inside", "network", "agrees"),
    [
        ({"net:eth0": PAYLOAD}, 2, "none", "sockets", True),
        ({"net:eth0": PAYLOAD, "net:lo": PAYLOAD}, 2, "sockets", "sockets", True),
        ({"net:lo": PAYLOAD}, 2, "sockets", "unknown", False),
        ({"net:lo": PAYLOAD}, 1, "sockets", "none", True),
        ({"net:lo": PAYLOAD // 10}, 1, "unknown", "none", None),
        ({"net:eth0": PAYLOAD}, 1, "unknown", "none", False),
        ({}, 2, "none", "unknown", None),
        ({"ib:mlx5_0/1": PAYLOAD}, 2, "none", "unknown", None),
    ],
)
def test_gloo_is_believed_only_where_the_counters_show_it(
    moved: dict[str, int], nodes: int, inside: str, network: str, agrees: bool | None
) -> None:
    found = transport.describe("gloo", dict.fromkeys(moved, 0), moved, PAYLOAD, ranks=2, nodes=nodes)
    assert (found["inside"], found["network"], found["agrees"]) == (inside, network, agrees)
    assert bool(found["why"]) == (agrees is not True)


@pytest.mark.parametrize(
    ("moved", "agrees"),
    [
        ({"ib:mlx5_0/1": PAYLOAD // 2, "ib:mlx5_2/1": PAYLOAD // 2}, True),
        ({"net:eth0": PAYLOAD}, False),
        ({"net:lo": PAYLOAD}, None),
        ({"ib:mlx5_0/1": 10, "net:eth0": 900}, None),
        ({}, None),
    ],
)
def test_the_log_is_cross_checked_with_the_ports(
    tmp_path: Path, moved: dict[str, int], agrees: bool | None
) -> None:
    found = nccl(written(tmp_path, INFINIBAND), moved)
    assert (found["network"], found["agrees"]) == ("infiniband", agrees)
    assert found["counters"] == moved


@pytest.mark.parametrize(
    ("plugin", "moved", "agrees"),
    [
        ("GPUDirectTCPX_v7", {"net:eth1": PAYLOAD}, True),
        ("GPUDirectTCPX_v7", {"ib:mlx5_0/1": PAYLOAD}, False),
        ("FasTrak", {"net:eth0": 900}, None),  # what it sends is in no counter
    ],
)
def test_of_googles_plugins_one_is_seen_by_the_counters(
    tmp_path: Path, plugin: str, moved: dict[str, int], agrees: bool | None
) -> None:
    log = f"h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/{plugin}/0\n"
    assert nccl(written(tmp_path, log), moved)["agrees"] is agrees


def test_a_counter_that_fell_or_appeared_moved_nothing() -> None:
    before, after = {"net:a": 9}, {"net:a": 1, "net:b": PAYLOAD}
    found = transport.describe("gloo", before, after, PAYLOAD, ranks=2, nodes=2)
    assert (found["counters"], found["agrees"]) == ({}, None)


@pytest.mark.parametrize(
    ("layers", "network"),
    [
        (["InfiniBand", "InfiniBand"], "infiniband"),
        (["Ethernet"], "roce"),
        (["InfiniBand", "Ethernet"], "unknown"),
        ([], "unknown"),
    ],
)
def test_verbs_are_settled_by_the_link_layer_of_the_ports(
    tmp_path: Path, layers: list[str], network: str
) -> None:
    for number, layer in enumerate(layers):
        port(tmp_path, f"mlx5_{number}/ports/1", link_layer=layer)
    found = nccl(written(tmp_path, VERBS), {}, sysfs=str(tmp_path))
    assert found["network"] == network
    assert bool(found["why"]) == (network == "unknown")


def test_what_storage_sends_over_the_same_ports_is_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter((10.0, 12.0, 12.0))
    port(tmp_path, "mlx5_0/ports/1", counters__port_xmit_data=100)

    def later() -> float:
        if (moment := next(moments)) > 10.0:
            port(tmp_path, "mlx5_0/ports/1", counters__port_xmit_data=100 + PAYLOAD // 2)
        return moment

    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=later))
    idle = transport.background(1.1, str(tmp_path))
    assert idle == {"ib:mlx5_0/1": PAYLOAD}  # half of the words, of four bytes, in two seconds
    before, after = {"ib:mlx5_0/1": 7}, {"ib:mlx5_0/1": 7 + 3 * PAYLOAD, "net:eth0": 5}
    assert transport.without(idle, before, after, 3.0) == {"ib:mlx5_0/1": 7, "net:eth0": 5}
    assert transport.without(idle, before, after, 2.0)["ib:mlx5_0/1"] == 7 + PAYLOAD
    assert transport.without(idle, before, after, 9.0)["ib:mlx5_0/1"] == 7


@pytest.mark.parametrize(("backend", "shown"), [("nccl", 3 << 20), ("gloo", 5 << 20)])
def test_the_step_counts_no_more_than_its_ranks_sent(
    backend: str, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the 5 MiB that a port has sent since, 2 are what it sends anyway, at 1 MiB/s for two seconds."""
    work = SimpleNamespace(prepare=lambda i: None, run=lambda i: None, check=lambda i: None)
    moments = iter((10.0, 12.0))
    monkeypatch.setattr(steps, "Collective", lambda *_, **__: work)
    monkeypatch.setattr(steps, "timing", SimpleNamespace(barrier=lambda ctx: None, complete=lambda ctx: None))
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(transport, "background", lambda: {"net:eth0": float(1 << 20)})
    monkeypatch.setattr(transport, "read_counters", lambda: {"net:eth0": 7})
    monkeypatch.setattr(transport, "settled_counters", lambda before, sent: {"net:eth0": 7 + (5 << 20)})
    ctx = Context(0, 2, backend, torch.device("cpu"), ["a", "b"], [0, 0])
    assert steps.transport(ctx, size_bytes=1 << 20)["transport"]["counters"] == {"net:eth0": shown}


def test_a_world_inside_a_node_must_not_move_its_payload_over_a_fabric(tmp_path: Path) -> None:
    log = written(tmp_path, "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
    assert nccl(log, {"net:eth0": 4000}, nodes=1)["agrees"] is True
    assert nccl(log, {"ib:mlx5_0/1": PAYLOAD}, nodes=1)["agrees"] is False
    assert nccl(log, {"ib:mlx5_0/1": PAYLOAD}, nodes=1, ranks=8)["agrees"] is True  # of eight: storage's
    assert nccl(log, {"ib:mlx5_0/1": 8 * PAYLOAD}, nodes=1, ranks=8)["agrees"] is False
    assert nccl(log, {"ib:mlx5_0/1": PAYLOAD}, nodes=2)["agrees"] is None


def test_nics_that_carried_what_nvlink_between_nodes_should_have_contradict_the_log(tmp_path: Path) -> None:
    log = written(tmp_path, "h:1:2 [0] NCCL INFO Channel 00/0 : 4[0] -> 3[3] via P2P/MNNVL\n")
    assert nccl(log, {"net:eth0": 4000}, nodes=2, ranks=8)["agrees"] is True
    assert nccl(log, {"ib:mlx5_0/1": PAYLOAD}, nodes=2, ranks=8)["agrees"] is True  # of a node's four
    assert nccl(log, {"ib:mlx5_0/1": 4 * PAYLOAD}, nodes=2, ranks=8)["agrees"] is False


def test_without_a_log_nothing_is_known(tmp_path: Path) -> None:
    missing = nccl(str(tmp_path / "none.log"), {"ib:mlx5_0/1": PAYLOAD})
    assert (missing["inside"], missing["network"], missing["agrees"]) == ("unknown", "unknown", None)
    assert "cannot be read" in missing["why"][0]
    assert "NCCL_DEBUG_FILE is not set" in nccl("", {})["why"][0]


def test_the_log_is_found_as_nccl_names_it(tmp_path: Path) -> None:
    name = f"{socket.gethostname().split('.')[0]}.{os.getpid()}.log"
    (tmp_path / name).write_text(INFINIBAND)
    assert nccl(f"{tmp_path}/%h.%p.log", {})["network"] == "infiniband"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/a/%h.%p", "/a/gpu01.42"),
        ("/%%h/%p%p", "/%h/4242"),
        ("/100%", "/100%"),
        ("/%x/%%", "/%x/%"),
        ("plain", "plain"),
    ],
)
def test_patterns_expand_as_in_nccl(pattern: str, path: str) -> None:
    assert transport.expand(pattern, "gpu01.cluster.example", 42) == path


@given(st.text())
def test_any_pattern_expands(pattern: str) -> None:
    assert isinstance(transport.expand(pattern, "h", 1), str)


def test_late_counters_are_waited_for_and_others_are_not_taken_for_them(tmp_path: Path) -> None:
    eth0 = tmp_path / "class/net/eth0/statistics"
    eth0.mkdir(parents=True)
    (eth0 / "tx_bytes").write_text("0\n")
    port(tmp_path, "mlx5_0/ports/1", counters__port_xmit_data=0)
    before = transport.read_counters(str(tmp_path))
    (eth0 / "tx_bytes").write_text(f"{9 * PAYLOAD}\n")
    publish = threading.Timer(
        0.1, lambda: port(tmp_path, "mlx5_0/ports/1", counters__port_xmit_data=PAYLOAD // 4)
    )
    publish.start()
    found = transport.settled_counters(before, PAYLOAD, str(tmp_path), deadline_s=10)
    publish.join()
    assert found == {"ib:mlx5_0/1": PAYLOAD, "net:eth0": 9 * PAYLOAD}
    late = transport.settled_counters(found, PAYLOAD, str(tmp_path), deadline_s=0.05)
    assert late == found


def test_of_a_long_log_both_ends_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_LOG_BYTES", 4096)
    monkeypatch.setattr(transport, "LOG_HEAD_BYTES", 1024)
    ports = "h:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>\n"
    start = "h:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 16 cudaDev 0 - Init START\n"
    used = "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
    old = start + used.replace("IB/0/GDRDMA", "Socket/0")
    log = ports + old + "filling\n" * 1000 + start + used
    found = nccl(written(tmp_path, log), {"ib:mlx5_0/1": PAYLOAD}, ranks=16, nodes=2)
    assert (found["network"], found["agrees"], found["why"]) == ("infiniband", True, [])
