"""Seeded bugs of combinations on a device mesh."""

from __future__ import annotations

from suites.context.ring_attention import GRADIENTS, KEYS
from suites.mesh.test_mesh import STEPS
from tests.teeth.bug import Bug, Patch
from tests.teeth.context import in_place_of_passing, low_bit, passing, stale, unmasked
from tests.teeth.mesh_moe import MIXTURE
from tests.teeth.patches import narrow
from tests.teeth.patches.flips import flipped_in_call, transient
from tests.teeth.patches.mesh import (
    backwards,
    counted_twice,
    elsewhere,
    every_time,
    exchanged,
    functional,
    left_out,
    low_bit_unseen,
    never,
    of_optimizer,
    own_alone,
    seldom,
    sharded,
    turned,
    unscaled,
)
from tests.teeth.patches.training import clipped_late, own_norm
from tests.teeth.patches.zero import flipped_always, of, rotated, summed

_LESS = {"layers": 1, "rows": 1}
_PARAMETERS = {case.step: {**case.parameters, **_LESS} for case in STEPS}


def _bug(step: str, name: str, patch: Patch, *red: str, size: int = 4) -> Bug:
    return Bug(name, step, _PARAMETERS[step], patch, red, size)


BUGS: list[Bug] = [
    _bug("mesh.fsdp_tp", "sum in place of mean along dp", of("reduce_scatter_single", summed), "parity"),
    _bug("mesh.fsdp_tp", "gathered off by one", of("all_gather_single", rotated), "parity", "wrong"),
    _bug(
        "mesh.fsdp_tp", "summands not added along tp", functional("all_reduce", left_out), "parity", "traffic"
    ),
    _bug("mesh.fsdp_tp", "dp and tp exchanged", exchanged("dp", "tp"), "parity", "traffic"),
    _bug("mesh.fsdp_tp", "never resharded", sharded(reshard_after_forward=False), "traffic", "memory"),
    _bug("mesh.fsdp_tp", "a low bit flips once", transient("reduce_scatter_single", 3), "repeat"),
    _bug("mesh.fsdp_tp", "a bit of rank 1 always flips", of("all_reduce", flipped_always), "wrong"),
    _bug("mesh.fsdp_tp", "nodes interleaved", elsewhere, "placement"),
    _bug("mesh.pp_fsdp_tp", "micro-batches in the wrong order", backwards, "parity", size=2),
    _bug("mesh.pp_fsdp_tp", "sum in place of mean of micro-batches", unscaled, "parity", size=2),
    _bug(
        "mesh.pp_fsdp_tp",
        "logits joined in the wrong order",
        functional("all_gather_single", turned),
        "parity",
    ),
    _bug("mesh.pp_fsdp_tp", "reduced with every micro-batch", every_time, "traffic", size=8),
    _bug(
        "mesh.pp_fsdp_tp", "gathered twice", sharded(reshard_after_forward=True), "traffic", "memory", size=8
    ),
    _bug("mesh.fsdp_cp", "stale block of keys", passing(stale, (KEYS,)), "parity", "wrong", size=2),
    _bug("mesh.fsdp_cp", "future keys not masked", unmasked, "parity", size=2),
    _bug(
        "mesh.fsdp_cp", "gradients of keys stay", in_place_of_passing(GRADIENTS), "parity", "traffic", size=2
    ),
    _bug(
        "mesh.fsdp_cp",
        "a low bit flips once",
        passing(low_bit_unseen, (GRADIENTS,), (2,), (0,)),
        "repeat",
        size=2,
    ),
    _bug(
        "mesh.fsdp_cp", "a bit of rank 0 always flips", passing(low_bit, (KEYS,), (), (0,)), "wrong", size=2
    ),
    _bug(
        "mesh.fsdp_cp", "sum in place of mean along dp and cp", of("reduce_scatter_single", summed), "parity"
    ),
    _bug("mesh.loss_curve", "one update in ten is lost", of_optimizer("step", seldom), "parity", size=2),
    _bug("mesh.loss_curve", "gradients add up", of_optimizer("zero_grad", never), "parity", size=2),
    _bug(
        "mesh.fsdp_tp",
        "sums in bf16 cut off",
        narrow.of("reduce_scatter_single", narrow.truncated),
        "wrong",
    ),
    _bug(
        "mesh.fsdp_tp",
        "rank 1 loses an update in bf16",
        of_optimizer("step", narrow.of_bf16_weights(narrow.second_lost_on_rank_1)),
        "parity",
    ),
    *(
        _bug(
            step,
            f"a low bit flips once in bf16, {call}",
            narrow.of(call, flipped_in_call(number)),
            "repeat",
            size=size,
        )
        for step, call, number, size in (
            ("mesh.fsdp_tp", "reduce_scatter_single", 2, 4),
            ("mesh.fsdp_cp", "all_gather_single", 3, 2),
        )
    ),
    _bug("mesh.fsdp_tp", "whole weights count twice in the norm", counted_twice, "parity"),
    _bug("mesh.fsdp_tp", "norm of the local shard alone", own_norm, "parity", "traffic"),
    _bug("mesh.fsdp_tp", "clipped after the update", clipped_late, "parity"),
    _bug("mesh.pp_fsdp_tp", "norm of the own stage alone", own_norm, "parity", "traffic", size=2),
    _bug("mesh.fsdp_cp", "norm of the local shard alone", own_norm, "parity", "traffic", size=2),
    _bug(
        "mesh.fsdp_cp_tp",
        "summands not added along tp",
        functional("all_reduce", left_out),
        "parity",
        "traffic",
    ),
    _bug("mesh.fsdp_cp_tp", "gradients of keys stay", in_place_of_passing(GRADIENTS), "parity", "traffic"),
    _bug("mesh.fsdp_cp_tp", "stale block of keys", passing(stale, (KEYS,)), "parity"),
    _bug(
        "mesh.fsdp_cp_tp",
        "gradients not reduced over cp",
        of("reduce_scatter_single", own_alone),
        "parity",
        "traffic",
    ),
    _bug("mesh.fsdp_cp_tp", "sum in place of mean along cp", of("reduce_scatter_single", summed), "parity"),
    _bug("mesh.fsdp_cp_tp", "whole weights count twice in the norm", counted_twice, "parity"),
    _bug("mesh.fsdp_cp_tp", "a low bit flips once", transient("reduce_scatter_single", 3), "repeat"),
    *MIXTURE,
]
