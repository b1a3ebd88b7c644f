"""What each step of tensor and sequence parallelism issues and holds, from its parameters and n ranks.

Both the controller and the ranks compute here what they expect. Sources are in `suites.tensor.steps`; X is
one activation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines
from fixtures.wire.held import PEAK, Bytes, Held

GROUP = "tp"
STATISTIC = 4  # bytes of a number of softmax: at least fp32, also where logits are bf16


def multiple(number: int, ranks: int) -> int:
    """The next multiple, so that any number of ranks can split it."""
    return -(-number // ranks) * ranks


def enough(batch: int, length: int, ranks: int) -> int:
    """The length of sequences that have a token for every border of the vocabulary's parts."""
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
    """X backward; three numbers per token."""
    count = batch * enough(batch, length, ranks)
    return {"all_reduce": (4, count * (width * item + 3 * max(item, STATISTIC)))}


def of_block(
    counts: Mapping[str, int],
    ranks: int,
    item: int,
    *,
    batch: int,
    length: int,
    channels: int,
    heads: int,
    **_: int,
) -> Calls:
    """`counts` times X in each kind of collective; a sequence that is gathered has been split."""
    length = multiple(length, ranks) if "all_gather" in counts else length
    x = batch * length * ranks * heads * channels * item
    return {kind: (count, count * x) for kind, count in counts.items()}


def sequence(ranks: int, item: int, *, channels: int, heads: int, **sizes: int) -> Calls:
    """X gathered and scattered in place of each; gathered twice more; the two norms' gradients."""
    counts = {"all_gather": 6, "reduce_scatter": 4}
    calls = of_block(counts, ranks, item, channels=channels, heads=heads, **sizes)
    return {**calls, "all_reduce": (2, 2 * ranks * heads * channels * item)}


def async_tp(ranks: int, item: int, *, batch: int, length: int, width: int, **_: int) -> Calls:
    """X gathered three times and scattered twice."""
    x = batch * multiple(length, ranks) * width * item
    return {"all_gather": (3, 3 * x), "reduce_scatter": (2, 2 * x)}


CALLS: dict[str, Callable[..., Calls]] = {
    "column": column,
    "row": row,
    "mlp": mlp,
    "mlp_dropout": mlp,
    "attention": attention,
    "vocabulary": vocabulary,
    "loss_parallel": loss_parallel,
    "block": partial(of_block, {"all_reduce": 4}),  # X twice forward, and twice backward
    "sequence": sequence,
    "async_tp": async_tp,
    "dtensor": partial(of_block, {"all_reduce": 7}),  # X twice forward; backward for each of five weights
    # X gathered and scattered twice forward, and twice backward.
    "dtensor_sequence": partial(of_block, {"all_gather": 4, "reduce_scatter": 4}),
}


def _given(step: str, asked: Mapping[str, Any]) -> tuple[str, dict[str, Any], Mapping[str, int]]:
    """Name and sizes of a requested step, and bytes of a number in each of its dtypes."""
    sizes = {name: value for name, value in asked.items() if name != "at_size"}
    return step.partition(".")[2], sizes, {"": TRAINED_BYTES} if asked.get("at_size") else STUDIED_BYTES


def issued(
    step: str,
    asked: Mapping[str, Any],
    per_node: Sequence[int],
    on_gpu: bool,
) -> Lines:
    """Give what every rank of a planned case issues, from the ranks per node."""
    name, sizes, items = _given(step, asked)
    calls = CALLS[name]
    return {(GROUP, dtype): calls(sum(per_node), item, **sizes) for dtype, item in items.items()}


# what a rank holds


def mlp_elements(ranks: int, *, width: int, hidden: int, **_: Any) -> int:  # noqa: ANN401 - JSON's
    """1/n of three matrices."""
    return 3 * width * multiple(hidden, ranks) // ranks


def attention_elements(ranks: int, *, channels: int, heads: int, **_: Any) -> int:  # noqa: ANN401 - JSON's
    """`heads` query heads, with their outputs, and one key-value head."""
    return 2 * ranks * heads * channels * (heads + 1) * channels


def block_elements(ranks: int, *, channels: int, heads: int, hidden: int, **_: Any) -> int:  # noqa: ANN401 - JSON's
    """Weights of attention, two norms, and `hidden` features."""
    width = ranks * heads * channels
    return 2 * width + attention_elements(ranks, channels=channels, heads=heads) + 3 * width * hidden


