"""The limit that follows for a pattern of collectives, in every shipped file and on paper."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from reports.record import Outcome
from tests.fixtures.scenario import HARDWARE
from tests.thresholds.files import row
from thresholds import derived
from thresholds.bounds import BoundError, ceiling
from thresholds.derived import Moved
from thresholds.hardware import Hardware
from thresholds.loading.load import load, shipped
from thresholds.lookup import Case, LimitError, absent

MIB = 1 << 20
ROWS = row(
    "busbw", "min = 0.1", collective=["all_reduce", "all_gather"], path="network", ranks_per_node=2
) + row("latency", "max = 1000.0", path="network")
CASE: Case = {"step": "zero.ddp", "path": "network", "nodes": 2, "ranks_per_node": 2}
# What the patterns of ZeRO, tensor and context parallelism consist of.
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
SUPERBENCH = "microsoft/superbenchmark@700d650"
DGXC = "NVIDIA/dgxc-benchmarking@841f546 nccl/README.md"
CONFIGURATOR = "ai-dynamo/aiconfigurator@095f58a"
# What healthy machines were published to reach at the sizes between latency and plateau, busbw in GB/s.
PUBLISHED = (
    ("azure-ndv4", "nvlink", 1, "all_reduce", 64, 200.91, f"{SUPERBENCH} nccl_allreduce.log"),
    ("azure-ndv4", "nvlink", 1, "all_gather", 64, 154.65, f"{SUPERBENCH} nccl_allgather.log"),
    ("azure-ndv4", "nvlink", 1, "all_to_all", 64, 147.99, f"{SUPERBENCH} nccl_alltoall.log"),
    ("azure-ndv4", "nvlink", 1, "broadcast", 64, 179.05, f"{SUPERBENCH} nccl_broadcast.log"),
    ("h100-sxm5-ndr400", "nvlink", 1, "all_reduce", 64, 361.67, DGXC),
    ("h100-sxm5-ndr400", "nvlink", 1, "all_gather", 128, 299.0, f"{CONFIGURATOR} h100_sxm"),
    ("h100-sxm5-ndr400", "nvlink", 1, "all_to_all", 128, 291.8, f"{CONFIGURATOR} h100_sxm"),
    ("h100-sxm5-ndr400", "nvlink", 1, "reduce_scatter", 128, 307.3, f"{CONFIGURATOR} h100_sxm"),
    ("h200-ndr400", "nvlink", 1, "all_gather", 128, 309.2, f"{CONFIGURATOR} h200_sxm"),
    ("h200-ndr400", "nvlink", 1, "all_to_all", 128, 290.8, f"{CONFIGURATOR} h200_sxm"),
    ("b200-ndr400", "nvlink", 1, "all_reduce", 128, 589.6, f"{CONFIGURATOR} b200_sxm"),
    ("b200-ndr400", "nvlink", 1, "all_to_all", 128, 496.4, f"{CONFIGURATOR} b200_sxm"),
    ("aws-p6-b300", "nvlink", 1, "all_to_all", 128, 512.1, f"{CONFIGURATOR} b300_sxm"),
    ("aws-p5", "network", 2, "all_reduce", 64, 209.19, "aws-samples/awsome-distributed-training@7217859"),
    ("aws-p4de", "network", 2, "all_reduce", 64, 47.58, "aws-samples/awsome-distributed-training@7217859"),
    ("gcp-a3-mega", "network", 2, "all_gather", 64, 121.49, "GoogleCloudPlatform/cluster-toolkit@1047080"),
    ("gcp-a3-high", "network", 2, "all_gather", 64, 47.14, "GoogleCloudPlatform/cluster-toolkit@1047080"),
    ("gcp-a3-ultra", "network", 2, "all_gather", 64, 213.51, "GoogleCloudPlatform/cluster-toolkit@1047080"),
)


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    (tmp_path / "paper.toml").write_text(HARDWARE.partition("[[limit]]")[0] + ROWS)
    return load(tmp_path / "paper.toml")


def test_latency_and_bytes_of_every_collective_and_a_quarter_more(hardware: Hardware) -> None:
    pattern = [Moved("all_reduce", MIB), Moved("all_reduce", MIB), Moved("all_gather", MIB)]
    sent = (2 * 1.5 + 0.75) * MIB
    allowed_s = 1.25 * (3 * 1e-3 + sent / 0.1e9)
    good, _ = derived.judge(hardware, pattern, CASE, 4, allowed_s * 0.999)
    bad, _ = derived.judge(hardware, pattern, CASE, 4, allowed_s * 1.001)
    assert good is not None
    assert bad is not None
    assert (good.outcome, bad.outcome) == (Outcome.PASS, Outcome.FAIL)
    assert good.limit_value == pytest.approx(sent / allowed_s / 1e9)
    assert "2 all_reduce of 1MiB, 1 all_gather of 1MiB took" in bad.sentence
    assert "paper.toml" in bad.source


def test_without_a_row_there_is_no_limit_and_the_reason_is_told(hardware: Hardware) -> None:
    judged, why = derived.judge(hardware, [Moved("send_recv", MIB)], CASE, 4, 1e-3)
    assert judged is None
    assert "send_recv" in why


GROUPS = [
    # collective, ranks of a group on each of its nodes, its share of the bandwidth of all 2 x 2 ranks
    ("all_reduce", (1, 1), 1 / 3),  # all ranks may exchange by node: 3/2 of their NICs, and one by one 1
    ("all_gather", (1, 1), 1 / 3),
    ("all_reduce", (2, 2), 1.0),
    ("all_to_all", (1, 1), 2 / 3),  # a half of all that leaves a node, and of that (n-1)/(n-g): 1 for 3/2
]


@pytest.mark.parametrize(("kind", "spread", "share"), GROUPS)
@pytest.mark.parametrize("shared", [False, True])
def test_groups_share_the_nics_that_all_ranks_have(
    hardware: Hardware, kind: str, spread: tuple[int, ...], share: float, shared: bool
) -> None:
    """Two NICs of 50 GB/s, or one of 100 that both ranks of a node share."""
    links = {**hardware.line_rate.links, "network": 100.0 if shared else 50.0, "memory": 1000.0}
    line = replace(hardware.line_rate, network_is_per_node=shared, links=links)
    rows = tuple(replace(row, selectors={"path": row.selectors["path"]}) for row in hardware.limits)
    (part,) = derived.shares(
        replace(hardware, line_rate=line, limits=rows), [Moved(kind, MIB, spread)], CASE, 4
    )
    sent = derived.sent_bytes([Moved(kind, MIB, spread)], 4) / 1e9
    assert part.bytes_s == pytest.approx(sent / (0.1 * share))
    assert part.latency_s == pytest.approx(1e-3)


@pytest.mark.parametrize("spread", [(2, 1), (3,), (4, 4)])
def test_groups_that_no_row_holds_for_are_on_record(hardware: Hardware, spread: tuple[int, ...]) -> None:
    judged, why = derived.judge(hardware, [Moved("all_reduce", MIB, spread)], CASE, 4, 1e-3)
    assert judged is None
    assert why


@pytest.mark.parametrize(
    ("senders", "per_node", "share"),
    [
        (4, [8], 4 / 7),  # inside a node half of seven peers, and on two nodes all peers on the other
        (8, [8, 8], 1.0),
        (16, [8] * 4, 2 / 3),
        (1, [1, 1], 1.0),
        (2, [1] * 4, 2 / 3),
        (1, [4], 1.0),  # one sender's port has what an all_to_all has
        (12, [8, 8], 1.0),  # whom eight elsewhere and four of its own node send to
    ],
)
def test_no_wire_of_m_to_n_has_more_to_do_than_in_its_even_all_to_all(
    senders: int, per_node: list[int], share: float
) -> None:
    ranks = sum(per_node)
    moved = derived.fanned(MIB, senders, per_node)
    assert (moved.collective, moved.spread) == ("all_to_all", ())
    assert moved.size_bytes == pytest.approx(ranks * MIB * share, rel=1e-6)
    part = moved.size_bytes / ranks
    node = [number for number, count in enumerate(per_node) for _ in range(count)]
    busy = []
    for rank in range(ranks):
        peers = range(senders, ranks) if rank < senders else range(senders)
        across = sum(node[peer] != node[rank] for peer in peers) * MIB
        inside = len(peers) * MIB - across
        others = per_node[node[rank]] - 1
        busy += [(across, (ranks - others - 1) * part), (inside, others * part)]
    assert all(there <= every * (1 + 1e-6) for there, every in busy)
    assert any(there == pytest.approx(every, rel=1e-6) for there, every in busy if there)


SHAPES = ((8,), (4,), (2,), (1, 1), (1, 1, 1, 1), (2, 2), (4, 4), (8, 8))


def test_every_shipped_file_limits_groups_or_says_why_not() -> None:
    """No limit of a group asks for more than its wires carry; what has none is told, and nobody fails."""
    limited, wrong = set[str](), []
    for name, file in ((name, load(path)) for name, path in shipped().items()):
        if name.startswith(("board-", "fabric-", "lab-")) or file.line_rate.links.get("network") is None:
            continue
        each = int(file.expect.get("gpus_per_node", 8))
        case: Case = {**CASE, "path": "network", "nodes": 4, "ranks_per_node": each}
        for spread, kind in itertools.product(SHAPES, KINDS):
            if spread[0] > each:
                continue
            moved = Moved(kind, 64 * MIB, spread)
            try:
                (part,) = derived.shares(file, [moved], case, 4 * each)
            except (LimitError, BoundError) as error:
                if file.line_rate.switch and "has no figure" not in str(error):
                    wrong.append(f"{name}: {kind} {spread}: {error}")
                continue
            limited.add(name)
            line, share = file.line_rate, spread[0] / each if file.line_rate.network_is_per_node else 1
            links = {**line.links, "network": (line.links["network"] or 0.0) * share}
            path = "network" if len(spread) > 1 else file.inside
            here: Case = {**case, "path": path, "nodes": len(spread), "ranks_per_node": spread[0]}
            best = ceiling({**here, "collective": kind}, replace(line, links=links))
            if derived.sent_bytes([moved], 4 * each) / 1e9 / part.bytes_s > best:
                wrong.append(f"{name}: {kind} {spread} must be faster than {best} GB/s")
    assert not wrong, "\n".join(wrong)
    assert len(limited) >= 15


def test_every_shipped_file_limits_every_pattern_inside_and_across() -> None:
    """Or says why not: a gap, an absent path, or a bound that only the same run can tell (copies on CPUs)."""
    lacking = []
    for name, file in ((name, load(path)) for name, path in shipped().items()):
        if name.startswith(("board-", "fabric-")) or "network" not in file.line_rate.links:
            continue  # parts, and files of machines without a network
        ranks, most = (1, 8) if name.startswith("lab-") else (int(file.expect.get("gpus_per_node", 8)), 16)
        worlds = [(file.inside, 1, ranks), *(("network", nodes, ranks) for nodes in (2, 4, most))]
        for (path, nodes, each), kind in itertools.product(worlds, KINDS):
            case = {**CASE, "path": path, "nodes": nodes, "ranks_per_node": each, "collective": kind}
            if absent(file, case) or file.line_rate.links.get(path, 1.0) is None:
                continue
            try:
                derived.shares(file, [Moved(kind, MIB)], case, nodes * each)
            except (LimitError, BoundError) as error:
                if not (isinstance(error, LimitError) and error.kind == "gap"):
                    lacking.append(f"{name}: {kind} over {path} on {nodes}: {error}")
    assert not lacking, "\n".join(lacking)


def test_no_healthy_figure_that_was_published_is_below_the_derived_limit() -> None:
    wrong = []
    for name, path, nodes, kind, size_mib, busbw, source in PUBLISHED:
        case: Case = {**CASE, "path": path, "nodes": nodes, "ranks_per_node": 8}
        moved = Moved(kind, size_mib * MIB)
        judged, why = derived.judge(
            load(shipped()[name]),
            [moved],
            case,
            8 * nodes,
            derived.sent_bytes([moved], 8 * nodes) / busbw / 1e9,
        )
        if judged is None or judged.outcome is not Outcome.PASS:
            wrong.append(f"{source}: {judged.sentence if judged else why}")
    assert not wrong, "\n".join(wrong)
