"""Asynchronous tensor parallelism: held beside the unfused layers, and not applicable where it cannot be."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from fixtures.ranks.steps import Context, Unsupported
from fixtures.ranks.study.traffic import count_traffic
from suites.tensor import overlap
from suites.tensor.regions import Group
from suites.tensor.test_tensor import LAYER
from tests.fixtures.ranks.gloo_world import context, run_world
from tests.suites.fake_world import Accounts, fake_world
from tests.suites.parallel import assert_green

MLP = {**LAYER, "hidden": 96}
UNFUSED = {"forward", "loss", "grad:input", *(f"grad:{name}.weight" for name in ("gate", "up", "down"))}


@pytest.mark.parametrize("size", [2, 3])
def test_it_is_held_beside_the_unfused_layers_and_its_overlap_is_measured(size: int) -> None:
    parts = ("parity", "repeat", "traffic", "memory", "figures", "wrong")
    for said in assert_green(size, [("tensor.async_tp", MLP)], parts)[0]:
        compared = {entry["what"] for entry in said["parity"]}
        assert compared >= {f"{what}, unfused" for what in UNFUSED}
        assert "overlap" in said["figures"]


def _fused_calls(size: int, rank: int) -> Accounts:
    """The operations of a GPU, on tensors that have shapes alone."""
    import_module(overlap._MODULE)  # registers them
    name = dist.distributed_c10d._get_default_group().group_name
    x, weight = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((2, 4, 48), (48, 12)))
    summand = torch.empty(2, 4 * size, 48, dtype=torch.bfloat16, device="meta")
    with count_traffic() as seen:
        torch.ops.symm_mem.fused_all_gather_matmul(x, [weight], 1, name)
        torch.ops.symm_mem.fused_matmul_reduce_scatter(summand, weight, "sum", 1, name)
    return [("fused", seen.table({}), [])]


def test_a_fused_operation_counts_as_what_it_stands_for() -> None:
    ((_, table, _),) = fake_world(4, 1, _fused_calls)
    found = {line["op"]: (line["count"], line["bytes"]) for line in table}
    assert found == {"all_gather": (1, 4 * 2 * 4 * 48 * 2), "reduce_scatter": (1, 2 * 16 * 12 * 2)}


# where it cannot be


def gpus(hosts: list[str]) -> Context:
    """Two ranks that think that they have a GPU each."""
    return dataclasses.replace(context(0, 2), hosts=hosts, device=torch.device("cpu"), local_ranks=[0, 1])


def test_gpus_of_several_nodes_are_not_applicable() -> None:
    with pytest.raises(Unsupported, match="the same node; this world has several"):
        overlap._refuse_far_memory(gpus(["a", "b"]))


def _one_cannot(ctx: Context) -> str:
    """What each rank says where rank 1 alone cannot reach its peer's memory."""
    with mock.patch.object(torch.cuda, "can_device_access_peer", return_value=ctx.rank == 0):
        try:
            overlap._refuse_far_memory(ctx)
        except Unsupported as why:
            return str(why)
    return ""


def test_all_ranks_agree_that_one_cannot_reach_its_peers() -> None:
    assert ["some GPUs of this node cannot" in said for said in run_world(2, _one_cannot)] == [True, True]


def _lacking(ctx: Context) -> str:
    """What is said by a torch that does not have the operations."""
    with mock.patch.object(overlap, "_NEEDED", ("no_such_operation",)):
        try:
            with overlap.fused(ctx, Group(ctx.rank, ctx.size)):
                return "usable"
        except Unsupported as why:
            return str(why)


def test_a_torch_without_the_operations_is_not_applicable() -> None:
    for said in run_world(2, _lacking):
        assert "has no no_such_operation" in said


def _names(ctx: Context) -> list[str]:
    """The names of the groups that three worlds in a row get."""
    names = []
    for _ in range(3):
        handle = overlap._group_of_its_own(ctx)
        names.append(str(handle.group_name))
        dist.destroy_process_group(handle)
        dist.distributed_c10d._world.group_count = 1  # as in a new world
    return names


def test_no_two_worlds_share_the_name_of_a_group() -> None:
    first, second = run_world(2, _names)
    assert first == second
    assert len(set(first)) == 3
