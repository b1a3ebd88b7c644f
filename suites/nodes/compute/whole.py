"""Kernels whose results are exact: casts, what draws, what moves, counts and sorts, and what is no number.

What is right is made of Python's own numbers, or of the bits as whole numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fixtures.ranks.study.dropout import drawn_from
from fixtures.ranks.study.models import seeded
from suites.nodes.compute.kernels import FLOATS, Given, Kernel, Right

NO_NUMBER = 512.0  # stands for it where results are compared; every dtype has it
_SIGN, _INFINITY, _LEAST = 1 << 31, 0x7F800000, 0x00800000  # of fp32; what is below the last is subnormal
_MANTISSA = _LEAST - 1
# No numbers, the ends of bf16, and those of fp16: its largest, its smallest, and half of that.
_SPECIAL = (
    *(0, _LEAST, _INFINITY, _INFINITY + 1, 0x7FC00000, 0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF),
    *(0x477FE000, 0x477FEFFF, 0x477FF000, 0x387FE000, 0x387FF000, 0x33800000, 0x33000000, 0x33000001),
)
DRAWN = 1 << 16
# Of n right draws the share of either half is off by more than t with a chance of 2 exp(-2 n t^2) at most
# (W. Hoeffding, JASA 58, 1963, theorem 2): here 1e-12.
UNEVEN = math.sqrt(math.log(2e12) / (2 * DRAWN))
ALIKE = 4.0  # two draws of 24 bits are alike with a chance of 2^-24: five of so many are with one of 1e-14
HIDDEN, ENTRIES, TAKEN = 24, 16, 40


def exact(results: Mapping[str, Any]) -> Mapping[str, Right]:
    """Leave them no room: tensors, numbers, and lists of lists."""
    return {
        name: Right(one if isinstance(one, Tensor) else torch.tensor(one, dtype=torch.float64))
        for name, one in results.items()
    }


# casts


def _patterns(dropped: int, exponents: tuple[int, int]) -> Callable[[Given], Sequence[Tensor]]:
    """Numbers of fp32 and their bits: any, many near the middle between two that have `dropped` bits less.

    Without subnormals, which some processors take for zero.
    """

    def operands(given: Given) -> Sequence[Tensor]:
        def draw(low: int, high: int) -> Tensor:
            return torch.randint(low, high, (4096,), generator=given.source)

        middle = 1 << (dropped - 1)
        low = middle + draw(-1, 2)
        near = (draw(*exponents) << 23) + (draw(0, 1 << (23 - dropped)) << dropped) + low
        bits = torch.cat([draw(0, _SIGN), near, torch.tensor(_SPECIAL)])
        bits = torch.where(bits < _LEAST, 0, bits)
        bits = torch.cat([bits, bits - _SIGN])
        return [bits.int().view(torch.float32).to(given.device), bits]

    return operands


def _cast(x: Tensor, dtype: torch.dtype, infinity: int) -> Sequence[Tensor]:
    """Cast as models do and as optimizers do; all bits, where what is no number has the same."""
    both = (x.to(dtype), torch.empty_like(x, dtype=dtype).copy_(x))
    bits = [one.view(torch.int16).cpu().long() & 0xFFFF for one in both]
    return [torch.where((one & 0x7FFF) > infinity, 0x7FFF, one) for one in bits]


def _nearest(number: Tensor, dropped: Tensor | int) -> Tensor:
    """Drop so many bits of a whole number; what lies in the middle becomes even."""
    most = (1 << (torch.as_tensor(dropped) - 1)) - 1
    return (number + most + (number >> dropped & 1)) >> dropped


def _signed(bits: Tensor, near: Tensor) -> Mapping[str, Right]:
    """Put the sign, and what is no number, where they belong in 16 bits."""
    right = torch.where(bits & (_SIGN - 1) > _INFINITY, 0x7FFF, near | (bits >> 16 & 0x8000))
    return exact({"by to": right, "by copy_": right})


def to_bf16(_: Tensor, bits: Tensor) -> Mapping[str, Right]:
    """Half of the bits of fp32, rounded to nearest even."""
    return _signed(bits, _nearest(bits & (_SIGN - 1), 16))


def to_fp16(_: Tensor, bits: Tensor) -> Mapping[str, Right]:
    """The exponent is smaller by 112; below 2^-14 the mantissa, with its leading 1, loses more bits."""
    size = bits & (_SIGN - 1)
    exponent = size >> 23
    number = torch.where(exponent > 112, size - (112 << 23), size & _MANTISSA | _LEAST)
    near = _nearest(number, (126 - exponent).clamp(13, 40))
    return _signed(bits, near.clamp(max=0x7C00))


def _halves(infinity: int, least: int) -> Callable[[Given], Sequence[Tensor]]:
    """All numbers of a dtype of 16 bits from `least` up, zero, and the same with a sign; and their bits."""

    def operands(given: Given) -> Sequence[Tensor]:
        bits = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(least, infinity)])
        bits = torch.cat([bits, bits - (1 << 15)])
        return [bits.short().view(given.dtype).to(given.device), bits]

    return operands


def from_bf16(_: Tensor, bits: Tensor) -> Mapping[str, Right]:
    """The same bits, followed by zeros."""
    return exact({"bits": bits << 16})


def from_fp16(_: Tensor, bits: Tensor) -> Mapping[str, Right]:
    """(1024 + m) 2^(e - 25), and m 2^-24 for the smallest exponent."""
    exponent, mantissa = bits >> 10 & 31, bits & 1023
    whole = torch.where(exponent > 0, (1024 + mantissa) << exponent, mantissa << 1)
    return exact({"values": torch.where(bits < 0, -whole, whole).double() * 2.0**-25})


# draws


def _alike(a: Tensor, b: Tensor) -> float:
    return float((a == b).tolist().count(True))


def _rand(place: Tensor) -> Sequence[Tensor]:
    """Draw with a generator of its own, and with torch's; both with two seeds."""
    device, shape = place.device, (DRAWN,)
    (one, later), (again,) = drawn_from(1, device, [shape, shape]), drawn_from(1, device, [shape])
    (other,) = drawn_from(2, device, [shape])
    free = []
    for seed in (3, 4):
        with seeded(seed, device):
            free.append(torch.rand(shape, device=device))
    every = (one, later, other, *free)
    below = [_alike(draw < 0.5, torch.ones_like(draw)) / DRAWN for draw in every]
    outside = [DRAWN - _alike((draw >= 0) & (draw < 1), torch.ones_like(draw)) for draw in every]
    pairs = [(one, later), (one, other), free]
    return [
        torch.tensor(each, dtype=torch.float64)
        for each in (below, outside, _alike(one, again), [_alike(a, b) for a, b in pairs])
    ]


