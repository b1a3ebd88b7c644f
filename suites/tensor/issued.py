"""What each step of tensor and sequence parallelism issues: calls and bytes, of its parameters and n ranks.

The controller computes here what it expects of the ranks, and the ranks what they expect of themselves.
Sources are in `suites.tensor.steps`; X is one activation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines

GROUP = "tp"
STATISTIC = 4  # bytes, of softmax: in fp32 where logits are bf16, and no less


def multiple(number: int, ranks: int) -> int:
    """The next multiple, so that any number of ranks can split it."""
    return -(-number // ranks) * ranks


def enough(batch: int, length: int, ranks: int) -> int:
    """The length of sequences whose tokens are as many as all borders of the vocabulary's parts need."""
    return max(length, -(-2 * ranks // batch))


def column(
    ranks: int, item: int, *, batch: int, length: int, width: int, features: int, gather: bool
) -> Calls:
    """X backward; Y where it is gathered."""
    gathered = {"all_gather": (1, batch * length * multiple(features, ranks) * item)} if gather else {}
    return {"all_reduce": (1, batch * length * width * item), **gathered}


def row(ranks: int, item: int, *, batch: int, length: int, width: int, features: int, split: bool) -> Calls:
    """Y forward; X backward where it was split."""
    gathered = {"all_gather": (1, batch * length * multiple(width, ranks) * item)} if split else {}
    return {"all_reduce": (1, batch * length * features * item), **gathered}


def mlp(_ranks: int, item: int, *, batch: int, length: int, width: int, **_: Any) -> Calls:  # noqa: ANN401 - JSON's
    """X forward and X backward."""
    return {"all_reduce": (2, 2 * batch * length * width * item)}


def attention(
    ranks: int, item: int, *, batch: int, length: int, channels: int, heads: int, replicate: bool
) -> Calls:
    """X forward and X backward; the gradients of two weights of a shared key-value head."""
    width, shared = ranks * heads * channels, 2 if replicate else 0
    return {"all_reduce": (2 + shared, (2 * batch * length * width + shared * channels * width) * item)}


def vocabulary(ranks: int, item: int, *, batch: int, length: int, width: int, **_: Any) -> Calls:  # noqa: ANN401 - JSON's
    """X forward and X backward; three numbers per token."""
    count = batch * enough(batch, length, ranks)
    return {"all_reduce": (5, count * (2 * width * item + 3 * max(item, STATISTIC)))}


def loss_parallel(ranks: int, item: int, *, batch: int, length: int, width: int, **_: Any) -> Calls:  # noqa: ANN401 - JSON's
    """X backward; three numbers per token, one of them in the dtype of the logits."""
    count = batch * enough(batch, length, ranks)
    return {"all_reduce": (4, count * (width * item + 2 * max(item, STATISTIC) + item))}


def of_block(
    counts: Mapping[str, int], ranks: int, item: int, *, batch: int, length: int, channels: int, heads: int
) -> Calls:
    """X so many times in each kind."""
    x = batch * length * ranks * heads * channels * item
    return {kind: (count, count * x) for kind, count in counts.items()}


def block(ranks: int, item: int, *, hidden: int = 0, **sizes: int) -> Calls:
    """X twice forward, and twice backward."""
    return of_block({"all_reduce": 4}, ranks, item, **sizes)


def sequence(ranks: int, item: int, *, length: int, hidden: int = 0, **sizes: int) -> Calls:
    """X gathered and scattered in place of each; gathered twice more; the two norms' gradients."""
    moved = {"all_gather": 6, "reduce_scatter": 4}
    calls = of_block(moved, ranks, item, length=multiple(length, ranks), **sizes)
    return {**calls, "all_reduce": (2, 2 * ranks * sizes["heads"] * sizes["channels"] * item)}


def async_tp(ranks: int, item: int, *, batch: int, length: int, width: int, hidden: int = 0) -> Calls:
    """X gathered three times and scattered twice."""
    x = batch * multiple(length, ranks) * width * item
    return {"all_gather": (3, 3 * x), "reduce_scatter": (2, 2 * x)}


def dtensor(ranks: int, item: int, *, hidden: int = 0, **sizes: int) -> Calls:
    """X twice forward, and backward for each of five weights."""
    return of_block({"all_reduce": 7}, ranks, item, **sizes)


def dtensor_sequence(ranks: int, item: int, *, length: int, hidden: int = 0, **sizes: int) -> Calls:
    """X gathered and scattered twice forward, and twice backward."""
    moved = {"all_gather": 4, "reduce_scatter": 4}
    return of_block(moved, ranks, item, length=multiple(length, ranks), **sizes)


_STEPS: dict[str, Callable[..., Calls]] = {
    "column": column,
    "row": row,
    "mlp": mlp,
    "mlp_dropout": mlp,
    "attention": attention,
    "vocabulary": vocabulary,
    "loss_parallel": loss_parallel,
    "block": block,
    "sequence": sequence,
    "async_tp": async_tp,
    "dtensor": dtensor,
    "dtensor_sequence": dtensor_sequence,
}


def issued(
    step: str,
    asked: Mapping[str, Any],
    per_node: Sequence[int],
    on_gpu: bool,
) -> Lines:
    """Give what every rank of a planned case issues, of nodes that have so many ranks each."""
    sizes = {name: value for name, value in asked.items() if name != "at_size"}
    calls = _STEPS[step.partition(".")[2]]
    items = {"": TRAINED_BYTES} if asked.get("at_size") else STUDIED_BYTES
    return {(GROUP, dtype): calls(sum(per_node), item, **sizes) for dtype, item in items.items()}
