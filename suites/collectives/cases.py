"""The matrix of collectives: what is moved, in which type, reduced how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fixtures.plan import Case

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
MOVEMENTS = ("all_gather", "all_to_all", "all_to_all_v", "broadcast", "gather", "scatter", "send_recv")
DATA = (*REDUCTIONS, *MOVEMENTS)
# What is moved across nodes alone: inside a node all_to_all takes every way already.
ACROSS = ("bisection",)
DTYPES = ("fp32", "fp16", "bf16", "fp64", "int32", "int64", "uint8", "fp8_e4m3", "fp8_e5m2")
# The sum is in every dtype's case; the other operations need only one type of each kind of arithmetic.
OPERATIONS = ("avg", "min", "max", "prod")
OPERATION_DTYPES = ("fp32", "bf16", "int64")


def exact(collectives: Iterable[str], dtypes: Iterable[str], ops: Iterable[str] = ("sum",)) -> list[Case]:
    """List the cases that compare every element; movements have no operation."""
    return [
        case("collectives.exact", collective, dtype, op)
        for collective in collectives
        for dtype in dtypes
        for op in (ops if collective in REDUCTIONS else ("sum",))
    ]


def sweep(collectives: Iterable[str], weight: float = 1.0) -> list[Case]:
    """List the cases that time a collective over many sizes; a node is held against its equals too."""
    cases = [case("collectives.sweep", collective, "fp32", weight=weight) for collective in collectives]
    return [replace(one, compared=True) for one in cases]


def case(step: str, collective: str, dtype: str, op: str = "sum", weight: float = 1.0) -> Case:
    """Make one case; its words leave out what every case has."""
    words = [collective] if step.endswith("sweep") else [collective, dtype]
    if collective in REDUCTIONS and op != "sum":
        words.append(op)
    parameters = {"collective": collective, "dtype": dtype, "op": op}
    selectors: dict[str, str | int] = {"collective": collective, "dtype": dtype}
    return Case(step, tuple(words), parameters, selectors, weight)
