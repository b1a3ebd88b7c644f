"""What a mixture of experts on a mesh issues: a rank's place, its groups, and what they exchange.

Both the controller and the ranks compute here what they expect.

With P stages, D data shards, C parts of a sequence and T shares of the attention, tensor is innermost:

    rank = ((stage * D + data) * C + context) * T + tensor

Experts fold the D C T ranks of a stage a second way: `expert` consecutive ranks together have all experts,
and there are D C T / expert such sets (Liu et al.: "MoE Parallel Folding", arXiv:2504.14960, section 3; the
order is that of Megatron-Core's parallel_state, tp-cp-ep-dp-pp). The lines along which ranks form groups:

    pp       the ranks of all stages with the same data, context and tensor
    tp, cp   the shares of one attention; the parts of one sequence
    dp_cp    all that have the same dense weights of a stage: data and context together
    ep       a set of experts
    edp      all that have the same experts

Per block and micro-batch of B sequences, with L positions, d channels, E experts, k of them for a token, G
key-value heads of h channels, all in numbers of `item` bytes; a rank has t = L / (C T) positions between the
attentions, B t k rows to dispatch, and R rows come to its experts:

    tp      all_gather       3 B t T d   the sequence for q, k, v, again for their weights' gradients, and the
                                         gradient of o (Korthikanti et al., arXiv:2205.05198, section 4.2.2)
            reduce_scatter   2 B t T d   of o's summands, and of the gradients of q, k, v
    cp      all_gather       2 B G/T L h keys and values
            reduce_scatter   2 B G/T L h their gradients
    ep      all_to_all       8 E bytes of counts; rows there, back, and their gradients: 2 d (B t k + R)

and once in a step, where gradients of bf16 are added up in fp32,

    pp      send, recv       m B t d to each neighbour and from it
    tp      all_reduce       what is whole on all ranks of the line: norms, router, embedding, head
    dp_cp   all_reduce       all dense weights
    edp     all_reduce       all experts of the rank

Where weights or the optimizer are sharded, the last two are other collectives: `moe.sharded`, `moe.zero`.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import accumulate, chain
from random import Random
from typing import Any

from fixtures.wire.collectives import Calls
from suites.mesh.layout import Layout
from suites.zero.issued import WIDE

LINES = ("pp", "tp", "cp", "dp_cp", "ep", "edp")
VOCABULARY, LAYERS = 32, 2
_COUNT_BYTES = 8
_ZIPF = 1.5  # exponent of the routing: expert e is wanted like 1 / (1 + e)^1.5
TURNS = 2  # of preferences: a step has others than the one before
# Along which line each bucket of masters is sharded.
LINE = {"dense": "dp_cp", "router": "dp_cp", "experts": "edp"}
Shapes = list[tuple[int, int]]  # rows and columns


@dataclass(frozen=True)
class Axes:
    """How many ranks there are along each axis; `expert` folds the ranks of a stage."""

    stages: int
    data: int
    context: int
    tensor: int
    expert: int

    @property
    def stage_ranks(self) -> int:
        """Ranks of one stage."""
        return self.data * self.context * self.tensor

    def coordinates(self, rank: int) -> tuple[int, int, int, int]:
        """Give stage, data, context and tensor of a rank."""
        stage, data, context, tensor = self._dense.places(rank)
        return stage, data, context, tensor

    def size(self, line: str) -> int:
        """Ranks of each group of a line."""
        return self._along(line).size(*line.split("_"))

    def members(self, line: str) -> list[list[int]]:
        """Give all groups of a line, each in the order of its axis."""
        return self._along(line).groups(*line.split("_"))

    @cached_property
    def _dense(self) -> Layout:
        return Layout(("pp", "dp", "cp", "tp"), (self.stages, self.data, self.context, self.tensor))

    def _along(self, line: str) -> Layout:
        if line not in ("ep", "edp"):
            return self._dense
        return Layout(("pp", "edp", "ep"), (self.stages, self.stage_ranks // self.expert, self.expert))


def combined(ranks: int) -> Axes:
    """Divide ranks among all five axes.

    A factor of 2 goes to stages, then to tensor, then to context; what is left is data. Experts are folded
    over context and tensor, or over data where both are 1:

        ranks    stages  data      context  tensor  expert
        2        2       1         1        1       1
        4        2       1         1        2       2
        8        2       1         2        2       4
        16       2       2         2        2       4
        8 x n    2       n         2        2       4
    """
    stages, left = _halved(ranks)
    tensor, left = _halved(left)
    context, data = _halved(left)
    return Axes(stages, data, context, tensor, tensor * context if tensor > 1 else data)


def replicated(ranks: int, stages: int = 1) -> Axes:
    """Divide a stage's ranks into two sets that each have all experts; one set if ranks are few or odd."""
    data = ranks // stages
    sets = 2 if data >= 4 and data % 2 == 0 else 1
    return Axes(stages, data, 1, 1, data // sets)


def _halved(ranks: int) -> tuple[int, int]:
    return (2, ranks // 2) if ranks % 2 == 0 else (1, ranks)


@dataclass(frozen=True)
class Dims:
    """The sizes of a model and of its batch."""

    width: int
    heads: int
    kv_heads: int
    inner: int
    experts_per_rank: int
    top_k: int
    length: int
    rows: int
    micro_batches: int
    steps: int


@dataclass(frozen=True)
class Sizes:
    """A model and its batch on a rank."""

    rank: int
    axes: Axes
    dims: Dims

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Stage, data, context and tensor."""
        return self.axes.coordinates(self.rank)

    @property
    def experts(self) -> int:
        """Experts of a block."""
        return self.dims.experts_per_rank * self.axes.expert

    @property
    def tokens(self) -> int:
        """Positions of a sequence that one rank has between the attentions."""
        return self.dims.length // self.axes.context // self.axes.tensor

    @property
    def blocks(self) -> int:
        """Blocks of a stage."""
        return LAYERS // self.axes.stages

    def blocks_of(self, stage: int) -> range:
        """The blocks of a stage, counted in the model."""
        return range(stage * self.blocks, (stage + 1) * self.blocks)

    def rows_of(self, rank: int, micro_batch: int) -> range:
        """A rank's rows of the whole batch in a micro-batch."""
        _, data, _, _ = self.axes.coordinates(rank)
        first = (data * self.dims.micro_batches + micro_batch) * self.dims.rows
        return range(first, first + self.dims.rows)

    @property
    def times(self) -> list[tuple[int, int]]:
        """Every block of the rank's stage with every micro-batch."""
        return [(n, i) for n in self.blocks_of(self.place[0]) for i in range(self.dims.micro_batches)]

    def chosen(self, layer: int, row: int, step: int) -> list[list[int]]:
        """The experts of every token of a row of the whole batch in a block and a step, best first."""
        number = (row * LAYERS + layer) * TURNS + step % TURNS
        return _drawn(number, self.dims.length, self.experts, self.dims.top_k)

    def loads(self, layer: int, micro_batch: int) -> list[int]:
        """Rows that come to each rank of this rank's set of experts in the last step, which is counted."""
        first = Sizes(self.rank - self.rank % self.axes.expert, self.axes, self.dims)
        return _loads(first, layer, micro_batch)


@lru_cache(maxsize=1 << 12)
def _loads(first: Sizes, layer: int, micro_batch: int) -> list[int]:
    """Loads of the set that begins with `first`, whose ranks together have all tokens of their rows."""
    axes, found = first.axes, [0] * first.axes.expert
    for rank in range(first.rank, first.rank + axes.expert, axes.context * axes.tensor):
        for row in first.rows_of(rank, micro_batch):
            for expert in chain.from_iterable(first.chosen(layer, row, first.dims.steps - 1)):
                found[expert // first.dims.experts_per_rank] += 1
    return found


@lru_cache(maxsize=1 << 13)
def _drawn(seed: int, tokens: int, experts: int, slots: int) -> list[list[int]]:
    """Draw `slots` different experts for each token, one after another, by their shares.

    Without torch, so that the controller draws the same as every rank.
    """
    random = Random(seed)  # noqa: S311 - who is sent where is no secret
    borders, found = list(accumulate((1 + one) ** -_ZIPF for one in range(experts))), []
    for _ in range(tokens):
        taken: dict[int, None] = {}
        while len(taken) < slots:
            taken[bisect(borders, random.random() * borders[-1], hi=experts - 1)] = None
        found.append(list(taken))
    return found


def plain(sizes: Sizes, item: int) -> dict[str, Calls]:
    """What is issued along every line where all ranks of a line have the same weights."""
    summed, dims = max(item, WIDE), sizes.dims
    shared, split, experts = elements(sizes)
    times = dims.micro_batches * sizes.blocks
    activation = dims.rows * sizes.tokens * dims.width * item
    whole = times * activation * sizes.axes.tensor
    kept = times * _kept_elements(sizes) * item
    sends = _edges(sizes) * dims.micro_batches
    return {
        "pp": dict.fromkeys(("send", "recv"), (sends, sends * activation)),
        "tp": {
            "all_gather": (3 * times, 3 * whole),
            "reduce_scatter": (2 * times, 2 * whole),
            "all_reduce": (1, shared * summed),
        },
        "cp": dict.fromkeys(("all_gather", "reduce_scatter"), (times, kept)),
        "ep": {"all_to_all": (5 * times, _dispatched_bytes(sizes, item))},
        "dp_cp": {"all_reduce": (1, (shared + split) * summed)},
        "edp": {"all_reduce": (1, experts * summed)},
    }


def fully_sharded(sizes: Sizes, item: int) -> dict[str, Calls]:
    """As `plain` along ep; all_gather and reduce_scatter where weights are sharded."""
    return {**plain(sizes, item), **{line: _gathered(sizes, line, item) for line in ("dp_cp", "edp")}}


def zero1(sizes: Sizes, item: int) -> dict[str, Calls]:
    """Gradients are reduce-scattered and weights gathered among the ranks that have the same ones."""
    return {**plain(sizes, item), **{line: _bucketed(sizes, line, item) for line in LINE.values()}}


def _gathered(sizes: Sizes, line: str, item: int) -> Calls:
    times, ranks = sizes.dims.micro_batches, sizes.axes.size(line)
    held = [
        (sum(-(-rows // ranks) * ranks * columns for rows, columns in shapes), each)
        for where, shapes, each in groups(sizes, item)
        if where == line
    ]
    gathered = sum(size * each for size, each in held)
    reduced = sum(size for size, _ in held) * max(item, WIDE)
    return {
        "all_gather": (2 * times * len(held), 2 * times * gathered),
        "reduce_scatter": (times * len(held), times * reduced),
    }


def _bucketed(sizes: Sizes, line: str, item: int) -> Calls:
    held = {kind: padded(sizes, kind) for kind in LINE if LINE[kind] == line}
    items = {kind: max(item, WIDE) if kind == "router" else item for kind in held}
    return {
        "reduce_scatter": (len(held), sum(held.values()) * max(item, WIDE)),
        "all_gather": (len(held), sum(held[kind] * items[kind] for kind in held)),
    }


def padded(sizes: Sizes, kind: str) -> int:
    """Numbers in a bucket of masters."""
    shared, split, experts = elements(sizes)
    router, ranks = router_elements(sizes), sizes.axes.size(LINE[kind])
    size = {"dense": shared + split - router, "router": router, "experts": experts}[kind]
    return -(-size // ranks) * ranks


def _edges(sizes: Sizes) -> int:
    """Neighbours of a stage."""
    stage = sizes.place[0]
    return (stage > 0) + (stage < sizes.axes.stages - 1)


def _kept_elements(sizes: Sizes) -> int:
    """Keys and values of whole sequences, for this rank's heads."""
    dims = sizes.dims
    channels = dims.width // dims.heads
    return 2 * dims.rows * dims.kv_heads // sizes.axes.tensor * dims.length * channels


def _dispatched_bytes(sizes: Sizes, item: int) -> int:
    """Counts and rows of all blocks and micro-batches: its own tokens' and those for its experts."""
    dims, own = sizes.dims, sizes.rank % sizes.axes.expert
    rows = sum(dims.rows * sizes.tokens * dims.top_k + sizes.loads(*one)[own] for one in sizes.times)
    return len(sizes.times) * _COUNT_BYTES * sizes.experts + 2 * dims.width * item * rows


def elements(sizes: Sizes) -> tuple[int, int, int]:
    """Weights of a rank: whole on all ranks of its tp line, split along it, and of its experts."""
    dims, stage, axes = sizes.dims, sizes.place[0], sizes.axes
    kept = dims.kv_heads * (dims.width // dims.heads)
    shared = sizes.blocks * 2 * dims.width + router_elements(sizes)
    shared += VOCABULARY * dims.width * (stage == 0)
    shared += (dims.width + VOCABULARY * dims.width) * (stage == axes.stages - 1)
    split = sizes.blocks * 2 * dims.width * (dims.width + kept) // axes.tensor
    return shared, split, sizes.blocks * dims.experts_per_rank * 3 * dims.width * dims.inner


def router_elements(sizes: Sizes) -> int:
    """Weights of routers, among those that are whole: fp32 where the others are bf16."""
    return sizes.blocks * sizes.dims.width * sizes.experts


def groups(sizes: Sizes, item: int) -> list[tuple[str, Shapes, int]]:
    """What is gathered at once: along which line, the shapes of its weights, and bytes of a number."""
    dims = sizes.dims
    d, kept = dims.width, dims.kv_heads * (dims.width // dims.heads)
    expert = [(dims.inner, d), (dims.inner, d), (d, dims.inner)]
    block: list[tuple[str, Shapes, int]] = [
        ("edp", dims.experts_per_rank * expert, item),
        ("dp_cp", [(sizes.experts, d)], max(item, WIDE)),
        ("dp_cp", [(d, 1), (d, 1), (d, d), (kept, d), (kept, d), (d, d)], item),
    ]
    return [*sizes.blocks * block, ("dp_cp", [(VOCABULARY, d), (d, 1), (VOCABULARY, d)], item)]


Issues = Callable[[Sizes, int], dict[str, Calls]]
STEPS: dict[str, tuple[Callable[[int], Axes], Issues]] = {
    "ep_dp": (replicated, plain),
    "five_axes": (combined, plain),
    "ep_fsdp": (replicated, fully_sharded),
    "zero1_pp_ep": (partial(replicated, stages=2), zero1),
}


def lines(name: str, ranks: int, rank: int, asked: Mapping[str, Any], item: int) -> dict[str, Calls]:
    """What a rank issues in a step, along the lines with several ranks."""
    rule, issues = STEPS[name]
    sizes = Sizes(rank, rule(ranks), Dims(**asked))
    return {line: calls for line, calls in issues(sizes, item).items() if sizes.axes.size(line) > 1}
