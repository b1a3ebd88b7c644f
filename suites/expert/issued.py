"""What each step of expert parallelism issues: calls and bytes, from its parameters, its ranks and its rows.

Torch draws on the ranks which rows a rank gets. The total does not depend on that: T tokens with k experts
each are k T rows, and every row that a rank receives another has sent. So a rank computes here what it
issues for its own rows, and the controller what all ranks issue together. Where that depends on the rows that
are dropped, or on how many ranks or nodes a token's experts are on, the controller knows only the least and
the most. Sources are in `suites.expert.steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES, Calls, Lines

WORD_BYTES = 8
TAGS = 2  # the first words of a token: the rank it comes from, and its index there
WORDS = "int64"
WIDE = 4  # bytes of fp32: no number of a router has fewer
BLOCK = 128  # numbers of a row in fp8 that share a scale
ACROSS, OTHERS = "rows", "other nodes"  # the line that counts what is sent between nodes
FOLLOWED = {"tokens": 32, "words": 8}  # of the round trip in parts of the world

# what a rank issues


def round_trip(experts: int, words: int, rows: int) -> Calls:
    """E counts; k T_r rows there and R_r back; 2 counts of rows."""
    size = WORD_BYTES * (experts + (TAGS + words) * rows)
    return {"all_to_all": (3, size), "all_reduce": (1, 2 * WORD_BYTES)}


def router_bytes(experts: int, hidden: int, item: int) -> int:
    """Hidden x E numbers."""
    return hidden * experts * max(item, WIDE)


def fp8_bytes(hidden: int) -> int:
    """Bytes of a row in fp8: its numbers, and a scale in fp32 for each block."""
    return hidden + hidden // BLOCK * WIDE


def layer(experts: int, hidden: int, item: int, rows: int, fp8_rows: int = 0) -> Calls:
    """E counts; rows there (in fp8 or not) and back, and their gradients; the router's gradient."""
    exchanged = 5, WORD_BYTES * experts + 2 * (rows * hidden * item + fp8_rows * fp8_bytes(hidden))
    return {"all_to_all": exchanged, **engine(experts, hidden, item)}


def engine(experts: int, hidden: int, item: int) -> Calls:
    """The router's gradient; torch cannot count what the engine's kernels send."""
    return {"all_reduce": (1, router_bytes(experts, hidden, item))}


def capped(experts: int, hidden: int, item: int, rows: int) -> Calls:
    """As without a capacity, for the rows that are kept; also E + 1 loads, E drops and the loss among all."""
    summed = 4, router_bytes(experts, hidden, item) + WORD_BYTES * (2 * experts + 2)
    return {**layer(experts, hidden, item, rows), "all_reduce": summed}


def two_hops(headers: int, words: int, top_k: int, first: int, others: int) -> Calls:
    """Counts for n ranks and E experts, rows of hop 1 with their experts, and all others without."""
    rows = (TAGS + words + top_k) * first + (TAGS + words) * others
    return {"all_to_all": (6, WORD_BYTES * (headers + rows))}


def across(words: int, top_k: int, rows: int) -> Calls:
    """What hop 1 brought from other nodes."""
    return {ACROSS: (rows, WORD_BYTES * (TAGS + words + top_k) * rows)}


def there_and_back(hidden: int, rows: int, fp8_rows: int = 0) -> Calls:
    """Rows that are dispatched, in bf16 or fp8, and rows that are combined, in bf16."""
    return {"all_to_all": (2, rows * hidden * TRAINED_BYTES + fp8_rows * fp8_bytes(hidden))}


def apart(layers: int, headers: tuple[int, int], messages: int, rows_bytes: int) -> list[tuple[int, int]]:
    """Headers and rows from attention to experts, and rows back, of every layer; headers: count and words."""
    back = layers * messages, layers * rows_bytes
    count, words = headers
    return [(back[0] + layers * count, back[1] + layers * WORD_BYTES * words), back]


def edges(peers: int, size: int, sends: bool) -> Calls:
    """One message for every peer, and one all_to_all, into which an expert rank puts nothing."""
    pairs = peers, peers * size
    return {"send": pairs, "all_to_all": (1, pairs[1])} if sends else {"recv": pairs, "all_to_all": (1, 0)}


# who takes part


