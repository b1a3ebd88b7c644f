"""Seeded bugs of combinations on a device mesh."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard

from fixtures.ranks.study.updates import AdamW
from suites.context.ring_attention import GRADIENTS, KEYS
from suites.expert import layer
from suites.mesh import dense
from suites.mesh.moe import issued, sharded, training, zero
from suites.mesh.test_mesh import EXPERTS, STEPS
from tests.teeth.bug import (
    Bug,
    Maker,
    Patch,
    in_step,
    instead_of,
    never,
    of,
    one_in,
    planted,
    replaced,
    replacing,
    told,
    where,
)
from tests.teeth.context import in_place_of_passing, low_bit, passing, stale, unmasked
from tests.teeth.patches import narrow
from tests.teeth.patches.expert import after, drop_last_row, rounded
from tests.teeth.patches.flips import flip, flipped_in_call, transient
from tests.teeth.patches.memory import received_kept
from tests.teeth.patches.training import (
    clipped_late,
    own_norm,
    reduced_every_time,
    rows_left_over_not_gathered,
    rows_left_over_not_reduced,
    torchs_own_norm,
)
from tests.teeth.patches.zero import SUMMED, dropped, flipped_always, next_shard, rotated, twice

Call = Callable[..., Any]
_COUNTS = 64  # numbers that ranks tell each other before they send rows are fewer


def left_out(_original: Call) -> Call:
    """Every rank keeps its own."""
    return lambda tensor, *_, **__: tensor


@replacing
def turned(original: Call, tensor: torch.Tensor, *, gather_dim: int, group: Any) -> torch.Tensor:
    """What is gathered begins one rank too late."""
    whole: torch.Tensor = original(tensor, gather_dim=gather_dim, group=group)
    return whole.roll(tensor.shape[gather_dim], gather_dim)


def exchanged(one: str, other: str) -> Patch:
    """Two axes of the mesh change places: what is meant for one happens along the other."""

    @replacing
    def make(original: Call, self: DeviceMesh, name: Any) -> Any:
        if isinstance(name, str) and name.startswith((one, other)):
            name = (other if name.startswith(one) else one) + name.lstrip("abcdefghijklmnopqrstuvwxyz")
        return original(self, name)

    return planted(DeviceMesh, "__getitem__", make)


@instead_of(torch, "tensor_split")
def backwards(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Targets meet the micro-batches in the wrong order."""
    return original(tensor, *args, **kwargs)[::-1]


def elsewhere() -> AbstractContextManager[Any]:
    """The ranks are not on the machines that the job believes: every other one is on another."""
    return replaced(socket, "gethostname", lambda _: lambda: f"node-{dist.get_rank() % 2}")


def low_bit_unseen(received: torch.Tensor, _sent: torch.Tensor) -> None:
    """The lowest bit of one element flips in memory."""
    if received.is_floating_point():
        flip(received)


@replacing
def own_alone(original: Call, output: torch.Tensor, input: torch.Tensor, **kwargs: Any) -> Any:
    """Of what is to be added up a rank keeps its own; other calls go on."""
    if not output.is_floating_point():
        return original(output, input, **kwargs)
    output.view(-1).copy_(
        input.reshape(dist.get_world_size(kwargs["group"]), -1)[dist.get_rank(kwargs["group"])]
    )
    return None


