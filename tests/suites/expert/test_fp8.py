"""Rows in fp8 are what the definition of the format says, block by block, and bytes that mean it."""

from __future__ import annotations

import pytest
import torch

from suites.expert.fp8 import by_rule, packed, pattern, unpacked
from suites.expert.issued import fp8_bytes

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def row(*numbers: float, of: int = 256) -> torch.Tensor:
    return torch.tensor([*numbers, *[0.0] * (of - len(numbers))]).unsqueeze(0)


@pytest.mark.parametrize("rounded", [by_rule, lambda rows: unpacked(packed(rows), rows.dtype)])
@pytest.mark.parametrize(
    ("number", "largest", "right"),
    [
        (448.0, 448.0, 448.0),
        (17.0, 448.0, 16.0),  # half way between 16 and 18: to the even one
        (19.0, 448.0, 20.0),
        (-19.1, 448.0, -20.0),
        (17.0, 449.0, 16.0),  # the scale is 2 then, and 449 is rounded too
        (449.0, 0.0, 448.0),
        (2.0**-9, 448.0, 2.0**-9),  # the least number
        (2.0**-10, 448.0, 0.0),
        (3 * 2.0**-10, 448.0, 2.0**-8),
        (2.0**-10, 224.0, 2.0**-10),  # the scale is 1/2
        (0.0, 0.0, 0.0),
        (7e-6, 0.0, 30 * 2.0**-22),
    ],
)
def test_a_number_is_rounded_to_four_digits_of_its_block(
    rounded: object, number: float, largest: float, right: float
) -> None:
    assert callable(rounded)
    assert float(rounded(row(number, largest))[0, 0]) == right


def test_a_block_has_a_scale_of_its_own() -> None:
    rows = row(448.0, *[0.0] * 127, 2.0**-10)
    assert float(unpacked(packed(rows), rows.dtype)[0, 128]) == float(by_rule(rows)[0, 128]) == 2.0**-10
    scales = packed(rows)[0, 256:].view(torch.float32)
    assert scales.tolist() == [1.0, 2.0**-18]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rule_and_the_bytes_agree_on_many_rows(dtype: torch.dtype) -> None:
    drawn = torch.Generator().manual_seed(7)
    sizes = 2.0 ** torch.randint(-30, 30, (500, 512), generator=drawn)
    rows = (torch.randn(500, 512, generator=drawn, dtype=torch.float64) * sizes).to(dtype)
    came = packed(rows)
    assert came.dtype is torch.uint8
    assert came.shape == (500, fp8_bytes(512))
    assert torch.equal(unpacked(came, dtype), by_rule(rows))


def test_a_pattern_is_found_again_by_quantising_what_it_means() -> None:
    drawn = torch.Generator().manual_seed(7)
    words = torch.randint(-(2**15), 2**15, (500, 512), generator=drawn).to(torch.int16)
    bits = pattern(words)
    assert torch.equal(packed(unpacked(bits, torch.bfloat16)), bits)
    assert len(set(bits[:, 512:].contiguous().view(torch.float32).flatten().tolist())) == 8


def test_no_rows_are_no_bytes() -> None:
    none = torch.empty(0, 256)
    assert packed(none).shape == (0, 264)
    assert unpacked(packed(none), none.dtype).shape == by_rule(none).shape == none.shape
