"""Seeded bugs of lengths that fill no words: even lengths do not show them."""

from __future__ import annotations

from suites.context import moves
from suites.context.test_context import CONTEXT
from suites.expert import layer
from suites.expert.test_expert import ODD
from suites.tensor import regions
from suites.tensor.test_tensor import STEPS
from tests.teeth.bug import Bug, Patch, replaced
from tests.teeth.patches.large import in_blocks, in_result, tail_lost

_CASES = {case.step: case for case in [*STEPS, *CONTEXT, *ODD] if case.words[-1] == "odd"}


def _bug(step: str, patch: Patch) -> Bug:
    return Bug("odd tail lost", step, dict(_CASES[step].parameters), patch, ("parity",))


def _in(owner: object, name: str) -> Patch:
    return lambda: replaced(owner, name, in_result(tail_lost, 0))


BUGS = [
    _bug("tensor.mlp", _in(regions, "all_reduce")),
    _bug("context.ring", in_blocks(tail_lost, 0)),
    _bug("context.ulysses", _in(moves, "_exchange")),
    _bug("expert.parity", _in(layer, "exchange")),
]
