"""What each step of context parallelism issues, forward and backward, and holds, from its parameters.

Both the controller and the ranks compute here what they expect. Sources are in `suites.context.steps`.
B is the bytes of one rank's K and V. "Wide" are numbers of at least 4 bytes, in which sums are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines
from fixtures.wire.held import PEAK, Held, Weighed

FORWARD, BACKWARD = "cp forward", "cp backward"
WIDE = 4  # bytes of fp32: the least of a number in a sum
GATHERED = "allgather"  # torch's name for one way to pass on K and V; the other is "alltoall"
SAVED = f"{PEAK} of what is saved"
_COUNTERS_BYTES = 64  # of the random state, which a GPU's kernel saves for backward even without dropout

Both = tuple[Calls, Calls]  # forward and backward


def all_gather_kv(ranks: int, kv: int, wide_kv: int) -> Both:
    """All ranks' K and V; backward the gradients of all ranks' K and V, wide."""
    return {"all_gather": (1, ranks * kv)}, {"reduce_scatter": (1, ranks * wide_kv)}


def ring(ranks: int, kv: int, wide_kv: int) -> Both:
    """w-1 rounds of K and V; backward w-1 rounds of K and V, and w of their gradients, wide."""
    there = (ranks - 1, (ranks - 1) * kv)
    back = (2 * ranks - 1, there[1] + ranks * wide_kv)
    return {"send": there, "recv": there}, {"send": back, "recv": back}


def torch_ring(rotation: str, ranks: int, kv: int, wide_kv: int) -> Both:
    """All K and V gathered, or w-1 rounds of them; backward the same, and w rounds of their gradients, wide.

    A round is an all_to_all in which a rank sends only to the next one.
    """
    rounds = 0 if rotation == GATHERED else ranks - 1
    there = {"all_to_all": (rounds, rounds * kv)} if rounds else {"all_gather": (1, ranks * kv)}
    return there, {**there, "all_to_all": (rounds + ranks, rounds * kv + ranks * wide_kv)}


def ulysses(heads: int, kv_heads: int, head: int) -> Both:
    """Q, K, V and the output; backward their gradients. A head has `head` bytes."""
    four = {"all_to_all": (4, (2 * heads + 2 * kv_heads) * head)}
    return four, four


def repeats(kv_heads: int, ranks: int) -> int:
    """How often key heads are repeated so that every rank has one."""
    return max(ranks // kv_heads, 1)


def _by_rank(form: Callable[[int, int, int], Both]) -> Callable[[int, int, Mapping[str, Any]], Both]:
    def calls(ranks: int, item: int, asked: Mapping[str, Any]) -> Both:
        numbers = 2 * asked["batch"] * asked["kv_heads"] * asked["tokens"] * asked["dim"]
        return form(ranks, numbers * item, numbers * max(item, WIDE))

    return calls


def _by_head(ranks: int, item: int, asked: Mapping[str, Any]) -> Both:
    kv_heads = asked["kv_heads"] or ranks
    head = asked["batch"] * asked["tokens"] * asked["dim"] * item
    return ulysses(asked["heads_per_rank"] * ranks, kv_heads * repeats(kv_heads, ranks), head)


def _by_torch(ranks: int, item: int, asked: Mapping[str, Any]) -> Both:
    return _by_rank(partial(torch_ring, asked["rotation"]))(ranks, item, asked)


_STEPS: dict[str, Callable[[int, int, Mapping[str, Any]], Both]] = {
    "all_gather_kv": _by_rank(all_gather_kv),
    "ring": _by_rank(ring),
    "zigzag": _by_rank(ring),
    "ulysses": _by_head,
    "torch_ring": _by_torch,
}
_FUSED = {"torch_ring": {"bf16": TRAINED_BYTES}}  # the dtypes in which its kernel is fused at every size


def issued(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> Lines:
    """Give what every rank of a planned case issues, from the ranks per node."""
    name = step.partition(".")[2]
    form, studied = _STEPS[name], _FUSED.get(name, STUDIED_BYTES)
    items = {"": TRAINED_BYTES} if asked.get("at_size") else studied
    return {
        (phase, dtype): calls
        for dtype, item in items.items()
        for phase, calls in zip((FORWARD, BACKWARD), form(sum(per_node), item, asked), strict=True)
    }


# what a rank holds


@dataclass(frozen=True)
class Shape:
    """The sizes of an attention; equal groups of query heads share a key head."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    dim: int
    causal: bool

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


def ring_shape(ranks: int, *, tokens: int, causal: int = True, **sizes: int) -> Shape:
    """The shape from positions per rank; a zig-zag is always causal."""
    return Shape(length=tokens * ranks, causal=bool(causal), **sizes)


def heads_shape(ranks: int, *, heads_per_rank: int, kv_heads: int, **sizes: int) -> Shape:
    """The shape from positions and heads per rank; 0 key heads stand for one per rank."""
    return ring_shape(ranks, heads=heads_per_rank * ranks, kv_heads=kv_heads or ranks, **sizes)


def torch_shape(ranks: int, *, rotation: str, module: str = "", **sizes: int) -> Shape:
    """The shape, whatever the rotation."""
    return ring_shape(ranks, **sizes)


_HELD: dict[str, tuple[Callable[..., Shape], Callable[[Part], Weighed]]] = {
    "all_gather_kv": (ring_shape, all_gather_kv_held),
    "ring": (ring_shape, ring_held),
    "zigzag": (ring_shape, ring_held),
    "ulysses": (heads_shape, ulysses_held),
    "torch_ring": (torch_shape, torch_ring_held),
}


def bytes_held(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> Held:
    """Give what every rank of a planned case holds, from the ranks per node."""
    name = step.partition(".")[2]
    shaped, form = _HELD[name]
    ranks, large = sum(per_node), bool(asked.get("at_size"))
    shape = shaped(ranks, **{key: value for key, value in asked.items() if key != "at_size"})
    fused = large or name in _FUSED
    items = {"": TRAINED_BYTES} if large else _FUSED.get(name, STUDIED_BYTES)
    return {("", dtype): form(Part(shape, ranks, item, fused)) for dtype, item in items.items()}