ELEMENTS: dict[str, Callable[..., int]] = {  # weights of a rank
    "column": lambda n, *, width, features, **_: multiple(features, n) // n * (width + 1),
    "row": lambda n, *, width, features, **_: (multiple(width, n) // n + 1) * features,
    **dict.fromkeys(("mlp", "mlp_dropout", "async_tp"), mlp_elements),
    "attention": attention_elements,
    "vocabulary": lambda n, *, width, words, **_: 2 * multiple(words, n) // n * width,
    "loss_parallel": lambda n, *, width, words, **_: (multiple(words, n) + multiple(words, n) // n) * width,
    **dict.fromkeys(("block", "sequence", "dtensor", "dtensor_sequence"), block_elements),
}


@dataclass(frozen=True)
class Activations:
    """Bytes of the whole layer, and those that a rank has beside 1/n of them. A peak of 0 is not judged."""

    saved: int  # by forward, for backward
    entire: int  # of what is saved: what every rank has whole
    peak: int = 0
    beside: int = 0  # at its peak

    def share(self, saved: int, ranks: int) -> int:
        """What a rank saves where the whole layer saves so much."""
        return self.entire + (saved - self.entire) // ranks

    def most(self, peak: int, ranks: int) -> int:
        """The peak of a rank where that of the whole layer is so high."""
        return peak // ranks + self.beside


def mlp_activations(
    ranks: int, item: int, *, batch: int, length: int, width: int, hidden: int
) -> Activations:
    """Per row the layer saves its input, gate, silu(gate), up and the product of the last two.

    Every rank saves all of X. The peak has 2 of each weight, what is saved, and 9 rows; and a quarter more,
    here and below, as torch may do it otherwise. Besides, a rank has x and the output; and of what the loss
    is computed from 5 numbers for each of the output, wide. (Later it has x, dX in three summands and their
    sum, which is less.)
    """
    x, features = batch * length * width, batch * length * multiple(hidden, ranks)
    peak = (6 * width * multiple(hidden, ranks) + 4 * features + 10 * x) * item * 5 // 4
    beside = x * (2 * item + 5 * max(item, STATISTIC))
    return Activations((x + 4 * features) * item, x * item, peak, beside)


def dropping_activations(
    ranks: int, item: int, *, batch: int, length: int, width: int, hidden: int, dropout: float
) -> Activations:
    """The same with the masks of hidden features and outputs; every rank has all of the latter."""
    x, features = batch * length * width, batch * length * multiple(hidden, ranks)
    return Activations((2 * x + 5 * features) * item, 2 * x * item)


def async_activations(ranks: int, item: int, *, length: int, **sizes: int) -> Activations:
    """What an MLP saves, all of it split."""
    whole = mlp_activations(ranks, item, length=multiple(length, ranks), **sizes)
    return Activations(whole.saved, 0)


def sequence_activations(
    ranks: int, item: int, *, batch: int, length: int, channels: int, heads: int, hidden: int
) -> Activations:
    """Per row the block saves 3 rows and a number in each norm, and as much as an MLP.

    Also saved are queries, keys, values and output of every head, all scores, a mask and two rotary tables;
    mask and tables are whole on every rank. The peak adds 2 of each weight, the scores again, and 10 rows.
    Besides, a rank has gathered x, dX as three summands and a sum, and the mask.
    """
    length = multiple(length, ranks)
    tokens, width = batch * length, ranks * heads * channels
    x, scores = tokens * width, batch * ranks * heads * length**2
    numbers = 10 * x + tokens * (2 + 4 * ranks * hidden) + scores + 2 * length * channels
    saved = numbers * item + length**2
    weights = 2 * width + 2 * width * (width + ranks * channels) + 3 * width * ranks * hidden
    peak = ((2 * weights + scores + 10 * x) * item + saved) * 5 // 4
    entire = length**2 + 2 * length * channels * item
    return Activations(saved, entire, peak, 5 * x * item + length**2)


ACTIVATIONS: dict[str, Callable[..., Activations]] = {  # where they are judged
    "mlp": mlp_activations,
    "mlp_dropout": dropping_activations,
    "async_tp": async_activations,
    "sequence": sequence_activations,
}


def bytes_held(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> Held:
    """Give what every rank of a planned case holds, from the ranks per node.

    What is saved for backward is up to torch: ranks measure it on the whole layer, and it must be within a
    factor of the closed form here.
    """
    name, sizes, items = _given(step, asked)
    ranks, found = sum(per_node), dict[tuple[str, str], dict[str, Bytes]]()
    for dtype, item in items.items():
        size = ELEMENTS[name](ranks, **sizes) * item
        held = found["", dtype] = {"params": size, "grads": size}
        if name in ACTIVATIONS:
            of = ACTIVATIONS[name](ranks, item, **sizes)
            saved = ranks * of.share(of.saved, ranks)
            held["activations"] = (saved * 3 // 4, saved * 3 // 2)
            if of.peak:
                held[PEAK] = (0, ranks * of.most(of.peak, ranks))
    return found