def tokens_on(kind: str, rank: int, tokens: int) -> int:
    """How many tokens a rank has: with `zero_tokens` every second rank has none."""
    return 0 if kind == "zero_tokens" and rank % 2 else tokens


def capacity_of(factor: float, tokens: int, slots: int, experts: int) -> int:
    """How many of a rank's rows an expert takes."""
    return math.ceil(factor * slots * tokens / experts)


def stand_ins(ranks: int, most: int) -> int:
    """Equal groups of one node's ranks in place of nodes: as many as divide the ranks, and at most `most`."""
    return max(n for n in range(1, most + 1) if ranks % n == 0)


def sizes_in(world: int, asked: Sequence[int]) -> list[int]:
    """Those of the requested sizes that divide a larger world; if none does, the world is the only group."""
    return [size for size in asked if size < world and world % size == 0] or [world]


def attention_ranks(ranks: int, share: Sequence[int]) -> int:
    """How many ranks have attention, if they are divided by `share`: at least one, but not all."""
    attention, experts = share
    if min(share) < 1:
        raise ValueError(f"attention and experts cannot share ranks {attention} to {experts}")
    return min(max(ranks * attention // (attention + experts), 1), ranks - 1)


# what all ranks issue together


def _all(*parts: tuple[int, Calls]) -> Calls:
    """Add up what the ranks of all parts issue."""
    found: Calls = {}
    for ranks, calls in parts:
        for op, (count, size) in calls.items():
            before, bytes_before = found.get(op, (0, 0))
            found[op] = before + ranks * count, bytes_before + ranks * size
    return found


def _with_rows(ranks: int, form: Callable[..., Calls], *rows: int) -> Calls:
    """Give what all ranks issue that have `rows` together: every form is linear in them."""
    return _all((ranks - 1, form(*(0 for _ in rows))), (1, form(*rows)))


@dataclass(frozen=True)
class Run:
    """A requested step. Where torch draws, it has the upper bound (`most`) or the lower one."""

    asked: Mapping[str, Any]
    per_node: Sequence[int]
    kind: str  # of device
    most: bool

    @property
    def ranks(self) -> int:
        """Ranks of the world."""
        return sum(self.per_node)

    @property
    def experts(self) -> int:
        """Experts of all ranks."""
        return int(self.asked["experts_per_rank"]) * self.ranks

    @property
    def tokens(self) -> list[int]:
        """Tokens of every rank."""
        kind, each = self.asked.get("routing", ""), int(self.asked["tokens_per_rank"])
        return [tokens_on(kind, rank, each) for rank in range(self.ranks)]

    @property
    def rows(self) -> int:
        """Rows of all tokens."""
        return int(self.asked["top_k"]) * sum(self.tokens)

    def drawn(self, least: int, most: int) -> int:
        """The bound that this run has."""
        return most if self.most else least

    def visited(self, top_k: int, ranks: int) -> int:
        """On how many of `ranks` a token's experts are."""
        return self.drawn(-(-top_k // int(self.asked["experts_per_rank"])), min(top_k, ranks))

    def both_ways(self, form: Callable[..., Calls], rows: int) -> Calls:
        """What all ranks issue in this form for rows that go there (in fp8 if requested) and back."""
        parts = (rows, rows) if self.asked.get("fp8") else (2 * rows,)
        return _with_rows(self.ranks, form, *parts)

    def layers(self, form: Callable[..., Calls], rows: int) -> Lines:
        """A layer whose rows go there and back, in each dtype."""
        items = {"": TRAINED_BYTES} if self.asked.get("at_size") else STUDIED_BYTES
        whole = partial(form, self.experts, self.asked["hidden"])
        return {("", dtype): self.both_ways(partial(whole, item), rows) for dtype, item in items.items()}


def _tokens(run: Run) -> Lines:
    form = partial(round_trip, run.experts, run.asked["words"])
    return {("", WORDS): _with_rows(run.ranks, form, 2 * run.rows)}


def _capped(run: Run) -> Lines:
    """The fewest rows are kept where k experts get all of a rank's tokens; at most all rows are kept.

    Where half of the rows are dropped, twice the bytes are within these bounds; twice the calls never are.
    """
    return run.layers(capped, run.drawn(sum(kept(run, tokens) for tokens in run.tokens), run.rows))


def kept(run: Run, tokens: int) -> int:
    """The fewest rows of some tokens that are kept: all of them if the routing is balanced."""
    slots, factor = int(run.asked["top_k"]), float(run.asked["factor"])
    capacity = capacity_of(factor, int(run.asked["tokens_per_rank"]), slots, run.experts)
    even = run.asked["routing"] == "balanced" and factor >= 1
    return slots * (tokens if even else min(tokens, capacity))


def _limited(run: Run) -> Lines:
    """A token goes to each of its nodes once (one may be its own) and comes back; so do its k rows."""
    words, top_k, tokens = int(run.asked["words"]), int(run.asked["top_k"]), sum(run.tokens)
    count = len(run.per_node) if len(run.per_node) > 1 else stand_ins(run.ranks, int(run.asked["groups"]))
    least, most = -(-top_k * count // run.experts), min(int(run.asked["most_nodes"]), count, top_k)
    first = tokens * run.drawn(least, most)
    hops = partial(two_hops, run.ranks + run.experts, words, top_k)
    issued = _all((run.ranks - 1, hops(0, 0)), (1, hops(first, first + 2 * run.rows)))
    others = tokens * run.drawn(least - 1, min(most, count - 1))
    return {("", WORDS): issued, (OTHERS, ""): across(words, top_k, others)}


def _timed(run: Run, ranks: int) -> Calls:
    """In groups of `ranks`: a token has a row for every rank that has some of its experts."""
    hidden = run.asked["sizes"][run.kind][1]
    return run.both_ways(partial(there_and_back, hidden), timed(run, ranks))


def timed(run: Run, ranks: int) -> int:
    """Rows that all ranks dispatch in groups of `ranks`."""
    count, _, top_k = run.asked["sizes"][run.kind]
    return int(count) * run.ranks * run.visited(top_k, ranks)


def _groups(run: Run) -> Lines:
    found: Lines = {}
    top_k = run.asked["sizes"][run.kind][2]
    for size in sizes_in(run.ranks, run.asked["group_sizes"][run.kind]):
        form = partial(round_trip, run.asked["experts_per_rank"] * size, FOLLOWED["words"])
        rows = 2 * top_k * FOLLOWED["tokens"] * run.ranks
        found[f"EP {size}", WORDS] = _with_rows(run.ranks, form, rows)
        found[f"EP {size}", "bf16"] = _timed(run, size)
    return found


def _apart(run: Run) -> Lines:
    """A message for each expert rank that a micro-batch's tokens need; every send has its receive."""
    asked, attention = run.asked, attention_ranks(run.ranks, run.asked.get("share", (1, 1)))
    local, batches = asked["experts_per_rank"], attention * asked["micro_batches"]
    experts, rows = run.ranks - attention, asked["top_k"] * asked["tokens_per_batch"]
    messages = batches * run.drawn(-(-asked["top_k"] // local), min(experts, rows))
    found: Lines = {}
    for dtype, item in {**STUDIED_BYTES, "fp32": WIDE}.items():
        headers = batches * experts, batches * experts * local
        ways = apart(asked["layers"], headers, messages, batches * rows * asked["hidden"] * item)
        count, size = (sum(both) for both in zip(*ways, strict=True))
        found["", dtype] = {"send": (count, size), "recv": (count, size)}
    return found


def _edges(run: Run) -> Lines:
    attention = attention_ranks(run.ranks, run.asked.get("share", (1, 1)))
    experts = run.ranks - attention
    return {
        (f"{size} bytes", WORDS): _all(
            (attention, edges(experts, size, sends=True)), (experts, edges(attention, size, sends=False))
        )
        for size in run.asked["sizes"][run.kind]
    }


_STEPS: dict[str, Callable[[Run], Lines]] = {
    "dispatch_combine": _tokens,
    "parity": lambda run: run.layers(layer, run.rows),
    "capacity": _capped,
    "group_limited": _limited,
    "throughput": lambda run: {("", "bf16"): _timed(run, run.ranks)},
    "groups": _groups,
    "deepep": lambda run: {
        ("", "bf16"): _all((run.ranks, engine(run.experts, run.asked["hidden"], TRAINED_BYTES)))
    },
    "m2n": _apart,
    "m2n_speed": _edges,
}


def together(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool, most: bool) -> Lines:
    """Give the most or the least that all ranks of a planned case issue, from the ranks per node."""
    return _STEPS[step.partition(".")[2]](Run(asked, per_node, "cuda" if on_gpu else "cpu", most))
