"""How fast the M-to-N pattern is compared with an equal all_to_all."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fixtures.ranks.groups import Among
from fixtures.ranks.steps import Context
from fixtures.ranks.study.dealt import Dealt
from fixtures.ranks.study.driver import Entries, Form, Left, Run, Seen, Technique, answer, study
from fixtures.ranks.study.pattern import Pattern, exact
from suites.expert import issued
from suites.expert.disaggregated.passes import Sides
from suites.expert.issued import WORD_BYTES
from suites.expert.speed import Watched, timed_together

_FANNED = "m_to_n"  # what the controller derives a limit for (thresholds/derived.py)


def pattern_speed(
    ctx: Context, roles: Sides, sizes: list[int], iterations: int, budget_s: float
) -> dict[str, Any]:
    """Check and time each size by both methods, which are judged together; `pattern` is the last size's.

    M-to-N by itself is judged only at that size: with small messages its time is the host's.
    """
    edges = [Edges(ctx, roles, size) for size in sizes]
    told = answer(*(study(ctx, one) for one in edges))
    found: dict[str, Any] = {**told, "figures": {}, "wrong": [], "moved": [], "samples": iterations}
    for edge, size in zip(edges, sizes, strict=True):
        took: dict[str, list[float]] = {}
        for name, way in edge.ways.items():
            calls = [partial(sent_by, way, slot) for slot in range(len(way.slots))]
            watched = Watched(*((call, call().clone()) for call in calls))
            label = f"{name} {size}"
            took[name] = timed_together(ctx, watched, label, iterations, budget_s / (2 * len(sizes)))
            median = statistics.median(took[name])
            found["samples"] = min(len(took[name]), found["samples"])
            found["figures"][f"{name}_us_{size}"] = median * 1e6
            found["figures"][f"{name}_gigabytes_per_s_{size}"] = size * len(roles.attention) / median / 1e9
            found["parity"].append(watched.entry(f"{label} bytes"))
        both = [sum(each) for each in zip(*took.values(), strict=False)]
        found["moved"].append(edge.moved(f"{size} bytes", roles, both, ways=2))
        found["wrong"] += exact(ctx, Pattern(list(edge.ways.values())), f"{size} bytes")
    found["figures"]["pattern"] = found["figures"][f"m2n_gigabytes_per_s_{size}"]
    found["moved"].append(edge.moved(f"m2n {size} bytes", roles, took["m2n"]))
    return found


class Edges(Technique[None]):
    """`size_bytes` from each attention rank to each expert rank: by isend and irecv, and by all_to_all."""

    dtypes = (torch.int64,)
    slot = 0  # of the payloads that iterations take in turn

    def __init__(self, ctx: Context, roles: Sides, size_bytes: int) -> None:
        words, everybody = size_bytes // WORD_BYTES, range(ctx.size)
        sent = [[words * (s in roles.attention and d in roles.experts) for d in everybody] for s in everybody]
        self.sends, self.variant = ctx.rank in roles.attention, f"{size_bytes} bytes"
        self.peers = len(roles.experts if self.sends else roles.attention)
        self.size_bytes, among = size_bytes, Among.of(roles.dispatch)
        self.ways = {
            "m2n": Dealt(ctx, "M-to-N", sent, among=among, pairs=True),
            "all_to_all": Dealt(ctx, "M-to-N by all_to_all", sent, among=among),
        }

    def run(self, dtype: torch.dtype, seen: Seen) -> Left[None]:
        """Send by both methods."""
        for way in self.ways.values():
            way.prepare(self.slot)
        with seen():
            found = {name: sent_by(way, self.slot).clone() for name, way in self.ways.items()}
        return Left({}, None, found)

    def other(self) -> Edges:
        """The same with the other payload."""
        other = copy(self)
        other.slot = 1
        return other

    def beside(self, dtype: torch.dtype, run: Run[None]) -> Entries:
        """Compare every word with the one that must arrive."""
        counts = {name: (way.check(self.slot) or {"count": 0})["count"] for name, way in self.ways.items()}
        return [{"what": name, "error": float(count), "tolerance": 0.0} for name, count in counts.items()]

    def forms(self, dtype: torch.dtype) -> Sequence[Form]:
        """For this rank's side."""
        return [Form(issued.edges(self.peers, self.size_bytes, self.sends))]

    def moved(self, name: str, roles: Sides, seconds: list[float], ways: int = 1) -> dict[str, Any]:
        """What is judged: how many ranks send how much to each of how many, `ways` times."""
        sent = [_FANNED, self.size_bytes, [len(roles.attention), len(roles.experts)]]
        return {"name": name, "moves": [sent] * ways, "seconds": seconds}


def sent_by(way: Dealt, slot: int) -> Tensor:
    """Exchange the same words once more, and give what arrived."""
    way.run(slot)
    return way.output
