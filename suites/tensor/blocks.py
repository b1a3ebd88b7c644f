"""A Llama block on ranks that each have some heads and some of the hidden features.

Ranks communicate at two places: where attention and MLP read activations, and where summands are added up.
With tensor parallelism alone the activations between are whole on every rank; with sequence parallelism each
rank has its part of the sequence. The mathematics in between is the reference's (`study.models`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from fixtures.ranks.groups import divided_into, lasting
from fixtures.ranks.study.dropout import drop, next_drawn
from fixtures.ranks.study.models import RMSNorm, attend, causal, rotary, seeded
from suites.tensor.layers import columns, rows
from suites.tensor.models import DroppingMlp, seed_of
from suites.tensor.regions import Group, copy_to, gathered_linear, reduce_from, reduce_scatter_to_sequence

Cut = Callable[[Tensor], Tensor]
SEQUENCE = 1  # the dimension of (batch, length, width) that sequence parallelism splits


@dataclass(frozen=True)
class Whole:
    """How the ranks of a block communicate: the activations are whole, with one all_reduce each way.

    `read` (f) applies column-parallel layers to the same activations, and `add` (g) gives the sum of the
    ranks' results, in the layout that `read` takes. A weight that is whole on every rank is used between
    `add` and `read`: `alone`.
    """

    group: Group

    def read(self, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        """Forward nothing, backward one all_reduce for all the layers together."""
        shared = copy_to(x, self.group)
        return tuple(functional.linear(shared, weight) for weight in weights)

    def add(self, summand: Tensor) -> Tensor:
        """Forward all_reduce, backward nothing."""
        return reduce_from(summand, self.group)

    def alone(self, weight: Tensor) -> Tensor:
        """Nothing: every rank has the same activations and computes the whole gradient."""
        return weight


@dataclass(frozen=True)
class Split:
    """Sequence parallel: each rank has a part of the sequence; all_gather and reduce_scatter instead."""

    group: Group

    def read(self, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        """Forward all_gather, backward all_gather and reduce_scatter; a part of x is kept."""
        return gathered_linear(x, SEQUENCE, self.group, *weights)

    def add(self, summand: Tensor) -> Tensor:
        """Forward reduce_scatter, backward all_gather."""
        return reduce_scatter_to_sequence(summand, SEQUENCE, self.group)

    def alone(self, weight: Tensor) -> Tensor:
        """Backward all_reduce: a rank's gradient is that of its part of the sequence."""
        return copy_to(weight, self.group)


Meeting = Whole | Split