@replacing
def replayed(original: Call, self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every later step sends its tokens where those of the first one went."""
    weights, chosen = original(self, x)
    routes = vars(self).setdefault("routes", {})
    return weights, routes.setdefault(self.wanted.data_ptr(), chosen)


@replacing
def averaged_in_place(original: Call, output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Numbers that are no integers are averaged where they are to be added up."""
    mean = {"op": dist.ReduceOp.AVG} if output.is_floating_point() else {}
    return original(output, *args, **{**kwargs, **mean})


class CutFirst:
    """fully_shard says of a weight that tensor parallelism divides that it was there first."""

    def __new__(cls, dim: int, split_factor: int) -> Shard:  # type: ignore[misc]
        return Shard(dim)


def bucketed(kind: str, line: str) -> Patch:
    """One kind of weights is sharded along another line."""
    return lambda: mock.patch.dict(issued.LINE, {kind: line})


def replicas_everywhere() -> AbstractContextManager[Any]:
    """Experts are sharded among all ranks, as if all had the same."""
    return replaced(sharded.FullySharded, "_mesh", lambda original: lambda self, _: original(self, "dp_cp"))


def of_optimizer(name: str, make: Maker) -> Patch:
    """Replace a method of the optimizer where it holds distributed parameters."""

    def distributed(self: torch.optim.Optimizer, *_: Any, **__: Any) -> bool:
        return isinstance(self.param_groups[0]["params"][0], DTensor)

    return planted(torch.optim.SGD, name, where(distributed, make))


def among(stride: int, make: Maker) -> Maker:
    """Plant it in the groups whose ranks are so far apart; the world's own calls are left alone."""

    def apart(*_: Any, group: Any = None, **__: Any) -> bool:
        ranks = (0, 0) if group is None else dist.get_process_group_ranks(group)
        return ranks[1] - ranks[0] == stride

    return where(apart, make)


@replacing
def always_flipped(original: Call, output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The lowest bit of what rank 1 is given is flipped, always; counts of rows are let through."""
    done = original(output, *args, **kwargs)
    if dist.get_rank() == 1 and output.dtype is torch.int64 and output.numel() > _COUNTS:
        flip(output)
    return done


def one_behind(original: Call) -> Call:
    """A stage sends the activations of the micro-batch before."""
    before: dict[torch.dtype, torch.Tensor] = {}

    def call(stage: PipelineStage, chunk: int) -> Any:
        operations = original(stage, chunk)
        for operation in operations:
            activation = operation.tensor
            operation.tensor = before.get(activation.dtype, activation)
            before[activation.dtype] = activation
        return operations

    return call


_LESS = {"layers": 1, "rows": 1}
_PARAMETERS = {case.step: {**case.parameters, **_LESS} for case in STEPS} | {
    case.step: case.parameters for case in EXPERTS
}


def _bugs(step: str, *rows: tuple[str, Patch, str], size: int = 4) -> list[Bug]:
    return in_step(step, _PARAMETERS[step], *rows, size=size)


ALL_CUT = planted(dense, "is_cut", lambda _: lambda _grad: True)
UNSTRIDED = planted(_fsdp_param, "_StridedShard", lambda _: CutFirst)
GPIPE = planted(training, "Schedule1F1B", lambda _: ScheduleGPipe)
ADAM: Patch = partial(mock.patch.object, zero, "RULE", AdamW(rate=1e-3, decay=0.0))
BEHIND: Patch = planted(PipelineStage, "get_fwd_send_ops", one_behind)
SWAPPED: Patch = planted(torch.Tensor, "argsort", told(descending=True))
REDUCE, GATHER, SUM = "reduce_scatter_single", "all_gather_single", "all_reduce"
REPLICAS = 2  # how far apart the replicas of an expert are in a world of 4
NEXT = 1  # and the ranks of a stage
TENSOR, CONTEXT = 1, 2
LOST = narrow.of_bf16_weights(narrow.second_lost_on_rank_1)
BUGS: list[Bug] = [
    *_bugs(
        "mesh.fsdp_tp",
        ("sum in place of mean along dp", of(REDUCE, SUMMED), "parity"),
        ("gathered off by one", of(GATHER, rotated), "parity wrong"),
        ("summands not added along tp", planted(functional, "all_reduce", left_out), "parity traffic"),
        ("dp and tp exchanged", exchanged("dp", "tp"), "error"),
        (
            "never resharded",
            planted(dense, "fully_shard", told(reshard_after_forward=False)),
            "traffic memory",
        ),
        ("a low bit flips once", transient(REDUCE, 3), "repeat"),
        ("a bit of rank 1 always flips", of(SUM, flipped_always), "wrong"),
        ("nodes interleaved", elsewhere, "placement"),
        ("sums in bf16 cut off", narrow.of(REDUCE, narrow.truncated), "wrong"),
        ("rank 1 loses an update in bf16", of_optimizer("step", LOST), "parity"),
        ("whole weights count twice in the norm", ALL_CUT, "parity"),
        ("norm of the local shard alone", own_norm, "parity traffic"),
        ("norm of the local shard alone, by torch", torchs_own_norm, "parity"),
        ("weights joined as if dp had cut them first", UNSTRIDED, "parity"),
        ("clipped after the update", clipped_late, "parity"),
        (f"a low bit flips once in bf16, {REDUCE}", narrow.of(REDUCE, flipped_in_call(2)), "repeat"),
        (
            "a number gathered in bf16 is always off",
            narrow.of(GATHER, flipped_in_call(None, bit=2)),
            "repeat",
        ),
    ),
    *_bugs(
        "mesh.pp_fsdp_tp",
        ("micro-batches in the wrong order", backwards, "parity"),
        ("sum in place of mean of micro-batches", planted(PipelineStage, "scale_grads", never), "parity"),
        ("norm of the own stage alone", own_norm, "parity traffic"),
        size=2,
    ),
    *_bugs(
        "mesh.pp_fsdp_tp", ("logits joined in the wrong order", planted(functional, GATHER, turned), "parity")
    ),
    *_bugs(
        "mesh.pp_fsdp_tp",
        ("reduced with every micro-batch", reduced_every_time, "traffic"),
        ("gathered twice", planted(dense, "fully_shard", told(reshard_after_forward=True)), "traffic memory"),
        size=8,
    ),
    *_bugs(
        "mesh.fsdp_cp",
        ("stale block of keys", passing(stale, (KEYS,)), "parity wrong"),
        ("future keys not masked", unmasked, "parity"),
        ("gradients of keys stay", in_place_of_passing(GRADIENTS), "parity traffic"),
        ("a low bit flips once", passing(low_bit_unseen, (GRADIENTS,), (2,), (0,)), "repeat"),
        ("a bit of rank 0 always flips", passing(low_bit, (KEYS,), (), (0,)), "wrong"),
        ("norm of the local shard alone", own_norm, "parity traffic"),
        ("rows beyond equal shards are not gathered", rows_left_over_not_gathered, "parity"),
        ("rows beyond equal shards are not reduced", rows_left_over_not_reduced, "parity"),
        (f"a low bit flips once in bf16, {GATHER}", narrow.of(GATHER, flipped_in_call(3)), "repeat"),
        size=2,
    ),
    *_bugs("mesh.fsdp_cp", ("sum in place of mean along dp and cp", of(REDUCE, SUMMED), "parity")),
    *_bugs(
        "mesh.loss_curve",
        ("one update in ten is lost", of_optimizer("step", one_in(10, never)), "parity"),
        ("gradients add up", of_optimizer("zero_grad", never), "parity"),
        size=2,
    ),
    *_bugs(
        "mesh.fsdp_cp_tp",
        ("summands not added along tp", planted(functional, "all_reduce", left_out), "parity traffic"),
        ("gradients of keys stay", in_place_of_passing(GRADIENTS), "parity traffic"),
        ("stale block of keys", passing(stale, (KEYS,)), "parity"),
        ("gradients not reduced over cp", of(REDUCE, own_alone), "parity traffic"),
        ("sum in place of mean along cp", of(REDUCE, SUMMED), "parity"),
        ("whole weights count twice in the norm", ALL_CUT, "parity"),
        ("a low bit flips once", transient(REDUCE, 3), "repeat"),
    ),
    *_bugs(
        "mesh.ep_dp",
        ("experts divided by their replicas too", of(SUM, among(REPLICAS, averaged_in_place)), "parity"),
        ("experts' replicas not summed", of(SUM, among(REPLICAS, dropped)), "parity traffic wrong"),
        ("experts summed over all ranks", of(SUM, among(REPLICAS, told(group=None))), "parity traffic"),
        ("dense gradients divided twice", of(SUM, among(1, averaged_in_place)), "parity"),
        ("experts get each other's rows", SWAPPED, "parity"),
        ("a token that does not fit is dropped", after("all_to_all_single", drop_last_row), "parity"),
        (
            "the first step's routing is replayed",
            planted(layer.Sharded, "choose", replayed),
            "parity traffic",
        ),
        ("rows travel in 16 bits", of("all_to_all_single", rounded), "parity"),
        ("dispatched rows are kept", received_kept("all_to_all_single"), "memory"),
        ("a low bit flips once", transient("all_to_all_single", 5), "repeat"),
        ("a low bit always flips", of("all_to_all_single", always_flipped), "wrong"),
    ),
    *_bugs(
        "mesh.five_axes",
        ("norms not summed along tp", of(SUM, among(TENSOR, dropped)), "parity traffic"),
        ("activations one micro-batch behind", BEHIND, "parity"),
        ("all forward before any backward", GPIPE, "parity memory"),
        ("neighbours on different machines", elsewhere, "placement"),
        ("experts get each other's rows", SWAPPED, "parity"),
        ("a low bit flips once", transient(REDUCE, 7), "repeat"),
        ("what is gathered in bf16 loses a bit", narrow.of(GATHER, narrow.without_last_bit), "wrong"),
        ("gathered twice in bf16", narrow.of(GATHER, twice), "traffic"),
        ("rank 1 loses an update in bf16", narrow.step_of(torch.optim.SGD, LOST), "parity"),
        ("a low bit always flips", of(GATHER, always_flipped), "wrong"),
    ),
    *_bugs(
        "mesh.five_axes",
        ("dense gradients not summed over cp", of(SUM, among(CONTEXT, dropped)), "parity traffic wrong"),
        ("keys and values off by one part", of(GATHER, among(CONTEXT, rotated)), "parity wrong"),
        ("gradients of the next part's keys", of(REDUCE, among(CONTEXT, next_shard)), "parity wrong"),
        size=8,
    ),
    *_bugs(
        "mesh.ep_fsdp",
        (
            "experts divided by their replicas alone",
            planted(sharded.FullySharded, "synchronise", never),
            "parity",
        ),
        ("experts sharded over all ranks", replicas_everywhere, "parity traffic memory"),
        ("experts not reduced over their replicas", of(REDUCE, among(REPLICAS, own_alone)), "parity traffic"),
        ("dense gradients not reduced", of(REDUCE, among(NEXT, own_alone)), "parity traffic"),
        ("experts get each other's rows", SWAPPED, "parity"),
        ("never resharded", planted(sharded, "fully_shard", told(reshard_after_forward=False)), "traffic"),
        ("gathered twice in bf16", narrow.of(GATHER, twice), "traffic"),
        ("a low bit flips once", transient(REDUCE, 5), "repeat"),
        ("a low bit always flips", of(GATHER, always_flipped), "wrong"),
    ),
    *_bugs(
        "mesh.zero1_pp_ep",
        ("gradients averaged, and divided again", of(REDUCE, averaged_in_place), "parity"),
        ("dense gradients not reduced", of(REDUCE, among(NEXT, own_alone)), "parity traffic"),
        ("dense masters along the experts' line", bucketed("dense", "edp"), "parity"),
        ("updates not gathered", planted(zero.Bucket, "gather", never), "parity traffic"),
        ("gathered off by one part", of(GATHER, among(NEXT, rotated)), "parity wrong"),
        ("bf16 weights one step stale", narrow.of(GATHER, narrow.stale), "parity"),
        ("rank 1 loses an update", narrow.step_of(torch.optim.SGD, narrow.second_lost_on_rank_1), "parity"),
        ("an optimizer of two states", ADAM, "parity memory"),
        ("activations one micro-batch behind", BEHIND, "parity"),
        ("a low bit flips once", transient(REDUCE, 3), "repeat"),
    ),
    *_bugs(
        "mesh.zero1_pp_ep",
        ("experts not reduced over their replicas", of(REDUCE, among(REPLICAS, own_alone)), "parity traffic"),
        ("experts sharded over all ranks of a stage", bucketed("experts", "dp_cp"), "parity"),
        size=8,
    ),
]
