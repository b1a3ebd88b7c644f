"""What each step of context parallelism issues, forward and backward, and holds, from its parameters.

Both the controller and the ranks compute here what they expect. Sources are in `suites.context.steps`.
B is the bytes of one rank's K and V. "Wide" are numbers of at least 4 bytes, in which sums are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines
from fixtures.wire.held import PEAK, Held, Weighed

FORWARD, BACKWARD = "cp forward", "cp backward"
WIDE = 4  # bytes of fp32: the least of a number in a sum
GATHERED = "allgather"  # torch's name for one way to pass on K and V; the other is "alltoall"
SAVED = f"{PEAK} of what is saved"
_COUNTERS_BYTES = 64  # of the random state, which a GPU's kernel saves for backward even without dropout

Both = tuple[Calls, Calls]  # forward and backward


@dataclass(frozen=True)
class Shape:
    """The sizes of an attention; equal groups of query heads share a key head."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    dim: int
    causal: bool
    rotation: str = ""  # torch's name for how it passes on K and V

    def __post_init__(self) -> None:
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads do not share {self.kv_heads} key heads evenly")


@dataclass(frozen=True)
class Part:
    """One rank's part of the sequence. Numbers have `item` bytes; if `fused`, those of the output too."""

    shape: Shape
    ranks: int
    item: int
    fused: bool

    @property
    def wide(self) -> int:
        """Bytes of a number in a sum."""
        return max(self.item, WIDE)

    @property
    def tokens(self) -> int:
        """Positions of a rank."""
        return self.shape.length // self.ranks

    def of(self, heads: int, item: int = 0) -> int:
        """Bytes of some heads."""
        return self.shape.batch * heads * self.tokens * self.shape.dim * (item or self.item)

    @cached_property
    def q(self) -> int:
        """Bytes of all query heads."""
        return self.of(self.shape.heads)

    @cached_property
    def wide_q(self) -> int:
        """The same, wide."""
        return self.of(self.shape.heads, self.wide)

    @cached_property
    def kv(self) -> int:
        """Bytes of keys and values."""
        return 2 * self.of(self.shape.kv_heads)

    @cached_property
    def wide_kv(self) -> int:
        """The same, wide."""
        return 2 * self.of(self.shape.kv_heads, self.wide)

    @property
    def head(self) -> int:
        """Bytes of one head of all positions."""
        return self.ranks * self.of(1)

    @property
    def output(self) -> int:
        """Bytes of the output, wide unless it is fused, and of its log-sum-exp, wide."""
        return (self.q if self.fused else self.wide_q) + self.wide_q // self.shape.dim

    @property
    def scores(self) -> int:
        """Bytes of the scores of its queries and as many keys, wide."""
        return self.shape.batch * self.shape.heads * self.tokens**2 * self.wide


def shape_of(
    ranks: int,
    *,
    tokens: int,
    kv_heads: int,
    heads: int = 0,
    heads_per_rank: int = 0,
    causal: int = True,
    **sizes: Any,  # noqa: ANN401 - what else a shape has
) -> Shape:
    """The shape from positions, and possibly heads, per rank; 0 key heads stand for one per rank."""
    heads = heads or heads_per_rank * ranks
    return Shape(length=tokens * ranks, heads=heads, kv_heads=kv_heads or ranks, causal=bool(causal), **sizes)


# what is sent


def all_gather_kv(part: Part) -> Both:
    """All ranks' K and V; backward the gradients of all ranks' K and V, wide."""
    ranks = part.ranks
    return {"all_gather": (1, ranks * part.kv)}, {"reduce_scatter": (1, ranks * part.wide_kv)}


def ring(part: Part) -> Both:
    """w-1 rounds of K and V; backward w-1 rounds of K and V, and w of their gradients, wide."""
    rounds = part.ranks - 1
    there = (rounds, rounds * part.kv)
    back = (rounds + part.ranks, rounds * part.kv + part.ranks * part.wide_kv)
    return {"send": there, "recv": there}, {"send": back, "recv": back}


def torch_ring(part: Part) -> Both:
    """All K and V gathered, or w-1 rounds of them; backward the same, and w rounds of their gradients, wide.

    A round is an all_to_all in which a rank sends only to the next one.
    """
    rounds = 0 if part.shape.rotation == GATHERED else part.ranks - 1
    there = (
        {"all_to_all": (rounds, rounds * part.kv)} if rounds else {"all_gather": (1, part.ranks * part.kv)}
    )
    back = (rounds + part.ranks, rounds * part.kv + part.ranks * part.wide_kv)
    return there, {**there, "all_to_all": back}


def ulysses(part: Part) -> Both:
    """Q, K, V and the output; backward their gradients."""
    shape = part.shape
    kv_heads = shape.kv_heads * repeats(shape.kv_heads, part.ranks)
    four = {"all_to_all": (4, 2 * part.of(shape.heads + kv_heads))}
    return four, four


