"""Where the figures come from: what the nodes have in common, and what sets one of them apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.record import NodeRecord

_LONGEST = 300


@dataclass(frozen=True)
class Facts:
    """Facts that every node gave alike, and each node's other facts, as short texts."""

    common: Mapping[str, str]
    own: Mapping[str, Mapping[str, str]]


def compare(nodes: Sequence[NodeRecord]) -> Facts:
    """Tell the common facts from those in which the nodes differ: a fact that differs is often the cause."""
    told = {node.name: {name: _text(value) for name, value in node.facts.items()} for node in nodes}
    speaking = [facts for facts in told.values() if facts]
    first = speaking[0] if len(speaking) > 1 else {}
    common = {name: value for name, value in first.items() if all(f.get(name) == value for f in speaking)}
    own = {
        node: {name: value for name, value in facts.items() if name not in common}
        for node, facts in told.items()
    }
    return Facts(common, own)


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