@dataclass(frozen=True)
class KvHeads:
    """Which key-value heads a rank has.

    With at least as many heads as ranks they are split. With fewer, `shared` neighbouring ranks have the same
    head, each for its own query heads; its gradient is then the sum over them (in `group`). A head has
    `channels` rows of a weight.
    """

    channels: int
    shared: int = 1
    group: Group | None = None

    def part(self, whole: Tensor, group: Group) -> Tensor:
        """Cut the weight of the key or value projection."""
        each = whole.shape[0] * self.shared // group.size
        return whole.narrow(0, group.rank // self.shared * each, each)

    def weight(self, part: Tensor) -> Tensor:
        """A shared head's weight: backward all_reduce of its gradient among those who share it."""
        return part if self.group is None else copy_to(part, self.group)


def sharing(heads: int, kv_heads: int, ranks: int) -> int:
    """How many ranks have the same key-value head; heads that do not divide are refused."""
    faults = []
    if heads % ranks:
        faults.append(f"{heads} query heads do not divide among {ranks} ranks")
    if heads % kv_heads:
        faults.append(f"{heads} query heads do not divide among {kv_heads} key-value heads")
    if kv_heads % ranks and ranks % kv_heads:
        faults.append(f"{kv_heads} key-value heads can neither be split among {ranks} ranks nor replicated")
    if faults:
        raise ValueError(f"attention cannot be split by heads: {'; '.join(faults)}")
    return max(ranks // kv_heads, 1)


def kv_heads(ranks: int, replicate: bool) -> int:
    """As many key-value heads as ranks; or, replicated, such that the fewest ranks share one."""
    if not replicate:
        return ranks
    return ranks // next(p for p in range(2, ranks + 1) if ranks % p == 0)


@contextmanager
def shared_kv(group: Group, heads: int, kv: int, channels: int) -> Iterator[KvHeads]:
    """Give this rank's key-value heads, with a process group of the ranks that share them."""
    shared = sharing(heads, kv, group.size)
    if shared == 1:
        yield KvHeads(channels)
        return
    sets = [list(range(first, first + shared)) for first in range(0, group.size, shared)]
    mine = divided_into(sets)
    with lasting([mine]):
        yield KvHeads(channels, shared, Group(group.rank % shared, shared, mine))


def attention(meet: Meeting, kv: KvHeads, x: Tensor, *weights: Tensor) -> Tensor:
    """Attention over this rank's heads: the rows of q, k, v and the columns of o that belong to them."""
    q, k, v, o = weights
    parts = meet.read(x, q, kv.weight(k), kv.weight(v))
    queries, keys, values = (_by_head(part, kv.channels) for part in parts)
    places = torch.arange(queries.shape[2], device=queries.device)
    found = attend(rotary(queries, places), rotary(keys, places), values, causal(places, places))
    return meet.add(functional.linear(found.transpose(1, 2).flatten(2), o))


def _by_head(x: Tensor, channels: int) -> Tensor:
    return x.view(*x.shape[:-1], -1, channels).transpose(1, 2)


def mlp(meet: Meeting, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """SwiGLU over this rank's hidden features: column, column, row."""
    opened, passed = meet.read(x, gate, up)
    return meet.add(functional.linear(functional.silu(opened) * passed, down))


def dropping_mlp(meet: Whole, whole: DroppingMlp, x: Tensor, *weights: Tensor) -> Tensor:
    """SwiGLU over this rank's hidden features, some of which are dropped, as are some of the outputs."""
    gate, up, down = weights
    opened, passed = meet.read(x, gate, up)
    hidden = functional.silu(opened) * passed
    with seeded(seed_of(whole.seed, meet.group.rank), x.device):
        hidden = drop(hidden, whole.share, next_drawn(hidden))
    out = meet.add(functional.linear(hidden, down))
    with seeded(whole.seed, x.device):
        return drop(out, whole.share, next_drawn(out))


def block(meet: Meeting, kv: KvHeads, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """The reference's block: norm, attention, residual, norm, MLP, residual."""
    read = rms_norm(x, meet.alone(w["attention_norm.weight"]))
    qkvo = (w[f"attention.{name}.weight"] for name in "qkvo")
    x = x + attention(meet, kv, read, *qkvo)
    read = rms_norm(x, meet.alone(w["mlp_norm.weight"]))
    return x + mlp(meet, read, *(w[f"mlp.{name}.weight"] for name in ("gate", "up", "down")))


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """The reference's norm with a weight that is given."""
    out: Tensor = functional_call(RMSNorm(x.shape[-1]), {"weight": weight}, (x,))
    return out


def mlp_cuts(group: Group, prefix: str = "") -> dict[str, Cut]:
    """Split the hidden features."""
    split = {"gate": rows(group), "up": rows(group), "down": columns(group)}
    return {f"{prefix}{name}.weight": cut for name, cut in split.items()}


def attention_cuts(group: Group, kv: KvHeads, prefix: str = "") -> dict[str, Cut]:
    """Split the heads."""
    share: Cut = lambda whole: kv.part(whole, group)  # noqa: E731 - as the others
    split = {"q": rows(group), "k": share, "v": share, "o": columns(group)}
    return {f"{prefix}{name}.weight": cut for name, cut in split.items()}


def block_cuts(group: Group, channels: int) -> dict[str, Cut]:
    """Split heads and hidden features; the norms are whole."""
    return attention_cuts(group, KvHeads(channels), "attention.") | mlp_cuts(group, "mlp.")


def sequence_cuts(group: Group) -> dict[str, Cut]:
    """Split the sequence before and after the block."""
    part: Cut = lambda whole: group.part(whole, SEQUENCE)  # noqa: E731 - as the others
    return {"input": part, "forward": part}
