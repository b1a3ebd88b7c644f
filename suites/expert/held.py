"""What each step of expert parallelism holds, and its peak, from its parameters, ranks and rows.

Torch draws on the ranks which rows come to a rank (see `suites.expert.issued`). So a rank computes here its
peak for its own rows, and the controller the most that all ranks may have together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fixtures.wire.collectives import STUDIED_BYTES, TRAINED_BYTES
from fixtures.wire.held import PEAK, Bytes, Held
from suites.expert.issued import (
    FOLLOWED,
    TAGS,
    WORD_BYTES,
    WORDS,
    Run,
    fp8_bytes,
    kept,
    router_bytes,
    sizes_in,
    timed,
)

# what a rank may have


def round_trip(words: int, went: int, came: int) -> int:
    """The peak, when rows go back: received rows in two orders, sent and returned ones, and the orders.

    On a rank that sent nothing it is when the order of the received rows is inverted.
    """
    width = TAGS + words
    return WORD_BYTES * ((2 * came + went) * width + max(went * width, came) + went + came)


def there_and_back(hidden: int, rows: int, item: int) -> int:
    """Copies of the rows that arrived, and of those that came back or their sums; buffers existed before."""
    return rows * hidden * item


@dataclass(frozen=True)
class Layer:
    """A rank's part of a layer, in numbers of `item` bytes."""

    experts: int
    ranks: int
    hidden: int
    inner: int
    top_k: int
    item: int

    @property
    def router(self) -> int:
        """Bytes of the router's weights, and of their gradient."""
        return router_bytes(self.experts, self.hidden, self.item)

    @property
    def weights(self) -> int:
        """Bytes of E/n experts of 3 matrices (hidden x inner)."""
        return self.experts // self.ranks * 3 * self.hidden * self.inner * self.item

    @property
    def states(self) -> dict[str, int]:
        """Bytes of a router, its experts, and their gradients."""
        return dict.fromkeys(("params", "grads"), self.router + self.weights)

    def most(self, tokens: int, went: int, came: int, busiest: int) -> int:
        """The peak: this rank's part of the model, the output, and what forward or backward needs.

        Of T tokens k T rows are sent and R arrive, of d features each. Forward has the arrived rows and the
        experts' results, both in two orders, or at its end the sent rows in two orders, weighted and not;
        and 4 numbers per row and hidden feature of its expert (those that SwiGLU saves). Backward has all
        gradients of the experts, three times the arrived or the sent rows (gathered, zeros, written back),
        and the numbers of one expert; or, at its end, the gradients of the router and of its tokens, which
        are fp64 here, and copies where the others are not.
        """
        row, inner = self.hidden * self.item, 4 * self.inner * self.item
        forward = max(went + 4 * came, 4 * went + 3 * came) * row + came * (inner + WORD_BYTES)
        backward = self.weights + 3 * max(went, came) * row + min(busiest, came) * inner
        routed = WORD_BYTES * (2 * tokens * self.experts + went + came)
        wide = WORD_BYTES * self.hidden * (tokens + self.experts)
        last = self.weights + 2 * tokens * row + wide
        copies = wide + tokens * row if self.item < WORD_BYTES else 0
        held = self.router + self.weights + tokens * row + routed + copies
        return held + max(forward, backward, last)

    def capped_most(self, tokens: int, dropped: int, moving: int) -> int:
        """The peak without a capacity, with all k T rows returned, the dropped ones as zeros.

        The loss keeps T x E shares, of 8 bytes each. While rows are chosen there are only the model,
        3 k T x E numbers (experts of rows, their sums, and places), and the logits in at most 5 forms.
        """
        shares = WORD_BYTES * tokens * self.experts
        choosing = self.router + self.weights + (3 * self.top_k + 5) * shares
        return max(choosing, moving + 4 * dropped * self.hidden * self.item + shares)


# what all ranks may have together


