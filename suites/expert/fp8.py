"""Rows in fp8, as DeepSeek-V3 dispatches tokens: e4m3, and a scale in fp32 for each 128 numbers of a row.

Rows sent to experts are in fp8 (forward a token, backward the gradient of its result), with scales that are
powers of 2; combined rows stay in bf16 (arXiv:2412.19437, section 3.3.3). A row is sent as bytes, its numbers
and then its scales, so no backend has to support fp8: gloo does not in any version of torch, and NCCL only
on some GPUs.

The scale of a block is the least power of 2 by which its largest number becomes at most 448, the largest of
e4m3. So the only rounding is to the 4 bits of an e4m3 number, and what arrives is exact in bf16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suites.expert.issued import BLOCK

_NUMBERS, _SCALES = torch.float8_e4m3fn, torch.float32
_MOST = 448.0
_LEAST = 1e-4  # as in DeepEP: blocks of zeros have a scale too
_DIGITS, _BIAS = 23, 127  # of an fp32 number: bits below its exponent, and the exponent's bias
_BELOW = (1 << _DIGITS) - 1


def packed(rows: Tensor) -> Tensor:
    """Rows as they are sent."""
    blocks = _blocks(rows.to(_SCALES))
    least = (blocks.abs().amax(-1, keepdim=True).clamp(min=_LEAST) / _MOST).view(torch.int32)
    scales = (least + _BELOW & ~_BELOW).view(_SCALES)  # up to a power of 2
    return _joined((blocks / scales).to(_NUMBERS), scales)


def unpacked(came: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of rows that were sent."""
    hidden = came.shape[-1] * BLOCK // (BLOCK + _SCALES.itemsize)
    scales = came[..., hidden:].contiguous().view(_SCALES).unsqueeze(-1)
    numbers = _blocks(came[..., :hidden].view(_NUMBERS).to(_SCALES))
    return (numbers * scales).flatten(-2).to(dtype)


def by_rule(rows: Tensor) -> Tensor:
    """The values of rows after they were sent, by the definition of the format, in fp64 without fp8.

    A number is m 2^e with 1/2 <= m < 1, and m has 4 bits; below 2^-6 all numbers are multiples of 2^-9.
    """
    blocks = _blocks(rows.to(_SCALES).double())
    least = blocks.abs().amax(-1, keepdim=True).clamp(min=_LEAST) / _MOST
    scale = least / torch.frexp(least).mantissa
    scale = torch.where(scale / 2 < least, scale, scale / 2)
    wide = blocks / scale
    m = torch.frexp(wide).mantissa
    found = torch.where(wide.abs() < 2.0**-6, (wide * 512).round() / 512, (m * 16).round() / 16 * (wide / m))
    return (found * scale).flatten(-2).to(rows.dtype)


def pattern(words: Tensor) -> Tensor:
    """Rows as they are sent, made of 16-bit words: quantising their values gives the same bytes.

    A block begins with 448, its largest number; the block's first word selects one of eight scales.
    """
    blocks = _blocks(words)
    scales = ((blocks[..., :1] >> 8 & 7).to(torch.int32) + _BIAS << _DIGITS).view(_SCALES)
    bits = (blocks & 0xFF).to(torch.uint8)
    bits = torch.where(bits & 0x7F == 0x7F, bits ^ 1, bits)  # which would be NaN
    bits[..., 0] = 0x7E
    return _joined(bits.view(_NUMBERS), scales)


def _blocks(rows: Tensor) -> Tensor:
    return rows.reshape(*rows.shape[:-1], rows.shape[-1] // BLOCK, BLOCK)


def _joined(numbers: Tensor, scales: Tensor) -> Tensor:
    return torch.cat([part.view(torch.uint8).flatten(-2) for part in (numbers, scales)], dim=-1)
