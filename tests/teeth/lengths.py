"""Seeded bugs of large messages and of lengths that fill no words: steps of other lengths do not see them."""

from __future__ import annotations

from dataclasses import replace

from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor.experimental._context_parallel import _attention

from suites.context import moves, techniques, test_context
from suites.expert import layer, test_expert
from suites.mesh import test_mesh
from suites.pipeline import test_pipeline
from suites.tensor import regions, test_tensor
from suites.zero import flat, test_zero
from tests.suites.parallel import sized
from tests.teeth.bug import Bug, Patch, planted
from tests.teeth.patches.large import (
    copied_out,
    cut_off,
    in_blocks,
    in_bucket,
    in_output,
    in_result,
    of_the_run_before,
    over_edge,
    swapped,
    tail_lost,
    unfinished,
)

_MODULES = (test_zero, test_tensor, test_context, test_expert, test_pipeline, test_mesh)
_QUICK = {"busy_ms": 12, "repeats": 1}  # calibrated stages are not what is looked at
_CASES = [*test_mesh.STEPS, *test_zero.STEPS, *test_tensor.STEPS, *test_context.CONTEXT, *test_expert.PARITY]
_SMALL = {
    **{case.step: dict(case.parameters) for case in _CASES},
    # without micro-batches and clipping, and in two blocks
    **{
        case.step: dict(test_zero.SMALL)
        for case in test_zero.STEPS
        if test_zero.REAL.items() <= case.parameters.items()
    },
    **{case.step: {**case.parameters, **_QUICK} for case in test_pipeline.SCHEDULES},
}
_ODD = {case.step: case for case in [*_CASES, *test_expert.ODD] if case.words[-1] == "odd"}
_AT_SIZE = [module.AT_SIZE for module in _MODULES]
_LARGE = {case.step: case for cases in _AT_SIZE for case in reversed(cases)}


def _bug(step: str, name: str, patch: Patch, size: int = 2, red: str = "parity") -> Bug:
    return Bug(name, step, sized(_LARGE[step], size), patch, (red,), size)


def _before(step: str, patch: Patch) -> Bug:
    return _bug(step, "what the run before was given", patch, red="repeat")


def _odd(step: str, patch: Patch) -> Bug:
    return Bug("odd tail lost", step, dict(_ODD[step].parameters), patch, ("parity",), narrow=True)


BUGS = [
    _bug("zero.ddp", "bucket put back too early", in_bucket(unfinished)),
    _bug("zero.ddp", "chunks of a bucket swapped", in_bucket(swapped)),
    _bug("zero.zero1", "shard read too early", planted(flat, "reduce_scatter", in_output(unfinished))),
    _bug("zero.zero1", "gathered chunks swapped", planted(flat, "all_gather", in_output(swapped))),
    _bug("zero.zero1", "parameters read too early", planted(flat, "all_gather", in_output(unfinished))),
    _bug("zero.zero2", "end of a shard lost", planted(flat, "reduce_scatter", in_output(cut_off))),
    _bug("zero.zero3", "parameters read too early", planted(flat, "all_gather", in_output(unfinished))),
    _bug("zero.fsdp", "copied out too early", copied_out(unfinished)),
    _bug("zero.fsdp", "gathered chunks swapped", copied_out(swapped)),
    _bug("zero.hsdp", "end of what was gathered lost", copied_out(cut_off), size=4),
    _bug("tensor.mlp", "sum read too early", planted(regions, "all_reduce", in_result(unfinished))),
    _bug("tensor.block", "chunks of a sum swapped", planted(regions, "all_reduce", in_result(swapped))),
    _bug(
        "tensor.sequence", "end of what was gathered lost", planted(regions, "all_gather", in_result(cut_off))
    ),
    _bug("tensor.dtensor", "sum read too early", planted(functional, "wait_tensor", in_result(unfinished))),
    _bug("tensor.dtensor_sequence", "chunks swapped", planted(functional, "wait_tensor", in_result(swapped))),
    _bug("context.ring", "block read too early", in_blocks(unfinished)),
    _bug("context.zigzag", "chunks of a block swapped", in_blocks(swapped)),
    _bug(
        "context.all_gather_kv",
        "read too early",
        planted(techniques, "whole_sequence", in_result(unfinished)),
    ),
    _bug("context.ulysses", "chunks swapped", planted(moves, "_exchange", in_result(swapped))),
    _bug("context.torch_ring", "read too early", planted(_attention, "_maybe_wait", in_result(unfinished))),
    _bug("expert.parity", "rows read too early", planted(layer, "exchange", in_result(unfinished))),
    _before("context.all_gather_kv", planted(techniques, "whole_sequence", of_the_run_before(1))),
    _before("expert.parity", planted(layer, "exchange", of_the_run_before(4))),
    _bug("expert.parity", "end of the rows lost", planted(layer, "exchange", in_result(cut_off))),
    _bug("pipeline.gpipe", "activations read too early", over_edge("_retrieve_recv_activations", unfinished)),
    _bug("pipeline.zbv", "chunks of a gradient swapped", over_edge("_retrieve_recv_grads", swapped)),
    _bug("mesh.fsdp_tp", "copied out too early", copied_out(unfinished, 1 << 16), size=4),
    _bug("mesh.fsdp_cp", "chunks of what was gathered swapped", copied_out(swapped, 1 << 16), size=4),
    _odd("tensor.mlp", planted(regions, "all_reduce", in_result(tail_lost, 0))),
    _odd("context.ring", in_blocks(tail_lost, 0)),
    _odd("context.ulysses", planted(moves, "_exchange", in_result(tail_lost, 0))),
    _odd("expert.parity", planted(layer, "exchange", in_result(tail_lost, 0))),
]


def in_small(bug: Bug) -> Bug:
    """The same bug in the small step, which does not see it."""
    return replace(bug, name=f"{bug.name}, small", parameters=_SMALL[bug.step], red=())
