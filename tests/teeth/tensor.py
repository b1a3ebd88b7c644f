"""What a real stack could do wrong under tensor and sequence parallelism."""

from __future__ import annotations

import functools

import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.distributed import _symmetric_memory as symmetric
from torch.distributed.tensor.parallel import RowwiseParallel, style

from suites.tensor.test_tensor import BLOCK, HALF, HEADS, LAYER
from tests.teeth.bug import Bug, Patch, replaced
from tests.teeth.patches import narrow
from tests.teeth.patches.memory import inputs_copied, kept_whole, weights_kept_whole
from tests.teeth.patches.tensor import (
    GATHER,
    SCATTER,
    Tensor,
    all_reduce,
    alone,
    always,
    averaged,
    backward,
    coarse,
    drawn,
    dropped,
    first_shard,
    flipped_once,
    flipped_payloads,
    gathered_again,
    instead,
    largest,
    left_partial,
    low_bit_of_what_is_gathered,
    maximum,
    method,
    next_shard,
    not_the_first,
    of_a_part,
    of_weights,
    own_part,
    own_product,
    pieces_in_another_order,
    replicated,
    rotated,
    stale_once,
    swapped,
    unmasked,
    whole_reduced,
)

COLUMN = {**LAYER, "features": 96, "gather": True}
ROW = {**LAYER, "features": 96, "split": True}
MLP = {**LAYER, "hidden": 96}
DROPPING = {**LAYER, "hidden": 64, "dropout": HALF}
SHARED = {**HEADS, "replicate": True}
WORDS = {**LAYER, "words": 96}

PARITY, BOTH = ("parity",), ("parity", "traffic")
FIRST, NEXT = method(Tensor, "narrow", first_shard), method(Tensor, "narrow", next_shard)
UNMASKED = method(Tensor, "masked_fill", unmasked)
TWICE, EVERYWHERE = instead(dist, GATHER, gathered_again), instead(dist, SCATTER, whole_reduced)
PARTIAL: Patch = functools.partial(replaced, RowwiseParallel, "_prepare_output_fn", left_partial)
REPLICATED = instead(style, "distribute_tensor", replicated)
SWAPPED = instead(funcol, "all_gather_single", swapped)
GATHERED, SUMMED = "_fused_all_gather_matmul_fallback", "_fused_matmul_reduce_scatter_fallback"
OUT_OF_ORDER = instead(symmetric, GATHERED, pieces_in_another_order)
SPOILED = instead(symmetric, GATHERED, low_bit_of_what_is_gathered)
ALONE = instead(symmetric, SUMMED, own_product)
FIRST_WORD = method(Tensor, "__ge__", not_the_first)
SEQUENCE = kept_whole(lambda tensor: tensor.dim() == 3)
SAME, DIFFERENT = drawn(-1, lambda features: features != 48), drawn(1, lambda features: features == 48)
OWN = instead(funcol, "reduce_scatter_single", own_part)
BUGS = [
    Bug("dX is not reduced", "tensor.column", COLUMN, dropped(backward), BOTH),
    Bug("outputs joined one place too far", "tensor.column", COLUMN, rotated(GATHER), PARITY),
    Bug("outputs gathered twice", "tensor.column", COLUMN, TWICE, ("traffic",)),
    Bug("the mean for the sum", "tensor.row", ROW, all_reduce(averaged, always), PARITY),
    Bug("dX joined one place too far", "tensor.row", ROW, rotated(GATHER), PARITY),
    Bug("a bit flipped whenever it is sent", "tensor.row", ROW, flipped_payloads, ("wrong",)),
    Bug("added up in bf16", "tensor.mlp", MLP, all_reduce(coarse, always), PARITY),
    Bug("f without its all_reduce", "tensor.mlp", MLP, dropped(backward), BOTH),
    Bug("a low bit flipped once", "tensor.mlp", MLP, flipped_once, ("repeat",)),
    Bug("bf16 cut off", "tensor.mlp", MLP, narrow.of("all_reduce", narrow.truncated), ("wrong",)),
    Bug("bf16 cut off", "tensor.sequence", BLOCK, narrow.of(SCATTER, narrow.truncated), ("wrong",)),
    Bug("all ranks draw the same hidden mask", "tensor.mlp_dropout", DROPPING, SAME, PARITY),
    Bug("ranks draw different output masks", "tensor.mlp_dropout", DROPPING, DIFFERENT, PARITY),
    Bug("g without its all_reduce", "tensor.mlp_dropout", DROPPING, dropped(always), BOTH),
    Bug("shared heads' gradients not added", "tensor.attention", SHARED, dropped(of_a_part), BOTH),
    Bug("every rank takes the first heads", "tensor.attention", SHARED, FIRST, PARITY),
    Bug("largest logit of the own words", "tensor.vocabulary", WORDS, dropped(maximum), BOTH),
    Bug("other ranks' words not masked", "tensor.vocabulary", WORDS, UNMASKED, PARITY),
    Bug("shards off by one", "tensor.vocabulary", WORDS, NEXT, PARITY),
    Bug("the first word of a part is nobody's", "tensor.vocabulary", WORDS, FIRST_WORD, PARITY),
    Bug("a sum of the time before", "tensor.block", BLOCK, stale_once, PARITY),
    Bug("the mean for the sum, backward", "tensor.block", BLOCK, all_reduce(averaged, backward), PARITY),
    Bug("norms' gradients not reduced", "tensor.sequence", BLOCK, dropped(of_weights), BOTH),
    Bug("parts scattered one place too far", "tensor.sequence", BLOCK, rotated(SCATTER), PARITY),
    Bug("all_reduce for reduce_scatter", "tensor.sequence", BLOCK, EVERYWHERE, ("traffic",)),
    Bug("the gathered sequence is kept", "tensor.sequence", BLOCK, SEQUENCE, ("memory",)),
    Bug("every layer copies its input", "tensor.mlp", MLP, inputs_copied, ("memory",)),
    Bug("whole weights are kept", "tensor.mlp", MLP, weights_kept_whole, ("memory",)),
    Bug("whole weights are kept", "tensor.column", COLUMN, weights_kept_whole, ("memory",)),
    Bug("pieces in another order", "tensor.async_tp", MLP, OUT_OF_ORDER, PARITY),
    Bug("own product alone", "tensor.async_tp", MLP, ALONE, PARITY),
    Bug("a bit flipped behind a product", "tensor.async_tp", MLP, SPOILED, ("wrong",)),
    Bug("the gathered sequence is kept", "tensor.async_tp", MLP, SEQUENCE, ("memory",)),
    Bug("summands not added", "tensor.dtensor", BLOCK, PARTIAL, BOTH),
    Bug("weights not split", "tensor.dtensor", BLOCK, REPLICATED, ("memory",)),
    Bug("sequence joined in the wrong order", "tensor.dtensor_sequence", BLOCK, SWAPPED, PARITY),
    Bug("own summand alone", "tensor.dtensor_sequence", BLOCK, OWN, PARITY),
    Bug("largest for sum", "tensor.loss_parallel", WORDS, instead(funcol, "all_reduce", largest), PARITY),
    Bug("statistics not shared", "tensor.loss_parallel", WORDS, instead(funcol, "all_reduce", alone), BOTH),
]
