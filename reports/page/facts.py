"""The environment of the nodes, compared leaf by leaf: a fact that differs is often the cause."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.compare.runs import leaves
from reports.notation import fold
from reports.record import NodeRecord

_LONGEST = 120  # characters of a fact
_MOST_VALUES = 6
_ABSENT = "not there"


@dataclass(frozen=True)
class Facts:
    """Facts equal on all nodes; facts that differ (each value with its nodes, rarest first); unique ones."""

    common: Mapping[str, str]
    differ: Mapping[str, tuple[tuple[str, str], ...]]
    own: tuple[str, ...]


def compare(nodes: Sequence[NodeRecord]) -> Facts:
    """Compare the nodes that have facts. With three nodes or more, a leaf that differs on each is `own`."""
    known = {node.name: dict(leaves(node.facts, "")) for node in nodes if node.facts}
    common: dict[str, str] = {}
    differ: dict[str, tuple[tuple[str, str], ...]] = {}
    own: list[str] = []
    for leaf in dict.fromkeys(leaf for facts in known.values() for leaf in facts):
        values: dict[str, list[str]] = {}
        for name, facts in known.items():
            values.setdefault(_text(facts[leaf]) if leaf in facts else _ABSENT, []).append(name)
        if len(values) == 1:
            common[leaf] = next(iter(values))
        elif len(values) == len(known) >= 3:
            own.append(leaf)
        else:
            differ[leaf] = _told(values)
    return Facts(common, differ, tuple(own))


def _told(values: Mapping[str, Sequence[str]]) -> tuple[tuple[str, str], ...]:
    rarest = sorted(values.items(), key=lambda item: len(item[1]))
    told = [(value, fold(names)) for value, names in rarest[:_MOST_VALUES]]
    more = sum(len(names) for _, names in rarest[_MOST_VALUES:])
    return (*told, *([("other values", f"{more} nodes")] if more else []))


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