def _of_all(tokens: Sequence[int], slots: int, form: Callable[[int, int, int], int]) -> int:
    """The largest sum of `form(tokens, went, came)`; it is convex in `came`, so one rank gets all rows."""
    rows, groups = slots * sum(tokens), {count: tokens.count(count) for count in tokens}
    idle = {count: form(count, slots * count, 0) for count in groups}
    more = max(form(count, slots * count, rows) - idle[count] for count in groups)
    return sum(idle[count] * number for count, number in groups.items()) + more


def _tokens(run: Run) -> Held:
    words, slots = run.asked["words"], run.asked["top_k"]
    most = _of_all(run.tokens, slots, lambda _, went, came: round_trip(words, went, came))
    return {("", WORDS): {PEAK: (0, most)}}


def _layers(run: Run, form: Callable[[Layer], int]) -> Held:
    """A layer's states in each dtype, and the peak of all ranks together."""
    items = {"": TRAINED_BYTES} if run.asked.get("at_size") else STUDIED_BYTES
    made = {dtype: _layer(run, item) for dtype, item in items.items()}
    return {("", dtype): {**one.states, PEAK: (0, form(one))} for dtype, one in made.items()}


def _layer(run: Run, item: int) -> Layer:
    hidden, inner, top_k = (run.asked[name] for name in ("hidden", "inner", "top_k"))
    return Layer(run.experts, run.ranks, hidden, inner, top_k, item)


def _moving(run: Run) -> Callable[[Layer], int]:
    """The peak, where at most the busiest expert gets all rows."""
    return lambda one: _of_all(
        run.tokens, one.top_k, lambda tokens, went, came: one.most(tokens, went, came, came)
    )


def _capped(run: Run) -> Held:
    """An upper bound: all rows are sent, and as many are dropped as can be."""

    def form(one: Layer) -> int:
        def most(tokens: int, went: int, came: int) -> int:
            dropped = went - kept(run, tokens)
            return one.capped_most(tokens, dropped, one.most(tokens, went, came, came))

        return _of_all(run.tokens, one.top_k, most)

    return _layers(run, form)


def _throughput(run: Run, ranks: int) -> dict[str, Bytes]:
    """Rows that arrive in fp8 exist together with their values."""
    hidden, rows = run.asked["sizes"][run.kind][1], timed(run, ranks)
    beside = rows * fp8_bytes(hidden) if run.asked.get("fp8") else 0
    return {PEAK: (0, beside + there_and_back(hidden, 2 * rows, TRAINED_BYTES))}


def _groups(run: Run) -> Held:
    found: dict[tuple[str, str], dict[str, Bytes]] = {}
    slots, words = run.asked["sizes"][run.kind][2], FOLLOWED["words"]
    for size in sizes_in(run.ranks, run.asked["group_sizes"][run.kind]):
        inside = [FOLLOWED["tokens"]] * size
        most = _of_all(inside, slots, lambda _, went, came: round_trip(words, went, came))
        found[f"EP {size}", WORDS] = {PEAK: (0, run.ranks // size * most)}
        found[f"EP {size}", "bf16"] = _throughput(run, size)
    return found


_STEPS: dict[str, Callable[[Run], Held]] = {
    "dispatch_combine": _tokens,
    "parity": lambda run: _layers(run, _moving(run)),
    "capacity": _capped,
    "throughput": lambda run: {("", "bf16"): _throughput(run, run.ranks)},
    "groups": _groups,
    "deepep": lambda run: {("", "bf16"): _layer(run, TRAINED_BYTES).states},
}


def bytes_held(step: str, asked: Mapping[str, Any], per_node: Sequence[int], on_gpu: bool) -> Held:
    """Give what every rank of a planned case holds, and the most that all ranks may have together.

    Other steps are only asked what they leave behind.
    """
    form = _STEPS.get(step.partition(".")[2])
    return form(Run(asked, per_node, "cuda" if on_gpu else "cpu", most=True)) if form else {}