def repeats(kv_heads: int, ranks: int) -> int:
    """How often key heads are repeated so that every rank has one."""
    return max(ranks // kv_heads, 1)


# what a rank holds


def _held(part: Part, saved_kv: int, worked_with: int) -> Weighed:
    """Give the bytes that forward saves for backward, and the peak.

    Saved are Q, K, V, the output and its log-sum-exp. The peak has what a rank is given (Q, K, V, the
    output's gradient, one head of all positions), K and V stacked, what is saved, the output times its
    gradient, and what backward works with. If not wide, Q and the gradient are copied, and the output exists
    in both dtypes.
    """
    saved, copies = part.output + saved_kv, 0 if part.wide == part.item else 2 * part.wide_q + part.q
    most = part.head + 2 * part.q + 2 * part.kv + saved + part.wide_q + copies + worked_with
    return {"activations": part.q + saved, PEAK: most}


def all_gather_kv_held(part: Part) -> Weighed:
    """Saved are all ranks' keys and values, wide.

    Backward works with three matrices of scores of all keys, or two and the gradients of all K and V, twice;
    and dQ.
    """
    scores, kv = part.ranks * part.scores, part.ranks * part.wide_kv
    return _held(part, kv, max(3 * scores, 2 * scores + 2 * kv) + part.wide_q)


def ring_held(part: Part) -> Weighed:
    """Saved are only this rank's K and V. Of other ranks' blocks a rank has the one in use and the next one.

    Backward works with two blocks of others, five of gradients (two in transfer, three that are added up),
    three matrices of scores and three of dQ. A block that is not wide is copied.
    """
    blocks = 2 * part.kv + (5 if part.wide == part.item else 6) * part.wide_kv
    held = _held(part, part.kv, blocks + 3 * part.scores + 3 * part.wide_q)
    return {**held, "live unsharded": min(2, part.ranks - 1) * part.kv}


def torch_ring_held(part: Part) -> Weighed:
    """Saved are only this rank's K and V, and the random state.

    Backward works with K and V of all ranks, the block that was sent, six blocks of gradients, wide, and
    scores and dQ as in a ring.
    """
    blocks = (part.ranks + 1) * part.kv + 6 * part.wide_kv
    held = _held(part, part.kv, blocks + 3 * part.scores + 3 * part.wide_q)
    return {SAVED: held["activations"] + _COUNTERS_BYTES, PEAK: held[PEAK]}


def ulysses_held(part: Part) -> Weighed:
    """Saved are 1/w of the heads for the whole sequence: as many bytes as 1/w of the sequence.

    The peak has what this rank is given; Q, K, V and dO of its heads, and what else forward saves; the
    output. K and V are stacked, and what is not wide is copied: Q, K, V, dO. Masks have a byte for each pair
    of positions: hidden, visible, and once for each query head of a group.

    Backward works with three matrices of scores (some heads, all keys), or two, the gradients of K and V
    twice, and dQ; or with an exchange: what it sends, and what it receives, which is then copied.
    """
    shape, scores = part.shape, part.ranks * part.scores
    kv_heads = shape.kv_heads * repeats(shape.kv_heads, part.ranks)
    saved_kv, wide_kv = 2 * part.of(kv_heads), 2 * part.of(kv_heads, part.wide)
    worked_with = max(3 * scores, 2 * scores + 2 * wide_kv + part.wide_q, 2 * part.q)
    given, saved = part.head + 2 * part.q + part.kv, part.q + part.output + saved_kv
    row_sums, copies = part.wide_q // shape.dim, 0 if part.wide == part.item else 2 * part.wide_q + wide_kv
    masks = (2 + shape.heads // kv_heads) * shape.length**2 * shape.causal
    return {"activations": saved, PEAK: given + saved + 2 * part.q + row_sums + copies + masks + worked_with}


FORMS: dict[str, tuple[Callable[[Part], Both], Callable[[Part], Weighed]]] = {
    "all_gather_kv": (all_gather_kv, all_gather_kv_held),
    "ring": (ring, ring_held),
    "zigzag": (ring, ring_held),
    "ulysses": (ulysses, ulysses_held),
    "torch_ring": (torch_ring, torch_ring_held),
}
_FUSED = {"torch_ring": {"bf16": TRAINED_BYTES}}  # the dtypes in which its kernel is fused at every size


def _parts(name: str, asked: Mapping[str, Any], ranks: int) -> dict[str, Part]:
    """A rank's part in each dtype that a planned case runs in."""
    shape = shape_of(
        ranks, **{key: value for key, value in asked.items() if key not in ("at_size", "module")}
    )
    large = bool(asked.get("at_size"))
    items = {"": TRAINED_BYTES} if large else _FUSED.get(name, STUDIED_BYTES)
    return {dtype: Part(shape, ranks, item, large or name in _FUSED) for dtype, item in items.items()}


def issued(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> Lines:
    """Give what every rank of a planned case issues, from the ranks per node."""
    name = step.partition(".")[2]
    return {
        (phase, dtype): calls
        for dtype, part in _parts(name, asked, sum(per_node)).items()
        for phase, calls in zip((FORWARD, BACKWARD), FORMS[name][0](part), strict=True)
    }


def bytes_held(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> Held:
    """Give what every rank of a planned case holds, from the ranks per node."""
    name = step.partition(".")[2]
    return {("", dtype): FORMS[name][1](part) for dtype, part in _parts(name, asked, sum(per_node)).items()}
