"""A hardware file as values, for all other packages, after `load` has found no fault in it.

Tables that are used as they stand in the file are checked here; the others in loading/schema.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from thresholds.loading.fields import Section, Sentence, Sizes, of_words
from thresholds.peers import Rules
from thresholds.selectors import Selector
from thresholds.units import parse_size

LimitKind = Literal["min", "max", "min_of_bound"]


@dataclass(frozen=True)
class Limit:
    """One [[limit]] row. `where` is its file and line; fewer than `min_samples` samples judge nothing.

    `loose` says why it allows a large loss of a published figure: thresholds/losses.py. `fabrics` are those
    of its source (empty: any): a file of another fabric must have its own row.
    """

    metrics: tuple[str, ...]
    selectors: Mapping[str, Selector]
    kind: LimitKind
    value: float
    source: str
    date: datetime.date
    derived: bool
    min_samples: int
    where: str
    loose: str = ""
    fabrics: Sequence[str] = ()


@dataclass(frozen=True)
class Gap:
    """One [[gap]] row: figures that nobody published, and why."""

    metrics: tuple[str, ...]
    selectors: Mapping[str, Selector]
    reason: str
    where: str


Row = Limit | Gap


@dataclass(frozen=True)
class LineRate:
    """GB/s per direction: `links` per rank (None: measured in the same run).

    With `network_is_per_node` all ranks of a node share the network figure, instead of one NIC each.
    `network_burst_bytes` pass at once when a shaped link has been idle. `switch`: inside a node each rank has
    its own port of a switch. `nvls`: that switch reduces, and so do those of the whole NVLink domain where
    `links` has mnnvl. `sharp`: the switches between nodes reduce.
    """

    inside: str
    links: Mapping[str, float | None]
    network_is_per_node: bool = False
    network_burst_bytes: int = 0
    switch: bool = False
    nvls: bool = False
    sharp: bool = False


@dataclass(frozen=True)
class Sweep:
    """Sizes in bytes: `bandwidth` is recorded, `plateau` (a part of it) and `latency` are judged.

    Judged sizes are measured `tail_iterations` times, as their tails are judged too, others `iterations`.
    """

    bandwidth: tuple[int, ...]
    plateau: tuple[int, ...]
    latency: tuple[int, ...]
    iterations: int = 20
    tail_iterations: int = 20


_Length = Annotated[int, Field(ge=1, le=1 << 20)]
_Few = Annotated[int, Field(ge=1, le=1024)]


class Layer(Section):
    """What an expert layer moves: tokens of a rank, their width, and how many experts each has."""

    tokens: _Length
    hidden: Annotated[int, Field(ge=128, le=1 << 17, multiple_of=128)]  # blocks of fp8 with a scale each
    top_k: Annotated[int, Field(ge=1, le=16)]  # two ranks of the steps have 16 experts


class Experts(Section):
    """[experts]: sizes of expert dispatch in training (`normal`) and in decoding, and bytes from M to N."""

    normal: Layer
    low_latency: Layer
    m2n: Annotated[Sizes, AfterValidator(of_words)]
    source: Sentence

    def sizes(self, name: str) -> list[int]:
        """The sizes of one entry of the table, by its name."""
        found: Layer | tuple[int, ...] = getattr(self, name)
        return [*(found.model_dump().values() if isinstance(found, Layer) else found)]


MOST_PARTS = 8  # of an unsharded batch or sequence, each as long as one rank's in a small world


class Model(Section):
    """[model]: the model with which each technique runs once. `sequence`: tokens per rank."""

    hidden: Annotated[int, Field(ge=64, le=1 << 16, multiple_of=64)]
    heads: _Few
    experts: _Few
    experts_per_token: Annotated[int, Field(ge=1, le=16)]
    sequence: _Length
    micro_batches: _Few
    layers: Annotated[int, Field(ge=1, le=64)]

    def tokens(self, ranks: int) -> int:
        """Tokens per rank in a world: `sequence`, or fewer where all have more than MOST_PARTS of it."""
        return min(self.sequence, MOST_PARTS * self.sequence // ranks)

    @model_validator(mode="after")
    def _whole(self) -> Model:
        """Heads of an even width, as rotary embeddings rotate pairs of channels; top-k within the experts."""
        faults = []
        if self.hidden % (2 * self.heads):
            faults.append(f"{self.heads} heads of an even width do not make up a hidden of {self.hidden}")
        if self.experts_per_token > self.experts:
            faults.append(f"a token cannot have {self.experts_per_token} of {self.experts} experts")
        if faults:
            raise ValueError("; ".join(faults))
        return self


class Beyond(Section):
    """[beyond]: limits for more nodes follow from the rows for `nodes`; a ring's hop takes `hop_us`."""

    nodes: Annotated[int, Field(ge=2, le=4096)]
    hop_us: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]


# For a file without [model], by backend: a layer of a 70B Llama on GPUs; on CPUs a size that takes a second.
MODELS = {
    "nccl": Model(
        hidden=8192, heads=64, experts=32, experts_per_token=4, sequence=4096, micro_batches=8, layers=2
    ),
    "gloo": Model(
        hidden=256, heads=8, experts=8, experts_per_token=2, sequence=128, micro_batches=4, layers=2
    ),
}


@dataclass(frozen=True)
class Hardware:
    """A checked hardware file. `judges` says what it judges, in a file that cannot judge everything.

    Without `auto` the file is never chosen among others, only by its name; a `part` is never chosen at all.
    `shared` says which other programs run on such machines, and what follows. `peers`: how nodes are compared
    with each other, where the file says so. `beyond`: how limits for more nodes follow from its rows.
    `judges_with` names files whose nodes may share a world with this file's nodes. `extends` are the files
    that it builds on, the nearest first; `sha256` is over it and them.
    """

    name: str
    about: str
    inside: str
    match: Mapping[str, tuple[str | int, ...]]
    line_rate: LineRate
    sweep: Sweep
    judges: str = ""
    shared: str = ""
    auto: bool = True
    part: bool = False
    judges_with: Sequence[str] = ()
    extends: tuple[Path, ...] = ()
    expect: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    gaps: tuple[Gap, ...] = ()
    experts: Experts | None = None
    model: Model | None = None
    peers: Rules | None = None
    beyond: Beyond | None = None
    path: Path | None = None
    sha256: str = ""

    @property
    def fabric(self) -> str:
        """What carries data between nodes, as [match] says; empty where it does not."""
        return str(self.match.get("fabric", ("",))[0])


def no_hardware(inside: str) -> Hardware:
    """The hardware of `--hardware none`: sizes to measure, and no limits."""
    small = inside == "memory"
    bandwidth = ("64KiB", "256KiB", "1MiB") if small else ("1MiB", "16MiB", "256MiB", "1GiB", "8GiB")
    sizes = tuple(parse_size(size) for size in bandwidth)
    return Hardware(
        name="none",
        about="no hardware file: everything is recorded, only exactness is judged",
        inside=inside,
        match={},
        line_rate=LineRate(inside, {}),
        sweep=Sweep(sizes, sizes[-1:], (parse_size("4KiB" if small else "16KiB"),)),
        judges="exactness of the data; no figure is judged, and no node can be accepted",
    )