def rand(_: Tensor) -> Mapping[str, Right]:
    """Half of the draws are below 0.5, all in [0, 1), the same for one seed, and others for another."""
    return {
        "share below 0.5": Right(torch.full((5,), 0.5), most=UNEVEN),
        **exact({"draws outside of [0, 1)": [0.0] * 5, "draws alike with one seed": float(DRAWN)}),
        "draws alike with two seeds": Right(torch.zeros(3), most=ALIKE),
    }


def _dropout(ones: Tensor) -> Sequence[Tensor]:
    """Drop half of them, twice."""
    with seeded(5, ones.device):
        a, b = (functional.dropout(ones, 0.5) for _ in range(2))
    kept = [_alike(one, 2 * ones) for one in (a, b)]
    dropped = [_alike(one, 0 * ones) for one in (a, b)]
    found = ([one / DRAWN for one in kept], [sum(each) for each in zip(kept, dropped, strict=True)])
    return [torch.tensor(each, dtype=torch.float64) for each in (*found, _alike(a, b) / DRAWN)]


def dropout(_: Tensor) -> Mapping[str, Right]:
    """Half are 2 and half are 0, and half of those of two masks are alike."""
    return {
        "share that is kept": Right(torch.full((2,), 0.5), most=UNEVEN),
        **exact({"elements that are 0 or 2": [float(DRAWN)] * 2}),
        "share alike in two masks": Right(torch.tensor(0.5), most=UNEVEN),
    }


# rows, orders and counts


def _rows(given: Given) -> Sequence[Tensor]:
    """A table, numbers of its entries, and whole numbers, of which sums of some are exact in every dtype."""
    rows = given.numbers(-3, 4, TAKEN, HIDDEN).to(given.dtype)
    return [given.normal(ENTRIES, HIDDEN), given.numbers(0, ENTRIES, TAKEN), rows]


def _added(ids: Tensor, rows: Tensor) -> Tensor:
    sums = [torch.zeros(HIDDEN, dtype=torch.float64)] * ENTRIES
    for number, row in zip(ids.tolist(), rows, strict=True):
        sums[number] = sums[number] + row
    return torch.stack(sums)


def _embedding(table: Tensor, ids: Tensor, rows: Tensor) -> Sequence[Tensor]:
    given = table.detach().requires_grad_()
    out = functional.embedding(ids, given)
    return [out, *torch.autograd.grad(out, given, rows)]


