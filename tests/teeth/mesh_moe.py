"""Bugs of the mixtures of experts on a mesh: who is summed with whom, divided by what, and sent where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from suites.mesh import placement
from suites.mesh.moe import sharded, training, zero
from suites.mesh.test_mesh import EXPERTS
from tests.teeth.bug import Bug, Patch, replaced
from tests.teeth.patches import narrow
from tests.teeth.patches.flips import flip, transient
from tests.teeth.patches.mesh import (
    averaged_in_place,
    bucketed,
    kept_whole,
    never,
    own_alone,
    replicas_everywhere,
    two_states,
)
from tests.teeth.patches.zero import dropped, of, twice

Call = Callable[..., Any]
Maker = Callable[[Call], Call]
_PARAMETERS = {case.step: case.parameters for case in EXPERTS}


def among(stride: int, make: Maker) -> Maker:
    """Plant it in the groups whose ranks are so far apart; the world's own calls are left alone."""

    def planted(original: Call) -> Call:
        other = make(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            group = kwargs.get("group")
            ranks = (0, 0) if group is None else dist.get_process_group_ranks(group)
            return (other if ranks[1] - ranks[0] == stride else original)(*args, **kwargs)

        return call

    return planted


def _of(name: str, make: Maker) -> Patch:
    return lambda: replaced(dist, name, make)


def _averaged(original: Call) -> Call:
    """A sum of gradients is divided by the size of its group, and later by the ranks of a stage as well."""

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        mean = tensor.is_floating_point()
        return original(tensor, *args, **(kwargs | {"op": dist.ReduceOp.AVG} if mean else kwargs))

    return call


def _everybody(original: Call) -> Call:
    """The whole world in place of the group."""
    return lambda *args, **kwargs: original(*args, **{**kwargs, "group": None})


def _last_row_dropped(original: Call) -> Call:
    """The last token that came does not get in."""

    def call(output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        done = original(output, *args, **kwargs)
        if output.dim() == 2 and len(output):
            output[-1] = 0
        return done

    return call


def _backwards(original: Call) -> Call:
    return lambda tensor, *args, **kwargs: original(tensor, *args, **{**kwargs, "descending": True})


def always_flipped(original: Call) -> Call:
    """The lowest bit of what rank 1 is given is flipped, always; counts of rows are let through."""

    def call(output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        done = original(output, *args, **kwargs)
        if dist.get_rank() == 1 and output.dtype is torch.int64 and output.numel() > COUNTS:
            flip(output)
        return done

    return call


def _rounded(original: Call) -> Call:
    """Rows travel in bf16."""

    def call(output: torch.Tensor, rows: torch.Tensor, *splits: Any, **kwargs: Any) -> Any:
        narrow = rows.bfloat16().to(rows.dtype) if rows.is_floating_point() else rows
        return original(output, narrow, *splits, **kwargs)

    return call


def off_by_one(original: Call) -> Call:
    """The output begins one part too late."""

    def call(whole: torch.Tensor, part: torch.Tensor, **kwargs: Any) -> Any:
        done = original(whole, part, **kwargs)
        whole.copy_(whole.roll(-len(part), 0))
        return done

    return call


def _next_part(original: Call) -> Call:
    """A rank is handed the part of the one after it."""

    def call(part: torch.Tensor, whole: torch.Tensor, **kwargs: Any) -> Any:
        return original(part, whole.roll(-len(part), 0), **kwargs)

    return call


def _one_behind(original: Call) -> Call:
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


def _scattered() -> AbstractContextManager[Any]:
    """Neighbouring ranks are on different machines."""
    return replaced(placement, "machine", lambda _: lambda: (f"node-{dist.get_rank() % 2}",) * 2)


def _all_forward_first() -> AbstractContextManager[Any]:
    return replaced(training, "Schedule1F1B", lambda _: ScheduleGPipe)


def _bug(step: str, name: str, patch: Patch, *red: str, size: int = 4) -> Bug:
    return Bug(name, step, _PARAMETERS[step], patch, red, size)


BEHIND: Patch = lambda: replaced(PipelineStage, "get_fwd_send_ops", _one_behind)  # noqa: E731
SWAPPED: Patch = lambda: replaced(torch.Tensor, "argsort", _backwards)  # noqa: E731
REDUCE, GATHER = "reduce_scatter_single", "all_gather_single"
COUNTS = 64  # numbers that ranks tell each other before they send rows are fewer
REPLICAS = 2  # how far apart the replicas of an expert are in a world of 4
NEXT = 1  # and the ranks of a stage
TENSOR, CONTEXT = 1, 2
MIXTURE = [
    _bug(
        "mesh.ep_dp",
        "experts divided by their replicas too",
        _of("all_reduce", among(REPLICAS, _averaged)),
        "parity",
    ),
    _bug(
        "mesh.ep_dp",
        "experts' replicas not summed",
        _of("all_reduce", among(REPLICAS, dropped)),
        "parity",
        "traffic",
        "wrong",
    ),
    _bug(
        "mesh.ep_dp",
        "experts summed over all ranks",
        _of("all_reduce", among(REPLICAS, _everybody)),
        "parity",
        "traffic",
    ),
    _bug("mesh.ep_dp", "dense gradients divided twice", _of("all_reduce", among(1, _averaged)), "parity"),
    _bug("mesh.ep_dp", "experts get each other's rows", SWAPPED, "parity"),
    _bug(
        "mesh.ep_dp",
        "a token that does not fit is dropped",
        _of("all_to_all_single", _last_row_dropped),
        "parity",
    ),
    _bug("mesh.ep_dp", "rows travel in bf16", _of("all_to_all_single", _rounded), "parity"),
    _bug("mesh.ep_dp", "a low bit flips once", transient("all_to_all_single", 5), "repeat"),
    _bug("mesh.ep_dp", "a low bit always flips", _of("all_to_all_single", always_flipped), "wrong"),
    _bug(
        "mesh.five_axes",
        "norms not summed along tp",
        _of("all_reduce", among(TENSOR, dropped)),
        "parity",
        "traffic",
    ),
    _bug("mesh.five_axes", "activations one micro-batch behind", BEHIND, "parity"),
    _bug("mesh.five_axes", "all forward before any backward", _all_forward_first, "parity", "memory"),
    _bug("mesh.five_axes", "neighbours on different machines", _scattered, "placement"),
    _bug("mesh.five_axes", "experts get each other's rows", SWAPPED, "parity"),
    _bug("mesh.five_axes", "a low bit flips once", transient("reduce_scatter_single", 7), "repeat"),
    _bug(
        "mesh.five_axes",
        "what is gathered in bf16 loses a bit",
        narrow.of("all_gather_single", narrow.without_last_bit),
        "wrong",
    ),
    _bug(
        "mesh.five_axes",
        "gathered twice in bf16",
        narrow.of("all_gather_single", twice),
        "traffic",
    ),
    _bug(
        "mesh.five_axes",
        "rank 1 loses an update in bf16",
        narrow.step_of(torch.optim.SGD, narrow.of_bf16_weights(narrow.second_lost_on_rank_1)),
        "parity",
    ),
    _bug("mesh.five_axes", "a low bit always flips", _of("all_gather_single", always_flipped), "wrong"),
    _bug(
        "mesh.five_axes",
        "dense gradients not summed over cp",
        _of("all_reduce", among(CONTEXT, dropped)),
        "parity",
        "traffic",
        "wrong",
        size=8,
    ),
    _bug(
        "mesh.five_axes",
        "keys and values off by one part",
        _of("all_gather_single", among(CONTEXT, off_by_one)),
        "parity",
        "wrong",
        size=8,
    ),
    _bug(
        "mesh.five_axes",
        "gradients of the next part's keys",
        _of("reduce_scatter_single", among(CONTEXT, _next_part)),
        "parity",
        "wrong",
        size=8,
    ),
    _bug(
        "mesh.ep_fsdp",
        "experts divided by their replicas alone",
        lambda: replaced(sharded.FullySharded, "synchronise", never),
        "parity",
    ),
    _bug(
        "mesh.ep_fsdp", "experts sharded over all ranks", replicas_everywhere, "parity", "traffic", "memory"
    ),
    _bug(
        "mesh.ep_fsdp",
        "experts not reduced over their replicas",
        of(REDUCE, among(REPLICAS, own_alone)),
        "parity",
        "traffic",
    ),
    _bug(
        "mesh.ep_fsdp", "dense gradients not reduced", of(REDUCE, among(NEXT, own_alone)), "parity", "traffic"
    ),
    _bug("mesh.ep_fsdp", "experts get each other's rows", SWAPPED, "parity"),
    _bug("mesh.ep_fsdp", "never resharded", kept_whole, "traffic"),
    _bug("mesh.ep_fsdp", "gathered twice in bf16", narrow.of(GATHER, twice), "traffic"),
    _bug("mesh.ep_fsdp", "a low bit flips once", transient(REDUCE, 5), "repeat"),
    _bug("mesh.ep_fsdp", "a low bit always flips", of(GATHER, always_flipped), "wrong"),
    _bug(
        "mesh.zero1_pp_ep", "gradients averaged, and divided again", of(REDUCE, averaged_in_place), "parity"
    ),
    _bug(
        "mesh.zero1_pp_ep",
        "dense gradients not reduced",
        of(REDUCE, among(NEXT, own_alone)),
        "parity",
        "traffic",
    ),
    _bug("mesh.zero1_pp_ep", "dense masters along the experts' line", bucketed("dense", "edp"), "parity"),
    _bug(
        "mesh.zero1_pp_ep",
        "updates not gathered",
        lambda: replaced(zero.Bucket, "gather", never),
        "parity",
        "traffic",
    ),
    _bug(
        "mesh.zero1_pp_ep", "gathered off by one part", of(GATHER, among(NEXT, off_by_one)), "parity", "wrong"
    ),
    _bug("mesh.zero1_pp_ep", "bf16 weights one step stale", narrow.of(GATHER, narrow.stale), "parity"),
    _bug(
        "mesh.zero1_pp_ep",
        "rank 1 loses an update",
        narrow.step_of(torch.optim.SGD, narrow.second_lost_on_rank_1),
        "parity",
    ),
    _bug("mesh.zero1_pp_ep", "an optimizer of two states", two_states, "parity", "memory"),
    _bug("mesh.zero1_pp_ep", "activations one micro-batch behind", BEHIND, "parity"),
    _bug("mesh.zero1_pp_ep", "a low bit flips once", transient(REDUCE, 3), "repeat"),
    _bug(
        "mesh.zero1_pp_ep",
        "experts not reduced over their replicas",
        of(REDUCE, among(REPLICAS, own_alone)),
        "parity",
        "traffic",
        size=8,
    ),
    _bug(
        "mesh.zero1_pp_ep",
        "experts sharded over all ranks of a stage",
        bucketed("experts", "dp_cp"),
        "parity",
        size=8,
    ),
]