def embedding(table: Tensor, ids: Tensor, rows: Tensor) -> Mapping[str, Right]:
    """Entries by their numbers; the gradient of an entry is the sum over where it was taken."""
    return exact({"output": torch.stack([table[one] for one in ids.tolist()]), "gradient": _added(ids, rows)})


def _order(given: Given) -> Sequence[Tensor]:
    """Rows of distinct numbers below 256, which every dtype has."""
    drawn = [torch.randperm(256, generator=given.source)[:128] for _ in range(4)]
    return [torch.stack(drawn).to(given.device, given.dtype)]


def _sorted(x: Tensor) -> Sequence[Tensor]:
    return [*x.sort(1), *x.topk(5, 1), x.argmax(1)]


def order(x: Tensor) -> Mapping[str, Right]:
    """Numbers in order with their places, and the five largest."""
    pairs = [sorted((one, place) for place, one in enumerate(row)) for row in x.tolist()]
    up = [[[pair[part] for pair in row] for row in pairs] for part in (0, 1)]
    down = [[row[:-6:-1] for row in each] for each in up]
    most = [row[0] for row in down[1]]
    names = ("sorted", "places", "largest", "places of the largest", "place of the largest")
    return exact(dict(zip(names, (*up, *down, most), strict=True)))


def _counted(ids: Tensor) -> Sequence[Tensor]:
    return [
        torch.bincount(ids, minlength=20),
        ids.cumsum(0),
        torch.nonzero(ids == 3).flatten(),
        torch.unique(ids),
    ]


def counts(ids: Tensor) -> Mapping[str, Right]:
    """How often each number comes, their sums up to each, where one of them is, and which there are."""
    numbers = ids.tolist()
    return exact(
        {
            "bincount": [numbers.count(one) for one in range(20)],
            "cumsum": list(itertools.accumulate(numbers)),
            "nonzero": [place for place, one in enumerate(numbers) if one == 3],
            "unique": sorted(set(numbers)),
        }
    )


def _with_no_number(given: Given) -> Sequence[Tensor]:
    x = given.normal(6, 33)
    for row, place in enumerate((0, 16, 32)):
        x[row, place] = math.nan
    return [x]


def _ends(x: Tensor) -> Sequence[Tensor]:
    found = (x.amax(1), x.max(1).values, x.amin(1), x.min(1).values, torch.stack([x.max(), x.min()]))
    return [torch.where(torch.isnan(one), NO_NUMBER, one) for one in found]


def largest(x: Tensor) -> Mapping[str, Right]:
    """The ends of each row; a row is no number if one of it is none."""
    rows = [[NO_NUMBER] if any(map(math.isnan, row)) else row for row in x.tolist()]
    most, least = [max(row) for row in rows], [min(row) for row in rows]
    return exact({"amax": most, "max": most, "amin": least, "min": least, "ends": [NO_NUMBER] * 2})


WHOLE: Mapping[str, Kernel] = {
    "embedding": Kernel(_rows, _embedding, embedding),
    "index_add": Kernel(
        lambda given: _rows(given)[1:],
        lambda ids, rows: [rows.new_zeros(ENTRIES, HIDDEN).index_add(0, ids, rows)],
        lambda ids, rows: exact({"output": _added(ids, rows)}),
    ),
    "to_bf16": Kernel(
        _patterns(16, (1, 255)), lambda x, bits: _cast(x, torch.bfloat16, 0x7F80), to_bf16, ("fp32",)
    ),
    "to_fp16": Kernel(
        _patterns(13, (100, 144)), lambda x, bits: _cast(x, torch.float16, 0x7C00), to_fp16, ("fp32",)
    ),
    "from_bf16": Kernel(
        _halves(0x7F80, 0x0080), lambda x, bits: [x.float().view(torch.int32)], from_bf16, ("bf16",)
    ),
    "from_fp16": Kernel(_halves(0x7C00, 1), lambda x, bits: [x.float()], from_fp16, ("fp16",)),
    "rand": Kernel(lambda given: [given.normal(1)], _rand, rand, ("fp32",)),
    "dropout": Kernel(lambda given: [torch.ones(DRAWN, device=given.device)], _dropout, dropout, ("fp32",)),
    "order": Kernel(_order, _sorted, order, ("int64", "fp32", "bf16")),
    "counts": Kernel(lambda given: [given.numbers(0, 16, 300)], _counted, counts, ("int64",)),
    "largest": Kernel(_with_no_number, _ends, largest, FLOATS),
}
